"""The swarm in memory: the common behaviour, and what only a board with a movable clock can show."""

from __future__ import annotations

import pytest

from ftis_node.clock import StepClock
from ftis_node.swarm import roster
from ftis_node.swarm.base import Swarm
from ftis_node.swarm.board import Write
from ftis_node.swarm.flow import Limit
from ftis_node.swarm.memory import MemoryNetwork, MemorySwarm
from ftis_protocol import limits
from ftis_protocol.errors import Reason
from ftis_protocol.identity import Identity
from ftis_protocol.keys import body_key
from swarm.behaviour import Arena, SwarmBehaviour
from swarm.builders import card, frame, manifest


class MemoryArena(Arena):
    def __init__(self, shards: int = 1) -> None:
        self.clock = StepClock(1_700_000_010.0)
        self.network = MemoryNetwork(self.clock)
        self.manifest = manifest(shards=shards)

    async def node(self, identity: Identity | None = None) -> Swarm:
        node = MemorySwarm(self.network, identity or Identity.create(), self.manifest)
        await node.start()
        return node

    def let_a_moment_pass(self) -> None:
        self.clock.advance(0.01)

    async def store_as_stranger(self, write: Write) -> bool:
        return self.network.store(write)


@pytest.fixture(params=[1, 5], ids=["one shard", "five shards"])
def arena(request: pytest.FixtureRequest) -> MemoryArena:
    return MemoryArena(request.param)


