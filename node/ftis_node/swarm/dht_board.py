"""The board on a distributed hash table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf

from ftis_node.swarm.board import Board, BoardSilent, Write
from ftis_node.swarm.hive import DHTID, DHTProtocol, DHTRecord, PeerID
from ftis_node.swarm.storage import wrap
from ftis_node.swarm.transport import REPLICAS, TRANSPORT_ERRORS, Transport

# Asked beyond REPLICAS, so that nodes which just died can be replaced at once.
_SPARE = 3


class DhtBoard(Board):
    """Reads and writes through whatever transport is plugged in; without one it is silent."""

    def __init__(self, call_seconds: float) -> None:
        self.transport: Transport | None = None
        self.announced: tuple[str, ...] = ()
        self._call_seconds = call_seconds

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.announced

    @property
    def connections(self) -> int:
        return 0 if self.transport is None else self.transport.connections

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Transport]:
        if self.transport is None:
            raise BoardSilent("no transport")
        try:
            async with asyncio.timeout(self._call_seconds):
                yield self.transport
        except TRANSPORT_ERRORS as error:
            raise BoardSilent(str(error) or type(error).__name__) from error

    async def put(self, write: Write) -> bool:
        """Offer the record to the nearest nodes until REPLICAS of them answered. hivemind's own `store` reports only
        the last answer, so one full node would look like a failure."""
        async with self._asking() as transport:
            key = DHTID.generate(source=write.key)
            found = await transport.node.find_nearest_nodes([key], k_nearest=REPLICAS + _SPARE)
            candidates = list(found[key].items())
            answered = accepted = 0
            while candidates and answered < REPLICAS:
                turn, candidates = candidates[: REPLICAS - answered], candidates[REPLICAS - answered :]
                answers = await asyncio.gather(
                    *(self._store_at(transport, node, peer, key, write) for node, peer in turn)
                )
                answered += sum(answer is not None for answer in answers)
                accepted += sum(bool(answer) for answer in answers)
            return accepted > 0

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
            # An endless expiry is never found, so all nodes near the key are asked and their entries merged.
            found = await transport.node.get_many(keys, sufficient_expiration_time=inf)
        dictionaries = {}
        for key, dictionary in found.items():
            if dictionary is not None and isinstance(dictionary.value, dict):
                entries = {str(subkey): entry.value for subkey, entry in dictionary.value.items()}
                dictionaries[key] = {subkey: value for subkey, value in entries.items() if isinstance(value, bytes)}
        return dictionaries

    async def value(self, key: str) -> bytes | None:
        async with self._asking() as transport:
            found = await transport.node.get(key)
        return found.value if found is not None and isinstance(found.value, bytes) else None

    async def vanished(self, key: str) -> bool:
        async with self._asking() as transport:
            place = DHTID.generate(source=key)
            nearest = await transport.node.find_nearest_nodes([place], k_nearest=1, exclude_self=True)
            for peer in nearest[place].values():
                answer = await transport.node.protocol.call_find(peer, [place])
                return answer is not None and answer[place][0] is None
        return False

    async def close(self) -> None:
        if self.transport is not None:
            transport, self.transport = self.transport, None
            await transport.close()
