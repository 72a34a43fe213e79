"""A whole swarm on this machine: a seed and learners as separate processes, joined over the real DHT on loopback.

Nothing here is special to a demonstration: the processes are the ordinary `create` and `join` commands, and all that is
reported is read from the databases that the nodes keep for themselves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftis_node import metrics
from ftis_node.errors import FtisError, UsageError
from ftis_node.lab.children import Child, start_child, stop_all
from ftis_node.state import StateDir
from ftis_node.store import Store

#: how long a node may take from its start to its first sign of life
START_SECONDS = 300.0
POLL_SECONDS = 0.5

#: one compute thread a process: with more, a few processes on a few cores slow each other down many times over
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "FTIS_SWARM__HOST": "127.0.0.1"}


class Unready(FtisError):
    """A part of the local swarm did not come up in time."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One learner to start: its name, the checkpoint directory, and its configuration as sections of keys."""

    name: str
    model: Path
    settings: Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What one node's own database says at the end. `pass_at_1` holds (first, last) held-out scores, None unmeasured;
    bytes are all-in: envelope, signature, frame and the offers that announce it."""

    name: str
    node_id: str
    model: str
    tokenizer: str
    trainable: str
    steps: int
    pass_at_1: tuple[float | None, float | None]
    held_out_items: int
    own_used: int
    foreign_used: int
    foreign_admitted: int
    refused: Mapping[str, int]
    published_groups: int
    published_tokens: int
    published_bytes: int
    seconds: float

    @property
    def bytes_per_token(self) -> float | None:
        return self.published_bytes / self.published_tokens if self.published_tokens else None


@dataclass(slots=True)
class LocalSwarm:
    """The running processes. Use as a context manager: leaving it ends every process."""

    root: Path
    children: list[Child] = field(default_factory=list)
    invite: str = ""

    def __enter__(self) -> LocalSwarm:
        return self

    def __exit__(self, *exc: object) -> None:
        stop_all(self.children)

    def found(self, name: str, tasks: Sequence[str], manifest_flags: Sequence[str] = ()) -> str:
        """Start the seed, which founds the swarm; returns the invite for the others."""
        state = self.root / "seed"
        arguments = ["create", "--name", name, "--no-model", "--state", str(state)]
        for task in tasks:
            arguments += ["--task", task]
        log_path = self.root / "logs" / "seed.log"
        seed = start_child("the seed", [*arguments, *manifest_flags], log_path, ENVIRONMENT)
        self.children.append(seed)
        self.invite = _wait_for(lambda: invite_in(state), seed, "the seed's join line")
        return self.invite

    def join(self, plan: NodePlan) -> Child:
        """Start one learner."""
        directory = self.root / plan.name
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "node.toml"
        config.write_text(_toml(plan.settings))
        arguments = ["join", "--swarm", self.invite, "--model", str(plan.model), "--name", plan.name]
        arguments += ["--state", str(directory), "--config", str(config)]
        child = start_child(plan.name, arguments, self.root / "logs" / f"{plan.name}.log", ENVIRONMENT)
        self.children.append(child)
        return child

    def wait(self, learners: Sequence[Child], progress: Callable[[Mapping[str, int]], None]) -> None:
        """Until every learner has ended by itself; `progress` gets the steps done by name. Raises ChildFailed."""
        while any(child.running for child in learners):
            for child in self.children:
                child.check()
            progress({child.name: steps_done(self.root / child.name) for child in learners})
            time.sleep(POLL_SECONDS)
        for child in learners:
            child.check()
        progress({child.name: steps_done(self.root / child.name) for child in learners})


def invite_in(state: Path) -> str | None:
    """The invite that a founding node has written into its database, or None while there is none."""
    return _fact(state, "invite")


def page_of(state: Path) -> str | None:
    """Where a node's page answers, or None while it does not."""
    return _fact(state, "page_address")


def steps_done(state: Path) -> int:
    return int(_fact(state, "step") or 0)


def result_of(state: Path) -> NodeResult:
    """Read one node's outcome from its database."""
    store = _open(state)
    assert store is not None, f"{state} holds no node"
    try:
        facts, totals = store.facts(), store.totals()
        probes = store.points(metrics.PASS_AT_1)
        refused = {r: n for (verdict, r), n in store.counts().items() if verdict == "refused"}
        out = ("frame", "offer")
        return NodeResult(
            name=str(facts.get("name", state.name)),
            node_id=str(facts.get("node_id", "")),
            model=str(facts.get("model", "")),
            tokenizer=str(facts.get("tokenizer", "")),
            trainable=str(facts.get("trainable", "")),
            steps=int(facts.get("step", 0)),
            pass_at_1=(probes[0].value, probes[-1].value) if probes else (None, None),
            held_out_items=int(facts.get("held_out_items", 0)),
            own_used=int(totals.get(metrics.OWN_GROUPS_USED, 0)),
            foreign_used=int(totals.get(metrics.FOREIGN_GROUPS_USED, 0)),
            foreign_admitted=int(totals.get(metrics.FOREIGN_ADMITTED, 0)),
            refused=refused,
            published_groups=int(totals.get(metrics.PUBLISHED_GROUPS, 0)),
            published_tokens=int(totals.get(metrics.PUBLISHED_TOKENS, 0)),
            published_bytes=int(sum(totals.get(metrics.series(metrics.BYTES_OUT, kind), 0) for kind in out)),
            seconds=probes[-1].ts - probes[0].ts if probes else 0.0,
        )
    finally:
        store.close()


def _fact(state: Path, key: str) -> str | None:
    store = _open(state)
    if store is None:
        return None
    try:
        value = store.fact(key)
    finally:
        store.close()
    return None if value is None else str(value)


def _open(state: Path) -> Store | None:
    """The node's database, or None before it exists."""
    if not (state / "swarms").is_dir():
        return None
    current = StateDir.existing(state).current_swarm()
    if current is None or not current[1].database.exists():
        return None
    try:
        return Store.view(current[1].database)
    except UsageError:  # the node is making it right now
        return None


def _wait_for(ask: Callable[[], str | None], child: Child, what: str) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        child.check()
        answer = ask()
        if answer is not None:
            return answer
        time.sleep(POLL_SECONDS)
    raise Unready(f"{what} did not appear within {START_SECONDS:.0f} s", hint=f"See {child.log_path}.")


def _toml(settings: Mapping[str, Mapping[str, object]]) -> str:
    """Sections of plain values as TOML; JSON's spelling of text, numbers, lists and booleans is valid there."""
    lines = []
    for section, keys in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"
