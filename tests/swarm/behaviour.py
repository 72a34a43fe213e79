"""What every swarm promises, whatever board it runs on. Subclasses bring the `arena` fixture."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

import pytest

from ftis_node.clock import Clock
from ftis_node.swarm.base import Swarm
from ftis_node.swarm.board import Write
from ftis_protocol import limits
from ftis_protocol.envelope import seal
from ftis_protocol.errors import ProtocolError, Reason
from ftis_protocol.identity import Identity
from ftis_protocol.keys import body_digest, body_key, offers_key, presence_key, shard_of
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.presence import Departure, Offer
from swarm.builders import POLICY, card, frame, group


class Arena(ABC):
    """Nodes of one swarm on one board, and the ways a test may mistreat them."""

    manifest: SwarmManifest
    clock: Clock

    @abstractmethod
    async def node(self, identity: Identity | None = None) -> Swarm:
        """A started member, closed at the end of the test."""

    @abstractmethod
    async def store_as_stranger(self, write: Write) -> bool:
        """Store a record without the care of `BoardSwarm`; True when a storing node took it."""

    def let_a_moment_pass(self) -> None:  # noqa: B027 - real time passes by itself
        """Move a clock that would stand still otherwise."""

    def slot(self) -> int:
        return int(self.clock.now() // self.manifest.slot_seconds)

    def seal(self, message, identity: Identity, *, age: float = 0.0, sequence: int | None = None) -> bytes:
        now = self.clock.now() - age
        number = int(now * 1000) if sequence is None else sequence
        return seal(message, identity, self.manifest.swarm_id, number, now)

    def presence_key(self, node_id: str) -> str:
        return presence_key(self.manifest.swarm_id, shard_of(node_id, 1))  # so few nodes have one shard

    def offers_key(self, node_id: str, slot: int) -> str:
        return offers_key(self.manifest.swarm_id, shard_of(node_id, 1), slot)


class SwarmBehaviour:
    async def test_a_card_is_seen_by_the_others_and_not_by_its_owner(self, arena: Arena):
        one, two = await arena.node(), await arena.node()
        assert await one.announce(card("one", version=7))
        seen = await two.peers()
        assert [(peer.node_id, peer.card.name, peer.card.policy_version) for peer in seen] == [(one.node_id, "one", 7)]
        assert 0 <= seen[0].age < 3
        assert seen[0].card.addresses == one.addresses
        assert await one.peers() == ()
        assert (one.health.known_peers, two.health.known_peers) == (0, 1)

    async def test_the_newest_card_counts(self, arena: Arena):
        one, two = await arena.node(), await arena.node()
        for version in range(4):
            assert await one.announce(card(version=version))
        assert [peer.card.policy_version for peer in await two.peers()] == [3]

    async def test_a_departed_node_is_gone_at_once_and_may_come_back(self, arena: Arena):
        one, two = await arena.node(), await arena.node()
        await one.announce(card())
        assert len(await two.peers()) == 1
        assert two.health.known_peers == 1
        await one.depart("maintenance\n tonight")
        assert await two.peers() == ()
        assert two.health.known_peers == 0
        await one.announce(card(version=1))
        assert len(await two.peers()) == 1

    async def test_a_frame_travels_whole(self, arena: Arena):
        one, two = await arena.node(), await arena.node()
        sent = frame(arena.slot(), text="twelve")
        published = await one.publish(sent, tokens=[9])
        assert published.stored
        assert published.offer_bytes > 0
        (offer,) = await two.offers(slots=2)
        assert (offer.node_id, offer.slot, offer.frame.digest) == (one.node_id, sent.slot, published.digest)
        assert offer.frame.size_bytes == published.body_bytes
        assert [(g.right, g.size, g.tokens) for g in offer.frame.groups] == [(1, 2, 9)]
        data = await two.fetch(offer.frame.digest)
        assert data is not None
        assert len(data) == published.body_bytes
        assert body_digest(data) == published.digest
        assert two.traffic.read["body"] == len(data)
        assert await one.offers(slots=2) == ()

    async def test_the_offer_of_a_slot_grows(self, arena: Arena):
        one, two = await arena.node(), await arena.node()
        digests = {(await one.publish(frame(arena.slot(), index))).digest for index in range(3)}
        assert {offer.frame.digest for offer in await two.offers(slots=2)} == digests

    async def test_a_restarted_node_keeps_what_it_offered_before(self, arena: Arena):
        identity = Identity.create()
        one, reader = await arena.node(identity), await arena.node()
        first = await one.publish(frame(arena.slot(), 0))
        await one.close()
        arena.let_a_moment_pass()
        again = await arena.node(identity)
        second = await again.publish(frame(arena.slot(), 1))
        assert {o.frame.digest for o in await reader.offers(slots=2)} == {first.digest, second.digest}

    async def test_offers_are_a_bounded_random_sample(self, arena: Arena):
        one, two = await arena.node(), await arena.node()
        for index in range(6):
            await one.publish(frame(arena.slot(), index))
        assert len(await two.offers(slots=2, limit=4)) == 4
        assert len({o.frame.digest for o in await two.offers(slots=2)}) == 6

    async def test_nobody_has_an_unknown_frame(self, arena: Arena):
        one = await arena.node()
        assert await one.fetch(bytes(32)) is None

    async def test_a_frame_above_the_limit_is_refused_at_the_sender(self, arena: Arena):
        one, two = await arena.node(), await arena.node()
        noise = random.Random(1)
        texts = ["".join(chr(noise.randrange(0x4E00, 0x9FA5)) for _ in range(20_000)) for _ in range(30)]
        groups = tuple(group(arena.slot(), index, text) for index, text in enumerate(texts))
        large = frame(arena.slot()).model_copy(update={"groups": groups, "policy": POLICY})
        with pytest.raises(ProtocolError) as caught:
            await one.publish(large)
        assert caught.value.reason is Reason.SIZE
        assert str(limits.MAX_FRAME_BYTES) in str(caught.value)
        assert "split" in caught.value.hint
        assert await two.offers(slots=2) == ()

    async def test_what_others_lost_is_stored_again(self, arena: Arena):
        one = await arena.node()
        await one.publish(frame(arena.slot()))
        assert await one.renew() == 0

    async def test_nobody_writes_in_anothers_name(self, arena: Arena):
        one, two = await arena.node(), await arena.node()
        mallory = Identity.create()
        now = arena.clock.now()
        forged = arena.seal(card("not one"), mallory)
        assert not await arena.store_as_stranger(
            Write(arena.presence_key(one.node_id), forged, now + 30, subkey=one.node_id)
        )
        offer = arena.seal(Offer(slot=arena.slot(), frames=()), mallory)
        assert not await arena.store_as_stranger(
            Write(arena.offers_key(one.node_id, arena.slot()), offer, now + 30, subkey=one.node_id)
        )
        farewell = arena.seal(Departure(reason="gone"), mallory)
        assert not await arena.store_as_stranger(
            Write(arena.presence_key(one.node_id), farewell, now + 30, subkey=one.node_id)
        )
        await one.announce(card("one"))
        assert [peer.card.name for peer in await two.peers()] == ["one"]

    async def test_a_changed_record_is_refused(self, arena: Arena):
        await arena.node()
        author = Identity.create()
        now = arena.clock.now()
        data = bytearray(arena.seal(card(), author))
        data[-70] ^= 1
        write = Write(arena.presence_key(author.node_id), bytes(data), now + 30, subkey=author.node_id)
        assert not await arena.store_as_stranger(write)
        body = arena.seal(frame(arena.slot()), author)
        key = body_key(body_digest(body))
        assert not await arena.store_as_stranger(Write(key, body + b"\0", now + 30))
        assert await arena.store_as_stranger(Write(key, body, now + 30))

    async def test_nothing_is_kept_longer_than_its_kind(self, arena: Arena):
        await arena.node()
        author = Identity.create()
        now = arena.clock.now()
        data = arena.seal(card(), author)
        years = now + 50 * 365 * 86_400
        for expires_at in (years, now + limits.CARD_LIFETIME_SECONDS + 60, float("inf"), float("nan")):
            write = Write(arena.presence_key(author.node_id), data, expires_at, subkey=author.node_id)
            assert not await arena.store_as_stranger(write)
        body = arena.seal(frame(arena.slot()), author)
        assert not await arena.store_as_stranger(Write(body_key(body_digest(body)), body, years))

    async def test_last_weeks_card_cannot_be_replayed(self, arena: Arena):
        node = await arena.node()
        author = Identity.create()
        now = arena.clock.now()
        old = arena.seal(card(), author, age=7 * 86_400)
        write = Write(arena.presence_key(author.node_id), old, now + 30, subkey=author.node_id)
        assert not await arena.store_as_stranger(write)
        early = arena.seal(card(), author, age=-3_600)
        write = Write(arena.presence_key(author.node_id), early, now + 30, subkey=author.node_id)
        assert not await arena.store_as_stranger(write)
        assert await node.peers() == ()

    async def test_values_of_other_programs_are_refused(self, arena: Arena):
        await arena.node()
        now = arena.clock.now()
        assert not await arena.store_as_stranger(Write("my-app/metrics", b"hello", now + 30))
        assert not await arena.store_as_stranger(Write("my-app/peers", b"hello", now + 30, subkey="me"))
        assert not await arena.store_as_stranger(Write(body_key(bytes(32)), b"x" * (2 * 1024 * 1024), now + 30))

    async def test_closing_twice_is_fine(self, arena: Arena):
        one = await arena.node()
        await one.close()
        await one.close()