class TestMemorySwarm(SwarmBehaviour):
    async def test_a_silent_peer_expires(self, arena: MemoryArena):
        one, two = await arena.node(), await arena.node()
        await one.announce(card())
        await two.peers()
        arena.clock.advance(limits.CARD_LIFETIME_SECONDS - 1)
        (peer,) = await two.peers()
        assert peer.age == pytest.approx(limits.CARD_LIFETIME_SECONDS - 1, abs=1.0)
        arena.clock.advance(limits.MAX_CLOCK_SKEW_SECONDS + 2)
        assert await two.peers() == ()

    async def test_frames_and_offers_expire(self, arena: MemoryArena):
        one, two = await arena.node(), await arena.node()
        published = await one.publish(frame(arena.slot()))
        arena.clock.advance(limits.BODY_LIFETIME_SECONDS + 1)
        assert await two.fetch(published.digest) is None
        assert await two.offers(slots=100) == ()

    async def test_old_slots_are_out_of_reach(self, arena: MemoryArena):
        one, two = await arena.node(), await arena.node()
        await one.publish(frame(arena.slot()))
        arena.clock.advance(3 * arena.manifest.slot_seconds)
        assert await two.offers(slots=3) == ()
        if arena.manifest.shard_count == 1:  # with more shards a call reads a sample of them
            assert len(await two.offers(slots=4)) == 1

    async def test_a_lost_frame_comes_back_while_its_author_lives(self, arena: MemoryArena):
        one, two = await arena.node(), await arena.node()
        published = await one.publish(frame(arena.slot()))
        assert arena.network.forget(published.digest)
        assert await two.fetch(published.digest) is None
        arena.clock.advance(61)
        assert await one.renew() == 1
        assert await two.fetch(published.digest) is not None
        arena.clock.advance(limits.BODY_LIFETIME_SECONDS - 60)
        assert await one.renew() == 0
        assert await two.fetch(published.digest) is None

    async def test_a_lost_offer_comes_back_while_its_author_lives(self, arena: MemoryArena):
        one, two = await arena.node(), await arena.node()
        published = await one.publish(frame(arena.slot()))
        assert arena.network.forget_entry(arena.offers_key(one.node_id, arena.slot()), one.node_id)
        assert await two.offers(slots=4) == ()
        assert await one.renew() == 0, "looked at a moment ago"
        arena.clock.advance(61)
        assert await one.renew() == 1
        assert [offer.frame.digest for offer in await two.offers(slots=4)] == [published.digest]
        arena.clock.advance(limits.BODY_LIFETIME_SECONDS)
        assert await one.renew() == 0

    async def test_an_older_offer_in_the_place_of_ours_is_noticed(self, arena: MemoryArena):
        one, two = await arena.node(), await arena.node()
        await one.publish(frame(arena.slot()))
        key = arena.offers_key(one.node_id, arena.slot())
        older = arena.network.entries(key)[one.node_id]
        await one.publish(frame(arena.slot(), 1))
        arena.network.place(Write(key, older, arena.clock.now() + 500, one.node_id))
        assert len(await two.offers(slots=2)) == 1
        arena.clock.advance(61)
        assert await one.renew() == 1
        assert len(await two.offers(slots=4)) == 2

    async def test_a_list_of_peers_has_an_end(self, arena: MemoryArena, monkeypatch):
        monkeypatch.setattr(roster, "MAX_REMEMBERED", 3)
        nodes = [await arena.node() for _ in range(5)]
        for node in nodes:
            await node.announce(card())
        assert len(await nodes[0].peers()) <= 3
        assert nodes[0].limited[Limit.ROSTER] == 2

    async def test_a_frame_published_into_silence_is_stored_later(self, arena: MemoryArena):
        one, two = await arena.node(), await arena.node()
        arena.network.cut(one.node_id)
        published = await one.publish(frame(arena.slot()))
        assert not published.stored
        assert await two.offers(slots=2) == ()
        arena.network.heal(one.node_id)
        assert await one.renew() == 1
        (offer,) = await two.offers(slots=2)
        assert await two.fetch(offer.frame.digest) is not None

    async def test_silence_shows_in_health_and_never_raises(self, arena: MemoryArena):
        one, two = await arena.node(), await arena.node()
        await two.announce(card())
        await one.peers()
        assert one.health.alone_for is None
        assert one.health.connections == 1
        arena.network.cut(one.node_id)
        arena.clock.advance(limits.CARD_LIFETIME_SECONDS + 5)
        assert not await one.announce(card())
        assert await one.peers() == ()
        assert await one.offers() == ()
        assert await one.fetch(bytes(32)) is None
        arena.clock.advance(10)
        health = one.health
        assert (health.known_peers, health.connections) == (0, 0)
        assert health.failures >= 4
        assert health.alone_for == pytest.approx(10)
        assert health.last_success_age == pytest.approx(limits.CARD_LIFETIME_SECONDS + 15)

    async def test_a_lying_storing_node_is_caught_by_the_reader(self, arena: MemoryArena):
        one, two = await arena.node(), await arena.node()
        mallory = Identity.create()
        expires = arena.clock.now() + 30
        arena.network.place(Write(arena.presence_key(one.node_id), arena.seal(card(), mallory), expires, one.node_id))
        arena.network.place(Write(arena.presence_key(mallory.node_id), b"\xff\x00garbage", expires, mallory.node_id))
        assert await two.peers() == ()
        assert two.refused[Reason.SIGNATURE] == 1
        assert two.refused.total() == 2
        digest = b"\x01" * 32
        arena.network.place(Write(body_key(digest), b"not that frame", expires))
        assert await two.fetch(digest) is None
        assert two.refused[Reason.DIGEST] == 1

    async def test_one_bad_entry_does_not_hide_the_good_ones(self, arena: MemoryArena):
        nodes = [await arena.node() for _ in range(5)]
        for node in nodes:
            await node.announce(card())
        arena.network.place(Write(arena.presence_key(nodes[0].node_id), b"junk", arena.clock.now() + 30, "junk"))
        assert len(await nodes[0].peers()) == 4

    async def test_another_swarm_on_the_same_board_is_invisible(self, arena: MemoryArena):
        one = await arena.node()
        other = MemorySwarm(arena.network, Identity.create(), manifest("other"))
        await other.start()
        await other.announce(card())
        await other.publish(frame(arena.slot()))
        assert await one.peers() == ()
        assert await one.offers() == ()

    async def test_sequences_grow_over_a_restart(self, arena: MemoryArena):
        identity = Identity.create()
        reader = await arena.node()
        one = await arena.node(identity)
        await one.announce(card())
        (before,) = await reader.peers()
        await one.close()
        arena.clock.advance(0.5)
        again = await arena.node(identity)
        await again.announce(card(version=9))
        (after,) = await reader.peers()
        assert after.sequence > before.sequence
        assert after.card.policy_version == 9
