"""A node from its start to its end: by its own count, by its operator's wish, and because of an error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.errors import EngineError, TaskError, TrainingStopped, UsageError
from ftis_node.generate.transformers import TransformersGenerator
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.layering import load
from ftis_node.loops.rollout import RolloutLoop
from ftis_node.loops.train import TrainLoop
from ftis_node.policy.model import load_policy
from ftis_node.store import Store
from ftis_protocol.manifest import SwarmManifest
from snapshots import equal, weights

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]
DEADLINE_SECONDS = 60
both_ways = pytest.mark.parametrize("lock_step", [True, False])


async def run(node: Node, stop: asyncio.Event | None = None) -> None:
    await asyncio.wait_for(node.run(stop or asyncio.Event()), DEADLINE_SECONDS)


def saved_step(node: Node) -> int | None:
    """The step of the newest checkpoint."""
    stored = node._checkpoints.latest()
    return stored and stored.extra["step"]


def events(node: Node) -> dict[str, str]:
    return {event.kind: event.text for event in node.rooms.store.events()}


async def said_goodbye(node: Node, witness: Node) -> bool:
    """Whether the node stopped in good order, as another one sees it."""
    known = {peer.node_id for peer in await witness.rooms.swarm.peers()}
    return node.rooms.swarm.node_id not in known and node.rooms.store.fact("state") == "stopped"


class Gate:
    """Stands in for a call of the compute thread and holds it until it is opened."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._open = threading.Event()
        self.entered = threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.entered.set()
        assert self._open.wait(DEADLINE_SECONDS)
        return self._call(*arguments, **named)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, DEADLINE_SECONDS)

    def open(self) -> None:
        self._open.set()


@both_ways
async def test_a_run_ends_after_its_steps(letters: Rules, plan: MakePlan, tmp_path: Path, lock_step: bool) -> None:
    async with Lab(tmp_path, letters()) as lab:
        settings = {"train__max_steps": 3, "train__probe_every_steps": 2, "train__probe_items": 4}
        node = await lab.add(plan("a", train__lock_step=lock_step, **settings))
        witness = await lab.add(plan("b"))
        assert not await said_goodbye(node, witness)
        await run(node)
        assert (node.train.step, saved_step(node)) == (3, 3)
        assert [point.step for point in node.rooms.store.points(metrics.PASS_AT_1)] == [0, 2, 3]
        assert await said_goodbye(node, witness)
        await run(node)  # the same line again: nothing is left to do
        assert node.train.step == 3


