"""Horizontal exchange: groups pooled across nodes. Only the laboratory does this, to show what it costs.

In a round all nodes answer the same prompts, each with its share of every group, and each trains on the whole pool:
advantages come from rewards of unlike policies, while weights and filter see each completion's own sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.errors import UsageError
from ftis_node.lab.harness import ROUND_SECONDS, Lab
from ftis_node.loops.publishing import own_digest
from ftis_node.loops.rollout import sampling_seed
from ftis_node.records import JudgedGroup, Origin, Prompt, TrainCompletion, TrainGroup
from ftis_protocol.rollout import Evidence, item_seed


async def pooled_round(lab: Lab, groups: int) -> None:
    """One round of every node on the pool. The nodes take turns in naming the prompts.

    Raises UsageError for nodes with unlike tokenizers, whose token log-probs cannot be pooled.
    """
    prints = {node.rooms.policy.codec.fingerprint for node in lab.nodes}
    if len(prints) > 1:
        raise UsageError("horizontal pools need equal tokenizers", hint="Leave the arm horizontal out.")
    leader = lab.nodes[lab.nodes[0].train.step % len(lab.nodes)]
    prompts = [leader.rooms.prompts.draw() for _ in range(groups * len(lab.nodes))]
    shares = [await _share(node, leader, prompts, len(lab.nodes)) for node in lab.nodes]
    for place, node in enumerate(lab.nodes):
        pools = [_pool(node, prompt, [share[i] for share in shares], place) for i, prompt in enumerate(prompts)]
        await node.rooms.compute.run(node.rooms.updater.update, [JudgedGroup(pool) for pool in pools], len(pools))
        node.train.step += 1
    lab.clock.advance(ROUND_SECONDS)


async def _share(node: Node, leader: Node, prompts: Sequence[Prompt], nodes: int) -> list[tuple[TrainCompletion, ...]]:
    """The node's completions of each prompt, rewarded: as many in all as in a vertical round."""
    rooms, train = node.rooms, node.rooms.config.train
    seed = sampling_seed(train.seed, f"{node.train.step}/{rooms.swarm.node_id}")
    size = max(1, train.group_size // nodes)
    sampled = await rooms.compute.run(rooms.generator.generate, prompts, group_size=size, seed=seed)
    share = []
    for group in sampled:
        ref = group.prompt.ref
        spec = rooms.manifest.task(ref.task, ref.version)
        assert spec is not None
        items = item_seed(rooms.manifest.swarm_id, leader.rooms.swarm.node_id, ref.slot, ref.task, ref.version)
        rewards = await rooms.verify.score(spec, items, ref.index, [s.text for s in group.samples])
        share.append(
            tuple(
                TrainCompletion(s.text, s.token_ids, s.finish, reward, s.logprobs, sum(s.logprobs))
                for s, reward in zip(group.samples, rewards, strict=True)
            )
        )
    everything = [c.reward for completions in share for c in completions]
    rooms.store.metric(node.train.step, {metrics.OWN_REWARD: sum(everything) / len(everything)})
    return share


def _pool(node: Node, prompt: Prompt, shares: Sequence[tuple[TrainCompletion, ...]], place: int) -> TrainGroup:
    """One pooled group as `node` trains on it; it counts as own, since the sampler of every token is known."""
    completions = tuple(c for share in (shares[place], *shares[:place], *shares[place + 1 :]) for c in share)
    rooms = node.rooms
    return TrainGroup(
        origin=Origin.OWN,
        author=rooms.swarm.node_id,
        prompt=replace(prompt),
        prompt_ids=rooms.policy.codec.render(prompt),
        completions=completions,
        evidence=Evidence.TOKEN,
        policy_version=rooms.policy.version,
        created_at=rooms.clock.now(),
        digest=own_digest(rooms.swarm.node_id, prompt.ref, completions),
    )
