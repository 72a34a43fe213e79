"""A stop that does not wait for ever: a computation that takes too long is dropped, and no counted step with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftis_node.app import Node
from ftis_node.lab.harness import Lab, LabPlan
from ftis_protocol.manifest import SwarmManifest
from snapshots import equal, weights

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]
DEADLINE_SECONDS = 60


class Held:
    """Stands in for a call of the compute thread: holds it before (or after) its work until told to go on."""

    def __init__(self, call: Callable[..., Any], *, after: bool = False) -> None:
        self._call, self._after = call, after
        self.entered, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        result = self._call(*arguments, **named) if self._after else None
        self.entered.set()
        assert self.go_on.wait(DEADLINE_SECONDS)
        return result if self._after else self._call(*arguments, **named)


async def stopped_inside(node: Node, held: Held) -> None:
    """Run the node until the call is under way, then stop it; the call goes on."""
    stop = asyncio.Event()
    running = asyncio.ensure_future(node.run(stop))
    assert await asyncio.to_thread(held.entered.wait, DEADLINE_SECONDS)
    stop.set()
    await asyncio.wait_for(running, DEADLINE_SECONDS)


async def test_sampling_without_end_is_dropped_and_the_last_step_saved(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        settings = plan("a", train__lock_step=False, node__step_seconds=0.0)
        node, witness = await lab.add(settings), await lab.add(plan("b"))
        await lab.rounds(2)
        before = weights(node)
        held = Held(node.rooms.generator.generate)
        node.rooms.generator.generate = held  # type: ignore[method-assign]
        await stopped_inside(node, held)
        assert node.dropped
        stored = node._checkpoints.latest()
        assert stored is not None
        assert stored.extra["step"] == node.train.step == node.rooms.store.fact("saved_step") == 2
        assert node.rooms.swarm.node_id not in {peer.node_id for peer in await witness.rooms.swarm.peers()}
        assert node.rooms.store.fact("state") == "stopped"
        held.go_on.set()
        await lab.remove(node)
        again = await lab.add(settings)
        assert equal(weights(again), before)


async def test_a_step_that_has_changed_weights_is_waited_for(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", train__lock_step=False, node__step_seconds=0.0))
        await lab.rounds(1)
        held = Held(node.rooms.updater.update, after=True)
        node.rooms.updater.update = held  # type: ignore[method-assign]
        stop = asyncio.Event()
        running = asyncio.ensure_future(node.run(stop))
        assert await asyncio.to_thread(held.entered.wait, DEADLINE_SECONDS)
        stop.set()
        while node.rooms.states.state != "draining":
            await asyncio.sleep(0)
        held.go_on.set()
        await asyncio.wait_for(running, DEADLINE_SECONDS)
        stored = node._checkpoints.latest()
        assert stored is not None
        assert (stored.extra["step"], stored.policy_version) == (2, node.rooms.policy.version)
