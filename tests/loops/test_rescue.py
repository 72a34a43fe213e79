"""The rescue rule through all rooms: what is fetched, drawn and trained while a node fails a task, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftis_node import metrics
from ftis_node.admission.success import Success, skill_of
from ftis_node.admission.surprise import Surprise
from ftis_node.app import Node
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.swarm.memory import MemorySwarm
from ftis_node.tasks.registry import build
from ftis_protocol.identity import Identity
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, PolicyRef, PromptRef, item_seed
from letters import is_right

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]
POLICY = PolicyRef(model="m", revision="", tokenizer="aa", trainable="full")
UNUSED_SURPRISE = metrics.series(metrics.FOREIGN_GROUPS_UNUSED, "surprise")


class Peer:
    """A member that publishes groups of its own slice, right answers and wrong ones as wanted."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.swarm = MemorySwarm(lab.network, Identity.create(), lab.manifest)

    async def publish(self, *rights: tuple[bool, ...]) -> None:
        """One frame with a group for each tuple."""
        slot = int(self.lab.clock.now() // self.lab.manifest.slot_seconds)
        groups = tuple(self._group(slot, index, right) for index, right in enumerate(rights))
        await self.swarm.publish(Frame(slot=slot, policy=POLICY, groups=groups))

    def _group(self, slot: int, index: int, rights: tuple[bool, ...]) -> Group:
        seed = item_seed(self.lab.manifest.swarm_id, self.swarm.node_id, slot, "letters", 1)
        item = build(self.lab.manifest.tasks[0]).item(seed, index)
        texts = [next(t for t in ("aaa", "bbb") if is_right(item, t) is right) for right in rights]
        completions = tuple(
            Completion(text=t, finish=Finish.LENGTH, reward=float(r)) for t, r in zip(texts, rights, strict=True)
        )
        ref = PromptRef(task="letters", version=1, slot=slot, index=index)
        return Group(prompt=ref, policy_version=0, evidence=Evidence.NONE, completions=completions)


def remember(node: Node, rate: float, usual_nats: float) -> None:
    """Give the node a past: its success, and what its own text costs it."""
    skill = skill_of(node.rooms.manifest.tasks[0])
    node.rooms.judge.record.success[skill] = Success(rate, rescuing=rate < 0.1)
    node.rooms.judge.record.surprise[skill] = Surprise(1000, usual_nats, 0.1)


def total(node: Node, name: str) -> float:
    return node.rooms.store.totals().get(name, 0)


def last(node: Node, name: str) -> float:
    return node.rooms.store.points(name)[-1].value


@pytest.mark.parametrize("rights", [(True, True, True), (True, False, True)])
async def test_a_failing_node_learns_right_texts_at_full_weight(
    letters: Rules, plan: MakePlan, tmp_path: Path, rights: tuple[bool, ...]
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, peer = await lab.add(plan("a")), Peer(lab)
        remember(node, 0.02, usual_nats=8.0)  # every text is within the gate of 9.5
        await peer.publish(rights)
        await node.step()
        assert total(node, metrics.RESCUE_TEXTS) == sum(rights)
        assert last(node, metrics.RESCUE_ACTIVE) == 1
        assert last(node, metrics.FOREIGN_WEIGHT) == pytest.approx(1.0)
        (used,) = [v for v in node.rooms.store.verdicts() if v.used_step is not None]
        assert used.verdict == ("rescue_only" if all(rights) else "admitted")
        assert node.rooms.store.peers()[0].accepted == 1


async def test_spam_does_nothing(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, peer = await lab.add(plan("a")), Peer(lab)
        remember(node, 0.02, usual_nats=0.5)  # a random model finds every text worse than the gate of 2
        await peer.publish((True, True, True), (True, False, True))
        await node.step()
        assert last(node, metrics.FOREIGN_GROUPS_DRAWN) == 2
        assert total(node, metrics.RESCUE_TEXTS) == total(node, metrics.FOREIGN_GROUPS_USED) == 0
        assert total(node, UNUSED_SURPRISE) == 2


async def test_who_does_not_fail_neither_fetches_nor_draws_them(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, peer = await lab.add(plan("a")), Peer(lab)
        remember(node, 0.5, usual_nats=8.0)
        await peer.publish((True, True))
        await node.step()
        assert total(node, metrics.FETCHED_FRAMES) == 0
        await Peer(lab).publish((True, True), (True, False))  # beside a mixed group it comes along
        await node.step()
        assert (total(node, metrics.FETCHED_FRAMES), last(node, metrics.FOREIGN_GROUPS_DRAWN)) == (1, 1)
        (waiting,) = node.rooms.foreign.waiting
        assert waiting.all_right
        assert node.exchange._in_hand == 0, "it takes no place of groups that could train"
        assert total(node, metrics.RESCUE_TEXTS) == last(node, metrics.RESCUE_ACTIVE) == 0
        remember(node, 0.02, usual_nats=8.0)
        await node.step()
        assert waiting.digest in {v.digest for v in node.rooms.store.verdicts() if v.used_step == 3}, "until needed"


async def test_before_the_first_block_foreign_groups_wait(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, peer = await lab.add(plan("a")), Peer(lab)
        await peer.publish((True, False), (False, True))
        drawn = []
        for _ in range(3):  # 16 own completions each
            await node.step()
            drawn.append(last(node, metrics.FOREIGN_GROUPS_DRAWN))
        assert drawn == [0, 0, 2]
        assert total(node, metrics.FOREIGN_ADMITTED) == 2


async def test_switched_off_it_changes_nothing(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node, peer = await lab.add(plan("a", receive__rescue=False)), Peer(lab)
        await peer.publish((True, False), (True, True))
        await node.step()
        assert last(node, metrics.FOREIGN_GROUPS_DRAWN) == 1
        assert total(node, metrics.RESCUE_TEXTS) == 0


async def test_what_own_text_says_survives_a_restart(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        await lab.rounds(3)
        remember_now = node.rooms.judge.record
        await node.save()
        await lab.remove(node)
        again = await lab.add(plan("a"))
        assert again.rooms.judge.record == remember_now
        (success,) = again.rooms.judge.record.success.values()
        assert success.rate is not None
        assert success.count == 16


async def test_a_rescue_goes_on_after_a_restart(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        remember(node, 0.02, usual_nats=8.0)
        await node.step()
        await node.save()
        await lab.remove(node)
        again, peer = await lab.add(plan("a")), Peer(lab)
        await peer.publish((True, True))
        await again.step()
        assert total(again, metrics.RESCUE_TEXTS) == 2
