"""The learner's batches: what is drawn, what is asked for, what is written down, and when nothing is learned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.lab.harness import Lab, LabPlan
from ftis_protocol.manifest import SwarmManifest
from snapshots import equal, weights

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]


def last(node: Node, name: str) -> float:
    return node.rooms.store.points(name)[-1].value


def values(node: Node, name: str) -> list[float]:
    return [point.value for point in node.rooms.store.points(name)]


@pytest.mark.parametrize(("own_share", "foreign"), [(0.25, 3), (0.5, 2), (1.0, 0)])
async def test_own_groups_are_asked_only_for_what_the_batch_lacks(
    letters: Rules, plan: MakePlan, tmp_path: Path, own_share: float, foreign: int
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", receive__groups_per_step=4, train__own_share=own_share))
        await lab.add(plan("b", model=1, train__own_share=1.0))
        for _ in range(3):  # in one slot, so that the cursor counts all that was sampled
            for each in lab.nodes:
                await each.step()
        sampled = node.rooms.prompts.cursor.next_index["letters/1"]
        assert sum(values(node, metrics.OWN_GROUPS_DRAWN)) == sampled, "none in advance, none thrown away"
        assert last(node, metrics.FOREIGN_GROUPS_DRAWN) == foreign
        assert last(node, metrics.OWN_GROUPS_DRAWN) == 4 - foreign
        assert len(node.rooms.own) == 0


async def test_used_foreign_groups_are_marked_in_the_store(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        other = await lab.add(plan("b", model=1))
        await lab.rounds(4)
        store = node.rooms.store
        used = [v for v in store.verdicts() if v.used_step is not None]
        assert used
        assert {v.author for v in used} == {other.rooms.swarm.node_id}
        assert len(used) == store.totals()[metrics.FOREIGN_GROUPS_USED] == store.peers()[0].used
        drawn = {point.step: point.value for point in store.points(metrics.FOREIGN_GROUPS_USED)}
        for step in {v.used_step for v in used}:
            assert drawn[step] == sum(v.used_step == step for v in used)


async def test_alone_it_samples_everything_itself(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        await lab.rounds(3)
        assert values(node, metrics.OWN_GROUPS_DRAWN) == [4, 4, 4]
        assert node.rooms.policy.version == 3
        assert node.rooms.states.state == "alone"


async def test_a_batch_without_spread_changes_nothing(
    letters: Rules, plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over: list[int] = []
    monkeypatch.setattr("ftis_node.loops.train.hand_over", lambda policy, *_: handed_over.append(policy.version))
    async with Lab(tmp_path, letters(alike=True)) as lab:
        node = await lab.add(plan("a", publish__all_right_groups_per_slot=0))
        before = weights(node)
        await lab.rounds(2)
        assert values(node, metrics.LOSS) == [0.0, 0.0]
        assert node.rooms.store.points(metrics.GRADIENT_NORM) == ()
        assert (node.train.step, node.rooms.policy.version) == (2, 0)
        assert equal(weights(node), before)
        assert handed_over == []
        totals = node.rooms.store.totals()
        assert totals[metrics.series(metrics.SKIPPED_STEPS, "no_signal")] == 2
        assert totals[metrics.OWN_GROUPS_USED] == 0
        assert metrics.PUBLISHED_GROUPS not in totals, "nobody could use such groups"


async def test_versions_and_lag_are_told_right(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        await lab.rounds(3)
        assert values(node, metrics.POLICY_VERSION) == [1, 2, 3]
        assert values(node, metrics.POLICY_LAG) == [0, 0, 0], "sampled and trained at the same version"
        assert node.rooms.generator.policy_version == 3
        node.rooms.own.ask(4)
        await node.rollout.once()  # four groups of version 3, left over for later
        await node.step()  # takes them
        await node.step()  # takes what the step before had sampled one version earlier
        assert values(node, metrics.POLICY_LAG)[-2:] == [0, 1]


async def test_weights_that_are_no_numbers_skip_steps_until_it_stops(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    """Covered to its end in test_app; here: the step itself."""
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        node.rooms.own.ask(4)
        await node.rollout.once()
        with torch.no_grad():
            next(iter(node.rooms.policy.trainable_parameters.values())).fill_(torch.nan)
        await node.train.once()
        assert (node.train.step, node.rooms.policy.version) == (1, 0)
        assert node.rooms.store.totals()[metrics.series(metrics.SKIPPED_STEPS, "not_finite")] == 1
        assert node.rooms.store.points(metrics.LOSS) == ()
