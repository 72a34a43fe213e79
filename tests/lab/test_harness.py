"""Runs of the laboratory: equal seeds give equal runs to the last bit, and a stop in the middle changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.lab.harness import Lab, LabPlan
from ftis_protocol.manifest import SwarmManifest
from snapshots import equal, records, weights

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]
ROUNDS = 4
#: a start announces the manifest and takes sequence numbers for its card, so later frames get other digests, which an
#: offer packs a byte better
START_BYTES = tuple(
    metrics.series(way, kind) for way in (metrics.BYTES_IN, metrics.BYTES_OUT) for kind in ("offer", "manifest")
)


async def run(root: Path, rules: SwarmManifest, plan: MakePlan, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """Weights and records of three nodes that exchanged for ROUNDS rounds, so that each had to choose whom to ask."""
    async with Lab(root, rules) as lab:
        for number, name in enumerate(("a", "b", "c")):
            await lab.add(plan(name, model=number % 2, train__seed=seed, receive__groups_per_step=1))
        await lab.rounds(ROUNDS)
        return [weights(node) for node in lab.nodes], [records(node) for node in lab.nodes]


async def test_equal_seeds_give_equal_runs(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    first_weights, first_records = await run(tmp_path / "first", letters(), plan)
    second_weights, second_records = await run(tmp_path / "second", letters(), plan)
    assert all(map(equal, first_weights, second_weights))
    assert first_records == second_records
    assert first_records[0]["totals"][metrics.FOREIGN_GROUPS_USED] > 0, "a run without exchange would show little"


async def test_another_seed_gives_another_run(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    one, _ = await run(tmp_path / "first", letters(), plan)
    other, _ = await run(tmp_path / "second", letters(), plan, seed=1)
    assert not any(map(equal, one, other))


async def rebuilt(lab: Lab, node: Node, plan: LabPlan) -> Node:
    """The same node from its disk, after an end without warning."""
    await lab.remove(node)
    return await lab.add(plan)


@pytest.mark.parametrize("trainable", ["full", "lora"])
async def test_a_resumed_node_goes_on_as_if_it_had_never_stopped(
    letters: Rules, plan: MakePlan, tmp_path: Path, trainable: str
) -> None:
    plan_a = plan("a", model__trainable=trainable)
    async with Lab(tmp_path / "through", letters()) as lab:
        node = await lab.add(plan_a)
        await lab.rounds(2 * ROUNDS)
        through, told = weights(node), records(node, *START_BYTES)
    async with Lab(tmp_path / "halves", letters()) as lab:
        node = await lab.add(plan_a)
        await lab.rounds(ROUNDS)
        await node.save()
        node = await rebuilt(lab, node, plan_a)
        assert node.train.step == ROUNDS
        await lab.rounds(ROUNDS)
        assert equal(weights(node), through)
        assert records(node, *START_BYTES) == told


async def test_a_resumed_swarm_goes_on_as_if_it_had_never_stopped(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    """With exchange: what waited to be drawn, what was seen and who is asked first all come back."""
    settings = {"receive__groups_per_step": 4, "train__own_share": 0.75}  # more is fetched than drawn
    plans = [plan(name, model=number % 2, **settings) for number, name in enumerate(("a", "b", "c"))]

    async def run_in_parts(root: Path, stop_after: int | None) -> tuple[list[Any], list[Any], int]:
        async with Lab(root, letters()) as lab:
            for each in plans:
                await lab.add(each)
            await lab.rounds(stop_after or 2 * ROUNDS)
            waiting = sum(len(node.rooms.foreign) for node in lab.nodes)
            if stop_after:
                for node, each in zip(tuple(lab.nodes), plans, strict=True):
                    await node.save()
                    await rebuilt(lab, node, each)
                await lab.rounds(2 * ROUNDS - stop_after)
            return [weights(n) for n in lab.nodes], [records(n, *START_BYTES) for n in lab.nodes], waiting

    through, told, _ = await run_in_parts(tmp_path / "through", None)
    halves, told_again, waiting = await run_in_parts(tmp_path / "halves", ROUNDS)
    assert waiting > 0, "otherwise the buffer was not put to the test"
    assert all(map(equal, halves, through))
    assert told_again == told


async def test_what_was_not_saved_is_learned_again(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    """kill -9 between two checkpoints: the next start takes the steps since the last one again, to the same end."""
    plan_a = plan("a", train__checkpoint_every_steps=ROUNDS)
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan_a)
        began = lab.clock.now()
        await lab.rounds(ROUNDS + 2)
        lost = weights(node)
        node = await rebuilt(lab, node, plan_a)
        assert node.train.step == ROUNDS
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan_a)
        lab.clock.advance(began + ROUNDS * 10.0 - lab.clock.now())
        await lab.rounds(2)
        assert equal(weights(node), lost)
