"""Sealing this node's own messages, with sequence numbers that grow across restarts."""

from __future__ import annotations

from ftis_node.clock import Clock
from ftis_node.swarm.board import Write
from ftis_protocol.dictionaries import TextDictionary
from ftis_protocol.envelope import Message, seal
from ftis_protocol.identity import Identity
from ftis_protocol.keys import discovery_key, manifest_key
from ftis_protocol.limits import MANIFEST_LIFETIME_SECONDS
from ftis_protocol.manifest import SwarmManifest

_TICK = 0.001  # seconds


class Author:
    """Signs for one identity in one swarm; `dictionary` is the one that its manifest names."""

    def __init__(
        self, identity: Identity, swarm_id: str, clock: Clock, dictionary: TextDictionary | None = None
    ) -> None:
        self._identity = identity
        self._swarm_id = swarm_id
        self._clock = clock
        self._dictionary = dictionary
        self._sequence = 0
        self._expiries: dict[float, float] = {}

    @property
    def node_id(self) -> str:
        return self._identity.node_id

    def seal(self, message: Message) -> bytes:
        """Sealed bytes. The sequence number is the time in milliseconds, or one more than the last: it needs no file
        to go on growing after a crash. Raises `ProtocolError` (SIZE) for a message above its limit."""
        now = self._clock.now()
        self._sequence = max(self._sequence + 1, int(now * 1000))
        return seal(message, self._identity, self._swarm_id, self._sequence, now, self._dictionary)

    def expiry(self, lifetime_seconds: float) -> float:
        """When a record of this lifetime, stored now, expires. Grows with every call, because a storing node replaces
        a record only by one that expires later."""
        last = self._expiries.get(lifetime_seconds, 0.0)
        self._expiries[lifetime_seconds] = expires = max(self._clock.now() + lifetime_seconds, last + _TICK)
        return expires

    def manifest_writes(self, manifest: SwarmManifest) -> tuple[Write, Write]:
        """The manifest under its own key and in the list of swarms on this network."""
        data = self.seal(manifest)
        expires = self.expiry(MANIFEST_LIFETIME_SECONDS)
        return Write(manifest_key(self._swarm_id), data, expires), Write(discovery_key(), data, expires, self._swarm_id)
