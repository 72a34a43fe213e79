"""Groups of several steps travel in one frame: smaller, soon enough, and all through the slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.loops import publishing
from ftis_node.loops.publishing import GroupPublisher
from ftis_node.records import TrainGroup
from ftis_protocol.limits import MAX_OFFER_FRAMES
from ftis_protocol.manifest import SwarmManifest
from loops.test_publishing import frames_of, sampled

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]


def total(node: Node, name: str, label: str | None = None) -> float:
    return node.rooms.store.totals().get(metrics.series(name, label), 0)


def sent_bytes(node: Node) -> float:
    return total(node, metrics.BYTES_OUT, "frame") + total(node, metrics.BYTES_OUT, "offer")


async def test_groups_of_several_steps_share_a_frame_and_cost_less(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        patient = await lab.add(plan("a", train__lock_step=False))
        hasty, reader = await lab.add(plan("b")), await lab.add(plan("c"))
        for node in (patient, hasty):
            publisher = GroupPublisher(node.rooms)
            for group in await sampled(node, 6):
                await publisher.publish([group])
            await publisher.flush()
        assert [len(frame.groups) for frame in await frames_of(patient, reader)] == [6]
        assert [len(frame.groups) for frame in await frames_of(hasty, reader)] == [1] * 6
        assert sent_bytes(patient) < 0.5 * sent_bytes(hasty)


async def test_the_wait_for_others_is_bounded(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", train__lock_step=False, publish__collect_seconds=0.2))
        reader = await lab.add(plan("b"))
        publisher = GroupPublisher(node.rooms)
        first, second, third = await sampled(node, 3)
        sending = asyncio.create_task(publisher.once())
        await publisher.publish([first])
        await publisher.publish([second])
        assert await frames_of(node, reader) == []
        await asyncio.wait_for(sending, 10)
        assert [len(frame.groups) for frame in await frames_of(node, reader)] == [2]
        await publisher.publish([third])
        await asyncio.wait_for(publisher.once(), 10)
        assert sorted(len(frame.groups) for frame in await frames_of(node, reader)) == [1, 2]


async def test_nothing_waits_over_the_end_of_a_slot_or_for_a_full_frame(
    letters: Rules, plan: MakePlan, tmp_path: Path, monkeypatch
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", train__lock_step=False, publish__collect_seconds=60.0))
        publisher = GroupPublisher(node.rooms)
        (first, *others) = await sampled(node, 4)
        await publisher.publish([first])
        assert publisher._due_in_seconds() > 5
        slot = node.rooms.manifest.slot_seconds
        lab.clock.advance(slot - lab.clock.now() % slot - 0.4)
        assert publisher._due_in_seconds() == 0
        await publisher.flush()
        lab.clock.advance(1.0)
        monkeypatch.setattr(publishing, "MAX_WAITING", 2)
        await publisher.publish(others[:1])
        assert publisher._due_in_seconds() > 5
        await publisher.publish(others[1:2])
        assert publisher._due_in_seconds() == 0


async def test_a_fast_node_is_heard_all_through_the_slot(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    """A hundred steps in one slot; before groups were collected the sixty-fifth frame found the offer full."""
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", publish__groups_per_slot=128))
        reader = await lab.add(plan("b"))
        publisher = GroupPublisher(node.rooms)
        groups: list[TrainGroup] = await sampled(node, 100)
        lab.clock.advance(30.0 - lab.clock.now() % 30.0)
        heard = []
        for group in groups:
            await publisher.publish([group])
            heard.append(total(node, metrics.PUBLISHED_GROUPS))
            lab.clock.advance(0.29)
        assert heard[-1] - heard[80] > 10, "not silent towards the end"
        assert heard[-1] > 90
        frames = await frames_of(node, reader)
        assert 1 < len(frames) <= MAX_OFFER_FRAMES // 2
        assert total(node, metrics.KEPT_BACK, "pace") == 0


async def test_what_is_above_the_pace_is_counted_and_the_newest_go(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", publish__groups_per_slot=8))
        reader = await lab.add(plan("b"))
        lab.clock.advance(30.0 - lab.clock.now() % 30.0)
        groups = await sampled(node, 7)
        await GroupPublisher(node.rooms).publish(groups)
        (frame,) = await frames_of(node, reader)
        assert [g.prompt for g in frame.groups] == [g.prompt.ref for g in groups[-2:]]
        assert total(node, metrics.KEPT_BACK, "pace") == 5


async def test_a_node_that_stops_sends_what_waits(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    settings = {"train__lock_step": False, "train__max_steps": 2, "publish__collect_seconds": 60.0}
    async with Lab(tmp_path, letters()) as lab:
        node, reader = await lab.add(plan("a", **settings)), await lab.add(plan("b"))
        await asyncio.wait_for(node.run(asyncio.Event()), 60)
        assert total(node, metrics.PUBLISHED_GROUPS) > 0
        assert sum(len(frame.groups) for frame in await frames_of(node, reader)) == total(
            node, metrics.PUBLISHED_GROUPS
        )