@both_ways
async def test_a_stop_in_a_long_call_ends_after_that_call(
    letters: Rules, plan: MakePlan, tmp_path: Path, lock_step: bool
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, witness = await lab.add(plan("a", train__lock_step=lock_step)), await lab.add(plan("b"))
        await lab.rounds(2)
        gate, stop = Gate(node.rooms.generator.generate), asyncio.Event()
        node.rooms.generator.generate = gate  # type: ignore[method-assign]
        running = asyncio.ensure_future(run(node, stop))
        await gate.reached()
        stop.set()
        await asyncio.sleep(0)
        assert not running.done()
        gate.open()
        await running
        assert (node.train.step, saved_step(node)) == (2, 2)
        totals = node.rooms.store.totals()
        undrawn = totals[metrics.FOREIGN_ADMITTED] - totals[metrics.FOREIGN_GROUPS_DRAWN]
        assert len(node.rooms.foreign) == undrawn > 0, "what was drawn for the broken-off batch is put back"
        assert await said_goodbye(node, witness)


async def test_a_step_under_way_is_counted_and_saved(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        gate, stop = Gate(node.rooms.updater.update), asyncio.Event()
        node.rooms.updater.update = gate  # type: ignore[method-assign]
        running = asyncio.ensure_future(run(node, stop))
        await gate.reached()
        stop.set()
        gate.open()
        await running
        assert (node.train.step, node.rooms.policy.version, saved_step(node)) == (1, 1, 1)
        assert node.rooms.store.fact("step") == 1


@both_ways
@pytest.mark.parametrize("loop", ["exchange", "rollout", "train"])
async def test_an_error_of_a_loop_comes_out_as_itself(
    letters: Rules, plan: MakePlan, tmp_path: Path, loop: str, lock_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, witness = await lab.add(plan("a", train__lock_step=lock_step)), await lab.add(plan("b"))
        await lab.rounds(2)

        async def broken() -> None:
            raise EngineError("it broke", hint="mend it")

        monkeypatch.setattr(getattr(node, loop), "once", broken)
        with pytest.raises(EngineError, match="it broke"):
            await run(node)
        assert saved_step(node) == 2
        assert events(node)["failed"] == "EngineError: it broke"
        assert await said_goodbye(node, witness)
        assert {task for task in asyncio.all_tasks() if not task.done()} == {asyncio.current_task()}


async def test_of_two_errors_at_once_one_comes_out(
    letters: Rules, plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise EngineError("it broke", hint="mend it")

    async with Lab(tmp_path, letters()) as lab:
        for lock_step in (True, False):
            node = await lab.add(plan(f"n{lock_step}", train__lock_step=lock_step))
            monkeypatch.setattr(node.rollout, "once", broken)
            monkeypatch.setattr(node.train, "once", broken)
            with pytest.raises(EngineError):
                await run(node)


async def test_a_checker_that_broke_down_ends_the_run_in_good_order(
    letters: Rules, plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, witness = await lab.add(plan("a")), await lab.add(plan("b"))
        await lab.rounds(2)

        async def dead(*_: object) -> str:
            return "its process died"

        monkeypatch.setattr(node.rooms.verify, "_outcome", dead)
        with pytest.raises(TaskError, match="several batches") as caught:
            await run(node)
        assert caught.value.hint
        assert saved_step(node) == 2
        assert "its process died" in events(node)["checker-failed"]
        assert await said_goodbye(node, witness)


@pytest.mark.parametrize("max_steps", [1, 2])
async def test_a_probe_that_fails_loses_no_step(
    letters: Rules, plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_steps: int
) -> None:
    """The first probe (a fresh node) and the last one."""
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", train__probe_every_steps=9, train__max_steps=max_steps))
        witness = await lab.add(plan("b"))
        for _ in range(max_steps - 1):
            await node.step()

        async def broken() -> None:
            raise TaskError("no score", hint="none")

        monkeypatch.setattr(node.train, "probe", broken)
        with pytest.raises(TaskError, match="no score"):
            await run(node)
        assert saved_step(node) == (None if max_steps == 1 else 2)
        assert await said_goodbye(node, witness)


def spoil(node: Node) -> None:
    with torch.no_grad():
        next(iter(node.rooms.policy.trainable_parameters.values())).fill_(torch.nan)


async def test_weights_that_are_no_numbers_stop_the_node(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        settings = plan("a", train__checkpoint_every_steps=1)
        node, witness = await lab.add(settings), await lab.add(plan("b"))
        await node.step()
        good = weights(node)
        healthy = load_policy(settings.model, device="cpu")  # an engine with weights of its own goes on sampling
        generator = TransformersGenerator(healthy.module, healthy.codec, policy_version=1)
        node.rooms = replace(node.rooms, generator=generator)
        node.rollout, node.train = RolloutLoop(node.rooms), TrainLoop(node.rooms, tmp_path / "w", node.train.step)
        spoil(node)
        with pytest.raises(TrainingStopped) as caught:
            await run(node)
        assert caught.value.hint
        assert node.rooms.store.totals()[metrics.series(metrics.SKIPPED_STEPS, "not_finite")] == 5
        assert (node.rooms.policy.version, saved_step(node)) == (1, 1)
        assert "not-saved" in events(node)
        assert await said_goodbye(node, witness)
        await lab.remove(node)
        assert equal(weights(await lab.add(settings)), good), "the last good checkpoint is the newest"


async def test_an_engine_that_shares_spoiled_weights_says_so(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        await lab.rounds(1)
        spoil(node)
        with pytest.raises(EngineError):
            await run(node)
        assert saved_step(node) is None


async def test_a_disk_that_refuses_the_last_checkpoint_does_not_keep_it_from_leaving(
    letters: Rules, plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UsageError("no space left", hint="make some")

    async with Lab(tmp_path, letters()) as lab:
        node, witness = await lab.add(plan("a", train__max_steps=1)), await lab.add(plan("b"))
        monkeypatch.setattr(node._checkpoints, "save", full)
        with pytest.raises(UsageError, match="no space left"):
            await run(node)
        assert await said_goodbye(node, witness)


async def test_a_group_size_that_the_swarm_does_not_exchange_is_refused(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    rules = letters().model_copy(update={"group_size_min": 6})
    async with Lab(tmp_path, rules) as lab:
        with pytest.raises(UsageError, match="group size 4") as caught:
            await lab.add(plan("a"))
        assert "train.group_size" in caught.value.hint


@pytest.mark.parametrize("name", [" bob", "a\nb", "a\x00b", "x" * 65])
def test_a_name_that_no_card_can_carry_is_refused_before_the_start(name: str) -> None:
    with pytest.raises(UsageError, match=r"node\.name"):
        load(flags={"node.name": name})


async def test_a_node_shows_what_it_is(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, witness = await lab.add(plan("a")), await lab.add(plan("b", model=1))
        await lab.rounds(3)
        await node.exchange.announce()
        (peer,) = await witness.rooms.swarm.peers()
        card, facts = peer.card, node.rooms.store.facts()
        assert (card.name, card.model, card.state) == ("a", "tiny-0", "working")
        assert card.policy_version == facts["policy_version"] == 3
        assert card.parameters == facts["parameters"] == node.rooms.policy.parameter_count
        assert card.groups_published == node.rooms.store.totals()[metrics.PUBLISHED_GROUPS]
        assert card.peers[witness.rooms.swarm.node_id].accepted > 0
        assert facts["generator"] == "transformers"


async def test_closing_twice_is_harmless(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        await node.close()
        assert isinstance(node.rooms.store, Store)
