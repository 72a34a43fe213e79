"""What has to fit before a node can be built, and the limits that follow from swarm and configuration."""

from __future__ import annotations

from ftis_node.admission.admit import AdmissionLimits
from ftis_node.buffer import Bounds
from ftis_node.config import NodeConfig
from ftis_node.errors import UsageError
from ftis_node.generate.base import Notify
from ftis_node.loops.rooms import Rooms
from ftis_node.policy.checkpoint import StoredCheckpoint
from ftis_node.policy.model import Policy
from ftis_node.states import NodeState
from ftis_node.store import Store
from ftis_node.store_records import Fact
from ftis_node.supervision import Parts
from ftis_node.swarm.base import Swarm
from ftis_node.tasks.base import Task

#: a foreign text may have this many times the swarm's token limit here: tokenizers cut text differently
FOREIGN_LENGTH_RATIO = 8
#: held-out answers that are tried on the model's tokenizer
ANSWERS_TRIED = 8
MEBIBYTE = 1024 * 1024
#: the fact `generator_state` after each kind of news of the engine's process
ENGINE_STATES = {
    "engine-hangs": "hanging", "engine-died": "restarting", "engine-restarted": "working", "engine-failed": "failed"
}  # fmt: skip


def check_group_size(config: NodeConfig, swarm: Swarm) -> None:
    """UsageError for a group size that the swarm does not exchange."""
    size, rules = config.train.group_size, swarm.manifest
    if not rules.group_size_min <= size <= rules.group_size_max:
        raise UsageError(
            f"group size {size} is not one that this swarm exchanges "
            f"({rules.group_size_min} to {rules.group_size_max})",
            hint="Set train.group_size to a number in that range.",
        )


def check_answers(task: Task, policy: Policy) -> None:
    """With a tokenizer that changes text most groups of others would be refused, and its own words are not its own."""
    answers = [item.answer for item in task.held_out(ANSWERS_TRIED)]
    changed = [answer for answer in answers if not policy.codec.round_trips(answer)]
    if 2 * len(changed) > len(answers):
        raise UsageError(
            f"the tokenizer of {policy.name} cannot write answers of task {task.name!r} such as {changed[0]!r}",
            hint="Choose a model whose tokenizer keeps text as it is.",
        )


def check_swarm(stored: StoredCheckpoint | None, swarm: Swarm) -> None:
    """UsageError for a checkpoint that was written in another swarm: its data cursor and records would be nonsense."""
    written = stored.extra.get("swarm") if stored else None
    if stored is not None and written not in (None, swarm.swarm_id):
        raise UsageError(
            f"{stored.path} was written in the swarm {written}, not in {swarm.swarm_id}",
            hint="Remove it from this swarm's directory; to go on from its weights export it and name it as --model.",
        )


def admission_limits(config: NodeConfig, swarm: Swarm) -> AdmissionLimits:
    return AdmissionLimits(
        max_completion_tokens=FOREIGN_LENGTH_RATIO * swarm.manifest.sampling.max_completion_tokens,
        max_groups_per_peer_and_slot=config.receive.groups_per_peer_and_slot,
        trusted_peers=frozenset(config.receive.trusted_peers),
    )


def buffer_bounds(config: NodeConfig) -> Bounds:
    receive = config.receive
    return Bounds(receive.buffer_mebibytes * MEBIBYTE, receive.max_age_seconds, receive.max_lag_steps)


def note_start(rooms: Rooms, step: int) -> None:
    """Facts that `status`, the demo and the page read."""
    policy = rooms.policy
    rooms.store.set_facts(
        node_id=rooms.swarm.node_id,
        name=rooms.config.node.name,
        swarm_name=rooms.manifest.name,
        model=policy.name,
        parameters=policy.parameter_count,
        tokenizer=policy.codec.fingerprint,
        trainable=policy.trainable,
        generator=rooms.generator.name,
        generator_state="working",
        step=step,
        policy_version=policy.version,
        **{Fact.PEERS: 0, Fact.ALONE_SINCE: None},
    )
    rooms.states.enter(NodeState.JOINING)
    rooms.store.event("start", f"{policy.name} with the {rooms.generator.name} generator, from step {step}")


def engine_news(store: Store, parts: Parts) -> Notify:
    """What happens to the engine's process becomes an event, the fact `generator_state`, and a word to its part, which
    makes the node's state `degraded` until the engine works again. The engine's keeper starts it again by itself."""

    def note(kind: str, text: str) -> None:
        store.event(kind, text, level="info" if kind == "engine-restarted" else "warning")
        store.set_facts(generator_state=ENGINE_STATES[kind])
        if kind == "engine-restarted":
            parts.act("engine", text)
        elif kind == "engine-died":
            parts.broken("engine", text)

    return note
