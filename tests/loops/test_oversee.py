"""The overseer of a running node: requests, memory, hours, and a part that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.loops import oversee
from ftis_node.store_commands import CommandKind, CommandTable
from ftis_protocol.manifest import SwarmManifest

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]
DEADLINE_SECONDS = 60


async def until(ask: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not ask():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oversee, "WATCH_SECONDS", 0.01)


async def test_pause_resume_and_leave(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, witness = await lab.add(plan("a", train__lock_step=False)), await lab.add(plan("b"))
        store = node.rooms.store
        running = asyncio.ensure_future(node.run(asyncio.Event()))
        await until(lambda: store.fact("beat_at") is not None)
        table = CommandTable.open(store.path)
        table.ask(CommandKind.PAUSE, "test")
        await until(lambda: store.fact("state") == "paused" and node.rooms.parts.snapshot()["trainer"]["since"] is None)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while [peer.card.state for peer in await witness.rooms.swarm.peers()] != ["paused"]:
                lab.clock.advance(1)
                await asyncio.sleep(0.05)
        step = node.train.step
        table.ask(CommandKind.RESUME, "test")
        await until(lambda: node.train.step > step)
        number = table.ask(CommandKind.LEAVE, "test")
        await asyncio.wait_for(running, DEADLINE_SECONDS)
        row = table.row(number)
        table.close()
        assert row is not None
        assert row.ok
        assert (store.fact("state"), store.fact("saved_step")) == ("stopped", node.train.step)


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oversee, "free_memory", lambda device: 10 << 20)
    monkeypatch.setattr(oversee, "MEMORY_SECONDS", 0.0)
    monkeypatch.setattr(oversee, "SHRINK_SECONDS", 0.0)


async def test_short_memory_makes_passes_smaller_before_the_kernel_acts(
    letters: Rules, plan: MakePlan, tmp_path: Path, scarce: None
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        before = node.rooms.updater.settings.micro_tokens
        for _ in range(20):
            node.oversee.once()
        assert node.rooms.updater.settings.micro_tokens == 256 < before
        assert node.rooms.store.totals()[metrics.BATCH_SHRUNK] == 5
        assert node.rooms.store.fact("state") == "degraded"
        assert "memory is short" in node.rooms.store.fact("state_why")
        await node.step()
        assert node.train.step == 1


async def test_a_part_that_hangs_is_named(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        with node.rooms.parts.doing("engine", "sampling 4 groups"):
            lab.clock.advance(301)
            node.oversee.once()
            node.oversee.once()
            assert _told(node, "stalled") == ["engine is stalled: sampling 4 groups for 301 s"]
            assert node.rooms.store.fact("state") == "degraded"
        node.oversee.once()
        assert node.rooms.store.fact("state") == "alone"


async def test_outside_its_hours_a_node_waits(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    import time

    hour = time.localtime().tm_hour
    closed = f"{(hour + 2) % 24}-{(hour + 3) % 24}" if (hour + 3) % 24 else f"{(hour + 2) % 24}-24"
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", limits__hours=closed, train__lock_step=False))
        stop = asyncio.Event()
        running = asyncio.ensure_future(node.run(stop))
        await until(lambda: node.rooms.store.fact("beat_at") is not None)
        assert node.rooms.store.fact("state") == "paused"
        assert "limits.hours" in node.rooms.store.fact("state_why")
        stop.set()
        await asyncio.wait_for(running, DEADLINE_SECONDS)
        assert node.train.step == 0


def _told(node: Node, kind: str) -> list[str]:
    return [event.text for event in node.rooms.store.events() if event.kind == kind]
