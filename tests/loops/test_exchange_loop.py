"""The foreign side: what a round costs, what it takes, and what a liar gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.loops.retries import ATTEMPTS, FIRST_PAUSE_SECONDS, JITTER
from ftis_node.swarm.base import PeerOffer
from ftis_node.swarm.board import Write
from ftis_node.swarm.memory import MemorySwarm
from ftis_node.tasks.registry import build
from ftis_protocol.envelope import seal
from ftis_protocol.identity import Identity
from ftis_protocol.keys import body_digest, body_key, offers_key, shard_of
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.presence import Offer, OfferedFrame, OfferedGroup
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, PolicyRef, PromptRef, item_seed
from letters import is_right

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]
POLICY = PolicyRef(model="m", revision="", tokenizer="aa", trainable="full")
MIXED = OfferedGroup(task="letters", version=1, right=1, size=2, tokens=4)


class Liar:
    """A member with a key of its own that puts on the board whatever it likes."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.identity = Identity.create()
        self.swarm = MemorySwarm(lab.network, self.identity, lab.manifest)

    @property
    def slot(self) -> int:
        return int(self.lab.clock.now() // self.lab.manifest.slot_seconds)

    def frame(self, index: int, *, lying: bool = True) -> Frame:
        """One group of two texts, one right and one wrong (see letters.py), and the claims about them."""
        seed = item_seed(self.lab.manifest.swarm_id, self.identity.node_id, self.slot, "letters", 1)
        item = build(self.lab.manifest.tasks[0]).item(seed, index)
        texts = ("bbb", "aaa")
        rewards = [float(is_right(item, text) is not lying) for text in texts]
        completions = tuple(
            Completion(text=t, finish=Finish.LENGTH, reward=r) for t, r in zip(texts, rewards, strict=True)
        )
        ref = PromptRef(task="letters", version=1, slot=self.slot, index=index)
        group = Group(prompt=ref, policy_version=0, evidence=Evidence.NONE, completions=completions)
        return Frame(slot=self.slot, policy=POLICY, groups=(group,))

    def offer_bytes(self, *bodies: bytes) -> None:
        """Store bodies unchecked and offer them under this node's name."""
        expires = self.lab.clock.now() + 60
        frames = tuple(
            OfferedFrame(digest=body_digest(b), size_bytes=len(b), policy_version=0, groups=(MIXED,)) for b in bodies
        )
        for body in bodies:
            self.lab.network.place(Write(body_key(body_digest(body)), body, expires))
        sealed = self.sealed(Offer(slot=self.slot, frames=frames))
        shard = shard_of(self.identity.node_id, self.lab.manifest.shard_count)
        key = offers_key(self.lab.manifest.swarm_id, shard, self.slot)
        self.lab.network.place(Write(key, sealed, expires, self.identity.node_id))

    def sealed(self, message: Offer | Frame, identity: Identity | None = None) -> bytes:
        now = self.lab.clock.now()
        return seal(message, identity or self.identity, self.lab.manifest.swarm_id, 1, now)


def refused(node: Node) -> dict[str, float]:
    name = metrics.FOREIGN_REFUSED
    totals = node.rooms.store.totals()
    return {key.removeprefix(f'{name}{{reason="')[:-2]: value for key, value in totals.items() if key.startswith(name)}


async def test_a_liar_is_counted_and_the_honest_are_used(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", receive__groups_per_step=16))
        honest = await lab.add(plan("b", model=1))
        await lab.rounds(2)  # 32 own completions: from now on it knows its own success and draws foreign groups
        liar = Liar(lab)
        liar.offer_bytes(
            liar.sealed(liar.frame(0)),
            b"\x00garbage\xff" * 20,
            liar.sealed(liar.frame(1, lying=False), Identity.create()),
        )
        admitted = node.rooms.store.totals().get(metrics.FOREIGN_ADMITTED, 0)
        await node.step()
        assert refused(node) == {"reward_mismatch": 1, "schema": 1, "signature": 1}
        counts = node.rooms.store.counts()
        assert (
            counts["refused", "reward_mismatch"] == counts["refused", "schema"] == counts["refused", "signature"] == 1
        )
        tally = {peer.node_id: (peer.accepted, peer.refused) for peer in node.rooms.store.peers()}
        assert tally[liar.identity.node_id] == (0, 3)
        assert tally[honest.rooms.swarm.node_id][0] > 0
        assert node.rooms.store.totals()[metrics.FOREIGN_ADMITTED] > admitted
        used = {v.author for v in node.rooms.store.verdicts() if v.used_step is not None}
        assert used == {honest.rooms.swarm.node_id}
        assert node.train.step == 3


async def test_the_same_peer_telling_the_truth_is_admitted(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    """So that the refusals above are about the lies."""
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        peer = Liar(lab)
        peer.offer_bytes(peer.sealed(peer.frame(0, lying=False)))
        await node.exchange.once()
        assert refused(node) == {}
        assert len(node.rooms.foreign) == 1


async def test_a_frame_that_vanished_is_asked_for_again_and_used_when_it_is_back(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        peer = Liar(lab)
        body = peer.sealed(peer.frame(0, lying=False))
        peer.offer_bytes(body)
        lab.network.forget(body_digest(body))
        await node.exchange.once()
        await node.exchange.once()
        assert node.rooms.store.totals()[metrics.MISSING_FRAMES] == 1, "not at once again"
        peer.offer_bytes(body)
        lab.clock.advance(FIRST_PAUSE_SECONDS * (1 + JITTER))
        await node.exchange.once()
        assert len(node.rooms.foreign) == 1
        assert node.rooms.store.totals()[metrics.MISSING_FRAMES] == 1


async def test_a_frame_that_stays_away_is_given_up(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        peer = Liar(lab)
        body = peer.sealed(peer.frame(0, lying=False))
        for _ in range(20):
            peer.offer_bytes(body)
            lab.network.forget(body_digest(body))
            await node.exchange.once()
            lab.clock.advance(30.0)
        totals = node.rooms.store.totals()
        assert totals[metrics.MISSING_FRAMES] == ATTEMPTS
        assert totals[metrics.LOST_FRAMES] == 1


async def test_frames_are_not_fetched_again_after_a_restart(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        peer = Liar(lab)
        peer.offer_bytes(peer.sealed(peer.frame(0)))
        await node.exchange.once()
        await lab.remove(node)
        node = await lab.add(plan("a"))
        await node.exchange.once()
        assert node.rooms.store.totals()[metrics.FETCHED_FRAMES] == 1
        assert refused(node) == {"reward_mismatch": 1}


async def test_a_full_node_fetches_nothing(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    """The appetite is two steps' worth; a round never costs more than that."""
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", receive__groups_per_step=1))
        peer = Liar(lab)
        peer.offer_bytes(*[peer.sealed(peer.frame(index, lying=False)) for index in range(5)])
        await node.exchange.once()
        assert len(node.rooms.foreign) == 2
        await node.exchange.once()
        assert node.rooms.store.totals()[metrics.FETCHED_FRAMES] == 2


async def test_without_exchange_nothing_is_published_or_fetched(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", receive__exchange=False))
        other = await lab.add(plan("b", model=1))
        await lab.rounds(3)
        mine, theirs = node.rooms.swarm, other.rooms.swarm
        assert mine.traffic.written["body"] == mine.traffic.read["body"] == 0
        assert theirs.traffic.written["body"] > 0
        assert theirs.traffic.read["body"] == 0, "there was nothing to read"
        assert node.rooms.store.totals()[metrics.FOREIGN_GROUPS_DRAWN] == 0
        assert node.rooms.states.state == "working", "it still shows itself and sees others"


async def test_a_silent_swarm_is_an_event_and_training_goes_on(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        await lab.add(plan("b", model=1))
        await lab.rounds(2)
        assert node.rooms.states.state == "working"
        lab.network.cut(node.rooms.swarm.node_id)
        await lab.rounds(9)
        assert node.rooms.states.state == "alone"
        assert node.rooms.store.fact("alone_since") is not None
        kinds = {event.kind for event in node.rooms.store.events()}
        assert {"announce-failed", "publish-pending"} <= kinds
        assert node.train.step == 11
        lab.network.heal(node.rooms.swarm.node_id)
        await lab.rounds(3)
        assert node.rooms.states.state == "working"
        assert node.rooms.store.fact("alone_since") is None


async def test_peers_take_turns_and_fresh_frames_come_first(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        offers = [
            PeerOffer(
                peer, slot, OfferedFrame(digest=bytes([n, slot] * 16), size_bytes=9, policy_version=0, groups=(g,))
            )
            for n, peer in enumerate(("a" * 26, "b" * 26))
            for slot in (1, 3, 2)
            for g in (MIXED,)
        ]
        dull = OfferedFrame(
            digest=bytes(32), size_bytes=9, policy_version=0, groups=(MIXED.model_copy(update={"right": 2}),)
        )
        chosen = node.exchange._choose([*offers, PeerOffer("a" * 26, 9, dull)])
        assert [offer.slot for offer in chosen] == [3, 3, 2, 2, 1, 1]
        assert len({offer.node_id for offer in chosen[:2]}) == 2
        assert chosen == node.exchange._choose([*reversed(offers)]), "whatever order the board gives"


@pytest.mark.parametrize("role", ["seed", "observer"])
async def test_a_seed_is_no_company(letters: Rules, plan: MakePlan, tmp_path: Path, role: str) -> None:
    from ftis_protocol.presence import NodeCard

    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        other = Liar(lab).swarm
        await other.start()
        await other.announce(NodeCard(name="s", role=role, state="working"))
        await node.exchange.once()
        assert node.rooms.states.state == "alone"
        assert node.rooms.store.fact("peers") == 1
        await other.close()
