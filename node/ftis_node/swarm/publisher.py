"""Putting this node's frames on the board, and keeping them there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ftis_node.clock import Clock
from ftis_node.swarm.author import Author
from ftis_node.swarm.base import Published
from ftis_node.swarm.board import Write
from ftis_node.swarm.link import Link
from ftis_node.swarm.outbox import Outbox, OwnFrame, describe
from ftis_node.swarm.reading import read_offer
from ftis_protocol.errors import ProtocolError
from ftis_protocol.keys import body_digest, body_key, offers_key
from ftis_protocol.limits import OFFER_LIFETIME_SECONDS
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.presence import Offer
from ftis_protocol.rollout import Frame

# A frame or offer is looked up this long after it was last seen, to find out whether others lost it.
RECHECK_SECONDS = 60.0
# Frames looked up in one renewal, so that publishing never waits long for it; the rest have their turn in the next.
MAX_RECHECKS = 32


@dataclass(slots=True)
class _OwnOffer:
    """The offer of one slot: where it is filed and how it was last stored. It stays in its shard although the swarm
    may grow meanwhile."""

    shard: int
    write: Write | None = None
    checked_at: float = 0.0


class Publisher:
    """Publishes for one node. Its offer of a slot only grows and lists only frames that a storing node confirmed."""

    def __init__(
        self, link: Link, author: Author, manifest: SwarmManifest, clock: Clock, home: Callable[[], int]
    ) -> None:
        self._link = link
        self._author = author
        self._manifest = manifest
        self._swarm_id = manifest.swarm_id
        self._clock = clock
        self._home = home
        self._offers: dict[int, _OwnOffer] = {}
        self._outbox = Outbox()
        self._turn = asyncio.Lock()
        self._has_published = False

    def own(self, digest: bytes) -> bytes | None:
        """The sealed bytes of an own frame that is still remembered."""
        return self._outbox.get(digest)

    async def publish(self, frame: Frame, tokens: Sequence[int] | None) -> Published:
        """See `Swarm.publish`."""
        async with self._turn:
            data = self._author.seal(frame)
            offered = describe(frame, body_digest(data), len(data), tokens)
            self._outbox.alive(self._clock.now())
            await self._adopt_earlier_run(frame.slot)
            # Sealed once on trial: a slot whose offer is full refuses the frame before anything left this node.
            self._author.seal(Offer.build(slot=frame.slot, frames=(*self._outbox.offered(frame.slot), offered)))
            own = OwnFrame(frame.slot, offered, data, self._clock.now())
            self._outbox.add(own)
            offer_bytes = await self._put_offer(frame.slot) if await self._put_body(own) else 0
            return Published(offered.digest, len(data), offer_bytes, offered.groups, offer_bytes > 0)

    async def renew(self) -> int:
        """See `Swarm.renew`."""
        async with self._turn:
            alive = self._outbox.alive(self._clock.now())
            slots = {own.slot for own in alive}
            self._offers = {slot: offer for slot, offer in self._offers.items() if slot in slots}
            in_turn = sorted(alive, key=lambda own: own.checked_at)[:MAX_RECHECKS]
            renewed = [own for own in in_turn if await self._lost(own) and await self._put_body(own)]
            incomplete = {own.slot for own in renewed}
            gone = [slot for slot in slots - incomplete if await self._offer_lost(slot)]
            restored = [slot for slot in (*incomplete, *gone) if await self._put_offer(slot)]
            return len(renewed) + len([slot for slot in restored if slot in gone])

    async def _adopt_earlier_run(self, slot: int) -> None:
        """A node that restarted within a slot must not wipe what it offered in that slot before."""
        if self._has_published:
            return
        shard = self._offer(slot).shard
        key = offers_key(self._swarm_id, shard, slot)
        found = (await self._link.dictionaries("offer", [key])).get(key, {})
        mine = found.get(self._author.node_id)
        if mine is not None:
            try:
                offer = read_offer(mine, self._manifest, self._author.node_id, shard, slot, self._clock.now())
            except ProtocolError:
                pass  # somebody else's forgery under our name: not ours to continue
            else:
                self._outbox.adopt(slot, offer.frames)
        self._has_published = True

    async def _put_body(self, own: OwnFrame) -> bool:
        own.stored = await self._link.put("body", _body(own, own.next_expiry()))
        own.checked_at = self._clock.now()
        return own.stored

    def _offer(self, slot: int) -> _OwnOffer:
        if slot not in self._offers:
            self._offers[slot] = _OwnOffer(self._home())
        return self._offers[slot]

    async def _put_offer(self, slot: int) -> int:
        """Store the offer of `slot`; its bytes, or 0 when nobody took it."""
        offer = self._offer(slot)
        data = self._author.seal(Offer.build(slot=slot, frames=self._outbox.offered(slot)))
        expires = self._author.expiry(OFFER_LIFETIME_SECONDS)
        write = Write(offers_key(self._swarm_id, offer.shard, slot), data, expires, self._author.node_id)
        stored = await self._link.put("offer", write)
        offer.write, offer.checked_at = (write if stored else None), self._clock.now()
        return len(data) if stored else 0

    async def _offer_lost(self, slot: int) -> bool:
        offer = self._offer(slot)
        if not self._outbox.offered(slot):
            return False
        if offer.write is None:
            return True
        if self._clock.now() - offer.checked_at < RECHECK_SECONDS:
            return False
        offer.checked_at = self._clock.now()
        return await self._link.vanished(offer.write)

    async def _lost(self, own: OwnFrame) -> bool:
        if not own.stored:
            return True
        if self._clock.now() - own.checked_at < RECHECK_SECONDS:
            return False
        own.checked_at = self._clock.now()
        return await self._link.vanished(_body(own, own.published_at))


def _body(own: OwnFrame, expires_at: float) -> Write:
    return Write(body_key(own.offered.digest), own.data, expires_at)
