"""A node's membership on any board: what is sealed and stored when, and what of the others' records is believed.

Storing nodes check every record before they keep it, but a storing node may lie, so everything read is opened again
here: size, signature, sender and place. What fails is counted by reason and otherwise as if it were not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from ftis_node.clock import Clock, WallClock
from ftis_node.swarm.author import Author
from ftis_node.swarm.base import (
    DEFAULT_OFFER_LIMIT,
    DEFAULT_OFFER_SLOTS,
    Health,
    PeerCard,
    PeerOffer,
    Published,
    Reach,
    Swarm,
)
from ftis_node.swarm.board import Board, Write
from ftis_node.swarm.flow import Limit
from ftis_node.swarm.link import Link
from ftis_node.swarm.publisher import Publisher
from ftis_node.swarm.reading import read_offer, read_presence
from ftis_node.swarm.roster import Roster
from ftis_node.swarm.shards import places_to_read, shard_count_for, shards_to_read
from ftis_protocol import limits
from ftis_protocol.dictionaries import text_dictionary
from ftis_protocol.errors import ProtocolError, Reason
from ftis_protocol.identity import Identity
from ftis_protocol.keys import body_digest, body_key, offers_key, presence_key, shard_of
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.presence import Departure, NodeCard, Offer
from ftis_protocol.rollout import Frame

# Dictionaries read by one `offers` and one `peers`: with more shards and slots than this a node samples, so that what
# a look around costs does not grow with the swarm.
MAX_OFFER_KEYS = 4
MAX_PRESENCE_KEYS = 2
# Boards live in memory, so the manifest has to outlive every single node that stores it.
MANIFEST_REPEAT_SECONDS = 300.0
# About this many members repeat it in each period, however many there are.
MANIFEST_REPEATERS = 16


class BoardSwarm(Swarm):
    """`Swarm` over a `Board`. `rng` decides samples only."""

    def __init__(
        self,
        board: Board,
        identity: Identity,
        manifest: SwarmManifest,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self.refused: Counter[Reason] = Counter()
        self.limited: Counter[Limit] = Counter()
        self._board = board
        self._manifest = manifest
        self._swarm_id = manifest.swarm_id
        self._clock = clock or WallClock()
        self._rng = rng or Random()
        self._link = Link(board, self._clock)
        self.traffic = self._link.traffic
        self._author = Author(identity, self._swarm_id, self._clock, text_dictionary(manifest.dictionary))
        self._roster = Roster(self.limited)
        self._publisher = Publisher(self._link, self._author, manifest, self._clock, self._home)
        self._looked_home = False
        self._alone_since: float | None = self._clock.now()
        self._manifest_at: float | None = None

    @property
    def manifest(self) -> SwarmManifest:
        return self._manifest

    @property
    def swarm_id(self) -> str:
        return self._swarm_id

    @property
    def node_id(self) -> str:
        return self._author.node_id

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._board.addresses

    @property
    def health(self) -> Health:
        now, last_success = self._clock.now(), self._link.last_success
        return Health(
            known_peers=len(self._others(now)),
            connections=self._board.connections,
            last_success_age=None if last_success is None else max(0.0, now - last_success),
            alone_for=None if self._alone_since is None else max(0.0, now - self._alone_since),
            restarts=self._restarts,
            failures=self._link.failures,
            reach=self._reach,
        )

    @property
    def _restarts(self) -> int:
        return 0

    @property
    def _reach(self) -> Reach:
        return Reach.LISTENING

    def _home(self) -> int:
        """The shard in which this node files itself now."""
        return shard_of(self.node_id, shard_count_for(self._board.size, self._manifest.shard_count))

    def _shards_to_read(self) -> range:
        return shards_to_read(self._board.size, self._manifest.shard_count)

    async def start(self) -> None:
        await self._announce_manifest()

    async def announce(self, card: NodeCard) -> bool:
        if not card.addresses and self.addresses:
            card = card.model_copy(update={"addresses": self.addresses[: limits.MAX_CARD_ADDRESSES]})
        await self._announce_manifest()
        return await self._put_presence(card)

    async def depart(self, reason: str) -> None:
        line = " ".join(reason.split())[: limits.MAX_REASON_TEXT].strip()
        await self._put_presence(Departure(reason=line))

    async def _put_presence(self, message: NodeCard | Departure) -> bool:
        data = self._author.seal(message)
        expires = self._author.expiry(limits.CARD_LIFETIME_SECONDS)
        key = presence_key(self._swarm_id, self._home())
        return await self._link.put("card", Write(key, data, expires, self.node_id))

    async def _announce_manifest(self) -> None:
        now = self._clock.now()
        if self._manifest_at is not None and now - self._manifest_at < MANIFEST_REPEAT_SECONDS:
            return
        crowd = len(self._others(now))
        self._manifest_at, first = now, self._manifest_at is None
        if not first and self._rng.random() * crowd > MANIFEST_REPEATERS:
            return
        for write in self._author.manifest_writes(self._manifest):
            if not await self._link.put("manifest", write):
                self._manifest_at = None

    async def peers(self) -> tuple[PeerCard, ...]:
        shards = self._shards_to_read()
        chosen = self._rng.sample(shards, min(len(shards), MAX_PRESENCE_KEYS))
        if not self._looked_home:  # whoever runs under this node's id is there
            self._looked_home = True
            chosen.append(self._home())
        keys = {presence_key(self._swarm_id, shard): shard for shard in chosen}
        for key, entries in (await self._link.dictionaries("card", list(keys))).items():
            for node_id, data in entries.items():
                try:
                    seen = read_presence(data, self._manifest, node_id, keys[key], self._clock.now())
                except ProtocolError as error:
                    self.refused[error.reason] += 1
                else:
                    self._roster.see(node_id, seen.message, seen.sequence, seen.issued_at)
        now = self._clock.now()
        living = self._others(now)
        if living:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        return living

    def _others(self, now: float) -> tuple[PeerCard, ...]:
        return tuple(peer for peer in self._roster.living(now) if peer.node_id != self.node_id)

    async def publish(self, frame: Frame, *, tokens: Sequence[int] | None = None) -> Published:
        return await self._publisher.publish(frame, tokens)

    async def renew(self) -> int:
        return await self._publisher.renew()

    async def offers(
        self, slots: int = DEFAULT_OFFER_SLOTS, *, limit: int = DEFAULT_OFFER_LIMIT
    ) -> tuple[PeerOffer, ...]:
        newest = int(self._clock.now() // self._manifest.slot_seconds)
        chosen = places_to_read(newest, slots, self._shards_to_read(), MAX_OFFER_KEYS, self._rng)
        keys = {offers_key(self._swarm_id, shard, slot): (shard, slot) for shard, slot in chosen}
        found = [
            PeerOffer(node_id, offer.slot, frame)
            for node_id, offer in self._checked_offers(await self._link.dictionaries("offer", list(keys)), keys)
            if node_id != self.node_id
            for frame in offer.frames
        ]
        return tuple(self._rng.sample(found, min(len(found), limit)))

    def _checked_offers(
        self, found: Mapping[str, Mapping[str, bytes]], places: Mapping[str, tuple[int, int]]
    ) -> list[tuple[str, Offer]]:
        checked = []
        for key, entries in found.items():
            for node_id, data in entries.items():
                try:
                    checked.append(
                        (node_id, read_offer(data, self._manifest, node_id, *places[key], self._clock.now()))
                    )
                except ProtocolError as error:
                    self.refused[error.reason] += 1
        return checked

    async def fetch(self, digest: bytes) -> bytes | None:
        data = self._publisher.own(digest) or await self._link.value("body", body_key(digest))
        if data is None:
            return None
        if len(data) > limits.MAX_FRAME_BYTES or body_digest(data) != digest:
            self.refused[Reason.DIGEST if len(data) <= limits.MAX_FRAME_BYTES else Reason.SIZE] += 1
            return None
        return data

    async def close(self) -> None:
        await self._board.close()
