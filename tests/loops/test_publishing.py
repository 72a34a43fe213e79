"""What leaves the node, in which frames, and that no limit stops it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.loops import publishing
from ftis_node.loops.publishing import GroupPublisher, own_digest, wire_group
from ftis_node.records import TrainGroup
from ftis_protocol import limits
from ftis_protocol.envelope import KINDS, Kind, open_envelope
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.rollout import Evidence, Frame, group_digest

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]
LONG = "x" * (limits.MAX_COMPLETION_CHARS + 1)


async def sampled(node: Node, count: int) -> list[TrainGroup]:
    """Own groups with unlike rewards, not published yet."""
    groups: list[TrainGroup] = []
    while len(groups) < count:
        groups += [g for g in await node.rollout._sample(count) if len(set(g.rewards)) > 1]
    return groups[:count]


async def frames_of(node: Node, reader: Node) -> list[Frame]:
    """What others find of a node, in the order of the offer."""
    frames = []
    for offer in await reader.rooms.swarm.offers():
        if offer.node_id == node.rooms.swarm.node_id:
            sealed = await reader.rooms.swarm.fetch(offer.frame.digest)
            assert sealed is not None
            opened = open_envelope(sealed, swarm_id=node.rooms.manifest.swarm_id, kinds=frozenset({Kind.FRAME}))
            assert isinstance(opened.message, Frame)
            frames.append(opened.message)
    return frames


def limit_frames(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    monkeypatch.setitem(KINDS, Kind.FRAME, replace(KINDS[Kind.FRAME], max_bytes=size_bytes))


def failures(node: Node) -> list[str]:
    return [event.text for event in node.rooms.store.events() if event.kind == "publish-failed"]


def alike(group: TrainGroup, reward: float) -> TrainGroup:
    return replace(group, completions=tuple(replace(c, reward=reward) for c in group.completions))


@pytest.mark.parametrize(("granted", "sent"), [(0, 0), (1, 1), (2, 2)])
async def test_groups_without_a_wrong_answer_travel_as_many_a_slot_as_granted(
    letters: Rules, plan: MakePlan, tmp_path: Path, granted: int, sent: int
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", publish__all_right_groups_per_slot=granted))
        reader = await lab.add(plan("b"))
        groups = [alike(group, 1.0) for group in await sampled(node, 3)]
        publisher = GroupPublisher(node.rooms)
        await publisher.publish([*groups, alike(groups[0], 0.0)])
        assert sum(len(f.groups) for f in await frames_of(node, reader)) == sent
        offered = [g for o in await reader.rooms.swarm.offers() for g in o.frame.groups]
        assert all(g.right == g.size for g in offered), "a receiver sees in the offer what they are"
        lab.clock.advance(30.0)
        await publisher.publish([groups[2]])
        assert node.rooms.store.totals().get(metrics.PUBLISHED_GROUPS, 0) == sent + bool(granted)


async def test_only_groups_with_right_and_wrong_answers_travel_freely(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, reader = await lab.add(plan("a")), await lab.add(plan("b"))
        (good, other) = await sampled(node, 2)
        await GroupPublisher(node.rooms).publish([good, alike(other, 0.0)])
        (frame,) = await frames_of(node, reader)
        assert [group_digest(g, node.rooms.swarm.node_id) for g in frame.groups] == [good.digest]
        assert frame.groups[0] == wire_group(good, Evidence.NONE)
        assert node.rooms.store.totals()[metrics.PUBLISHED_GROUPS] == 1
        assert node.rooms.store.totals()[metrics.PUBLISHED_TOKENS] == good.token_count


@pytest.mark.parametrize("evidence", list(Evidence))
async def test_the_tier_decides_what_is_told_about_the_policy(
    letters: Rules, plan: MakePlan, tmp_path: Path, evidence: Evidence
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, reader = await lab.add(plan("a", publish__evidence=evidence)), await lab.add(plan("b"))
        (group,) = await sampled(node, 1)
        await GroupPublisher(node.rooms).publish([group])
        (frame,) = await frames_of(node, reader)
        for completion in frame.groups[0].completions:
            assert completion.evidence is evidence


async def test_a_frame_that_is_too_large_goes_out_in_pieces(
    letters: Rules, plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, reader = await lab.add(plan("a")), await lab.add(plan("b"))
        groups = await sampled(node, 7)
        await GroupPublisher(node.rooms).publish(groups[:2])
        (two,) = [offer.frame.size_bytes for offer in await reader.rooms.swarm.offers()]
        limit_frames(monkeypatch, two + 10)
        await GroupPublisher(node.rooms).publish(groups[2:])
        frames = await frames_of(node, reader)
        assert len(frames) > 2
        assert all(len(frame.groups) <= 2 for frame in frames)
        assert {group_digest(g, node.rooms.swarm.node_id) for f in frames for g in f.groups} == {
            g.digest for g in groups
        }
        assert failures(node) == []


async def test_what_fits_nowhere_stays_here(
    letters: Rules, plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, reader = await lab.add(plan("a")), await lab.add(plan("b"))
        groups = await sampled(node, 3)
        limit_frames(monkeypatch, 100)
        publisher = GroupPublisher(node.rooms)
        await publisher.publish(groups)
        await publisher.publish(groups)
        assert await frames_of(node, reader) == []
        (text,) = failures(node)  # once a slot
        assert text.startswith("3 groups stay here: size")
        lab.clock.advance(30.0)
        await publisher.publish(groups)
        assert len(failures(node)) == 2
        assert metrics.PUBLISHED_GROUPS not in node.rooms.store.totals()


async def test_a_text_that_the_protocol_cannot_carry_keeps_only_itself_back(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, reader = await lab.add(plan("a")), await lab.add(plan("b"))
        groups = await sampled(node, 4)
        first = groups[2].completions[0]
        groups[2] = replace(groups[2], completions=(replace(first, text=LONG), *groups[2].completions[1:]))
        assert len(own_digest(node.rooms.swarm.node_id, groups[2].prompt.ref, groups[2].completions)) == 16
        await GroupPublisher(node.rooms).publish(groups)
        published = {group_digest(g, node.rooms.swarm.node_id) for f in await frames_of(node, reader) for g in f.groups}
        assert published == {groups[n].digest for n in (0, 1, 3)}
        assert len(failures(node)) == 1


async def test_more_groups_than_a_frame_holds(
    letters: Rules, plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "MAX_FRAME_GROUPS", 2)
    async with Lab(tmp_path, letters()) as lab:
        node, reader = await lab.add(plan("a")), await lab.add(plan("b"))
        groups = await sampled(node, 5)
        await GroupPublisher(node.rooms).publish(groups)
        assert sorted(len(f.groups) for f in await frames_of(node, reader)) == [1, 2, 2]


async def test_beyond_the_slice_it_trains_but_does_not_publish(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    rules = letters().model_copy(update={"slice_size": 6})
    async with Lab(tmp_path, rules) as lab:
        node, reader = await lab.add(plan("a", train__own_share=1.0)), await lab.add(plan("b"))
        for _ in range(3):  # twelve own groups in one slot
            await node.step()
        assert [p.value for p in node.rooms.store.points(metrics.OWN_GROUPS_DRAWN)] == [4, 4, 4]
        assert node.rooms.policy.version == 3
        indices = {g.prompt.index for f in await frames_of(node, reader) for g in f.groups}
        assert indices
        assert max(indices) < 6
