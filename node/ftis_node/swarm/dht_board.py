"""The board on a distributed hash table."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf

from ftis_node.swarm.board import Board, BoardSilent, Write
from ftis_node.swarm.flow import Limit, Limits
from ftis_node.swarm.hive import DHTID, DHTProtocol, DHTRecord, DictionaryDHTValue, PeerID
from ftis_node.swarm.storage import unwrap, wrap
from ftis_node.swarm.transport import REPLICAS, TRANSPORT_ERRORS, Transport

# Nodes near a key that a search gets to know: REPLICAS, and some in place of those which just died.
NEAR = REPLICAS + 3
# Nodes asked for a dictionary: each returns all of it, and what one lags behind in the others have.
READERS = 3
# How long the way to a key is remembered; presence and offers are asked for again and again.
ROUTE_SECONDS = 20.0
_ROUTES = 256


@dataclass(frozen=True, slots=True)
class _Route:
    """The nodes nearest to a key, nearest first, found at `at` (the loop's time)."""

    nodes: tuple[tuple[DHTID, PeerID], ...]
    at: float


class DhtBoard(Board):
    """Reads and writes through whatever transport is plugged in; without one it is silent."""

    def __init__(self, call_seconds: float, limits: Limits | None = None) -> None:
        self.transport: Transport | None = None
        self.announced: tuple[str, ...] = ()
        self._call_seconds = call_seconds
        self._limits = limits or Limits()
        self._routes: OrderedDict[DHTID, _Route] = OrderedDict()

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.announced

    @property
    def connections(self) -> int:
        return 0 if self.transport is None else self.transport.connections

    @property
    def size(self) -> float:
        return 1.0 if self.transport is None else self.transport.network_size

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Transport]:
        if self.transport is None:
            raise BoardSilent("no transport")
        try:
            async with asyncio.timeout(self._call_seconds):
                yield self.transport
        except TRANSPORT_ERRORS as error:
            raise BoardSilent(str(error) or type(error).__name__) from error

    async def _nearest(self, transport: Transport, key: DHTID) -> tuple[tuple[DHTID, PeerID], ...]:
        """The NEAR nodes nearest to `key`. The search is for the key's twin, which differs in the last bit: it leads to
        the same nodes, and none of them sends its value along."""
        now = asyncio.get_running_loop().time()
        known = self._routes.get(key)
        if known is None or now - known.at > ROUTE_SECONDS:
            twin = DHTID(int(key) ^ 1)
            found = await transport.node.find_nearest_nodes(
                [twin], k_nearest=NEAR, beam_size=NEAR, exclude_self=transport.client
            )
            known = self._routes[key] = _Route(tuple(found[twin].items()), now)
            if len(self._routes) > _ROUTES:
                self._routes.popitem(last=False)
        return known.nodes

    async def put(self, write: Write) -> bool:
        """Offer the record to the nearest nodes until REPLICAS of them answered. hivemind's own `store` reports only
        the last answer, so one full node would look like a failure."""
        async with self._asking() as transport:
            await self._afford(len(write.value) * REPLICAS)
            key = DHTID.generate(source=write.key)
            candidates = list(await self._nearest(transport, key))
            answered = accepted = 0
            while candidates and answered < REPLICAS:
                turn, candidates = candidates[: REPLICAS - answered], candidates[REPLICAS - answered :]
                answers = await asyncio.gather(
                    *(self._store_at(transport, node, peer, key, write) for node, peer in turn)
                )
                answered += sum(answer is not None for answer in answers)
                accepted += sum(bool(answer) for answer in answers)
            if answered < REPLICAS:
                self._routes.pop(key, None)
            return accepted > 0

    async def _afford(self, size_bytes: int) -> None:
        """Wait until the upload cap allows `size_bytes`, within the call's deadline."""
        upload = self._limits.upload
        if not upload.takes(size_bytes):
            self._limits.limited[Limit.UPLOAD] += 1
            while not upload.takes(size_bytes):
                wait = upload.wait_seconds(size_bytes)
                if wait > self._call_seconds:
                    raise BoardSilent("the upload cap is used up")
                await asyncio.sleep(wait)

    async def _store_at(
        self, transport: Transport, place: DHTID, peer: PeerID, key: DHTID, write: Write
    ) -> bool | None:
        """None when the node did not answer."""
        protocol, value = transport.node.protocol, wrap(write.value)
        if place == transport.node.node_id:
            subkey = DHTProtocol.serializer.dumps(write.subkey)
            record = DHTRecord(key.to_bytes(), subkey, value, write.expires_at)
            valid = protocol.record_validator.validate(record)
            return valid and bool(protocol.storage.store(key, value, write.expires_at, subkey=write.subkey))
        answer = await protocol.call_store(peer, [key], [value], [write.expires_at], [write.subkey])
        return None if answer is None else all(answer)

    async def dictionaries(self, keys: Sequence[str]) -> dict[str, dict[str, bytes]]:
        async with self._asking() as transport:
            found = await asyncio.gather(*(self._merged(transport, DHTID.generate(source=key)) for key in keys))
        return {key: entries for key, entries in zip(keys, found, strict=True) if entries}

    async def _merged(self, transport: Transport, key: DHTID) -> dict[str, bytes]:
        """What READERS of the nodes near `key` have, and this node itself; of two versions the one that expires later.
        Nodes that do not answer are passed over."""
        newest = _later({}, transport.node.protocol.storage.get(key))
        candidates = [peer for node, peer in await self._nearest(transport, key) if node != transport.node.node_id]
        answered = 0
        while candidates and answered < READERS:
            turn, candidates = candidates[: READERS - answered], candidates[READERS - answered :]
            for answer in await asyncio.gather(*(transport.node.protocol.call_find(peer, [key]) for peer in turn)):
                if answer is not None:
                    answered += 1
                    newest = _later(newest, answer[key][0])
        if answered < READERS:
            self._routes.pop(key, None)
        entries = {subkey: unwrap(packed) for subkey, (packed, _) in newest.items()}
        return {subkey: value for subkey, value in entries.items() if value is not None}

    async def value(self, key: str) -> bytes | None:
        """One node after the other is asked, the nearest first, so that the value comes once; only when that leads
        nowhere, several at once and further away."""
        async with self._asking() as transport:
            found = await transport.node.get(key, beam_size=NEAR, num_workers=1)
            if found is None:
                found = await transport.node.get(key)
        return found.value if found is not None and isinstance(found.value, bytes) else None

    async def vanished(self, write: Write) -> bool:
        async with self._asking() as transport:
            key = DHTID.generate(source=write.key)
            for node, peer in await self._nearest(transport, key):
                if node == transport.node.node_id:
                    continue
                answer = await transport.node.protocol.call_find(peer, [key])
                if answer is None:
                    self._routes.pop(key, None)
                    return False
                return not _holds(answer[key][0], write)
        return False

    async def close(self) -> None:
        self._routes.clear()
        if self.transport is not None:
            transport, self.transport = self.transport, None
            await transport.close()


_Entries = dict[str, tuple[bytes, float]]


def _later(known: _Entries, found: tuple[object, float] | None) -> _Entries:
    """The entries of both; packed values with their expiry, by subkey."""
    if found is None or not isinstance(found[0], DictionaryDHTValue):
        return known
    merged = dict(known)
    for subkey, (value, expires_at) in found[0].items():
        if expires_at > merged.get(str(subkey), (b"", -inf))[1]:
            merged[str(subkey)] = (value, expires_at)
    return merged


def _holds(found: tuple[object, float] | None, write: Write) -> bool:
    """Whether a node's answer contains what was written."""
    if found is None:
        return False
    if write.subkey is None:
        return True
    entries = _later({}, found)
    return entries.get(write.subkey, (b"", 0.0))[0] == wrap(write.value)
