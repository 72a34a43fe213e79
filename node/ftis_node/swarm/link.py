"""A board that never raises: silence becomes an empty answer, and everything is counted."""

from __future__ import annotations

from collections.abc import Sequence

from ftis_node.clock import Clock
from ftis_node.swarm.base import Traffic
from ftis_node.swarm.board import Board, BoardSilent, Write
from ftis_protocol.errors import Reason, WireError
from ftis_protocol.limits import MAX_FRAME_BYTES


class Link:
    """What one member puts on its board and reads from it. `last_success` is Unix time, None before the first."""

    def __init__(self, board: Board, clock: Clock) -> None:
        self.traffic = Traffic()
        self.failures = 0
        self.last_success: float | None = None
        self._board = board
        self._clock = clock

    async def put(self, kind: str, write: Write) -> bool:
        """Store; False when refused or unanswered. Raises `ProtocolError` (SIZE) for what a message of the network
        could not carry: it would be lost in silence."""
        if len(write.value) > MAX_FRAME_BYTES:
            raise WireError(Reason.SIZE, f"{len(write.value)} bytes, nothing above {MAX_FRAME_BYTES} can be stored")
        try:
            stored = await self._board.put(write)
        except BoardSilent:
            self.failures += 1
            return False
        self.last_success = self._clock.now()
        self.traffic.written[kind] += len(write.value)
        return stored

    async def dictionaries(self, kind: str, keys: Sequence[str]) -> dict[str, dict[str, bytes]]:
        """Entries by key and subkey; empty when unanswered."""
        try:
            found = await self._board.dictionaries(keys)
        except BoardSilent:
            self.failures += 1
            return {}
        self.last_success = self._clock.now()
        self.traffic.read[kind] += sum(len(data) for entries in found.values() for data in entries.values())
        return found

    async def value(self, kind: str, key: str) -> bytes | None:
        """A plain value; None when there is none, or no answer."""
        try:
            data = await self._board.value(key)
        except BoardSilent:
            self.failures += 1
            return None
        self.last_success = self._clock.now()
        self.traffic.read[kind] += len(data or b"")
        return data

    async def vanished(self, write: Write) -> bool:
        """True when others are in reach and do not have it; False when unanswered."""
        try:
            return await self._board.vanished(write)
        except BoardSilent:
            self.failures += 1
            return False
