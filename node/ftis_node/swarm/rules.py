"""What a storing node accepts: the table of `ftis_protocol.keys`, applied to one record.

On a hash table keys arrive hashed, so they cannot be read. Instead the record's content says where it belongs, and the
hash of that key has to be the one it arrived under. This works for the swarms of others as well, which share the
table with ours and could not live on it if we refused their records.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ftis_node.clock import Clock
from ftis_node.swarm.reading import ISSUED_AT_GRAIN
from ftis_node.swarm.shards import homes
from ftis_protocol import limits
from ftis_protocol.envelope import Kind, Opened, open_envelope
from ftis_protocol.errors import ProtocolError, Reason, WireError
from ftis_protocol.keys import body_digest, body_key, discovery_key, manifest_key, offers_key, presence_key
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.presence import Offer

_REMEMBERED = 4096
_SENDER_KINDS = frozenset({Kind.CARD, Kind.DEPARTURE, Kind.OFFER})
_LIFETIMES = {
    Kind.CARD: limits.CARD_LIFETIME_SECONDS,
    Kind.DEPARTURE: limits.CARD_LIFETIME_SECONDS,
    Kind.OFFER: limits.OFFER_LIFETIME_SECONDS,
}


@dataclass(frozen=True, slots=True)
class _Allowance:
    """How long a record may be kept, counted from its date; None: from the moment somebody stores it."""

    dated: float | None
    lifetime_seconds: float

    def latest(self, now: float) -> float:
        start = now if self.dated is None else self.dated
        return start + self.lifetime_seconds + limits.MAX_CLOCK_SKEW_SECONDS


class RecordRules:
    """Judges records that others want stored here. `hash_key` is how the board turns a key into bytes;
    `refused` an existing counter to use."""

    def __init__(
        self,
        hash_key: Callable[[str], bytes],
        manifest: SwarmManifest | None,
        clock: Clock,
        refused: Counter[Reason] | None = None,
    ) -> None:
        self.refused: Counter[Reason] = Counter() if refused is None else refused
        self._hash_key = hash_key
        self._clock = clock
        self._shards = {} if manifest is None else {manifest.swarm_id: manifest.shard_count}
        self._discovery = hash_key(discovery_key())
        # Dictionaries are judged again at every read; what was found good once is known by its hash.
        self._known: OrderedDict[tuple[bytes, str | None, bytes], _Allowance] = OrderedDict()

    def accepts(self, key: bytes, subkey: str | None, value: bytes, expires_at: float) -> bool:
        """True when the record obeys the table; otherwise the reason is counted."""
        try:
            self._check(key, subkey, value, expires_at)
        except ProtocolError as error:
            self.refused[error.reason] += 1
            return False
        return True

    def _check(self, key: bytes, subkey: str | None, value: bytes, expires_at: float) -> None:
        if not isinstance(expires_at, float | int) or not math.isfinite(expires_at):
            raise WireError(Reason.SCHEMA, "no expiry")
        if len(value) > limits.MAX_FRAME_BYTES:
            raise WireError(Reason.SIZE)
        mark = (key, subkey, body_digest(value))
        if mark not in self._known:
            self._known[mark] = self._allowance(key, subkey, value)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(mark)
        if expires_at > self._known[mark].latest(self._clock.now()):
            raise WireError(Reason.EXPIRED, "to be kept longer than its kind may be")

    def _allowance(self, key: bytes, subkey: str | None, value: bytes) -> _Allowance:
        if subkey is None and key == self._hash_key(body_key(body_digest(value))):
            return _Allowance(None, limits.BODY_LIFETIME_SECONDS)
        if subkey is None or key == self._discovery:
            opened = open_envelope(value, swarm_id=subkey, kinds=frozenset({Kind.MANIFEST}))
            if subkey is None and key != self._hash_key(manifest_key(opened.swarm_id)):
                raise WireError(Reason.DIGEST)
            return _Allowance(None, limits.MANIFEST_LIFETIME_SECONDS)
        opened = open_envelope(value, swarm_id=None, kinds=_SENDER_KINDS)
        if opened.sender != subkey:
            raise WireError(Reason.SIGNATURE, "filed under another node's id")
        if opened.issued_at > self._clock.now() + limits.MAX_CLOCK_SKEW_SECONDS:
            raise WireError(Reason.FUTURE)
        if not any(key == self._hash_key(place) for place in self._places(opened)):
            raise WireError(Reason.KIND, "not the place of this record")
        return _Allowance(opened.issued_at + ISSUED_AT_GRAIN, _LIFETIMES[opened.kind])

    def _places(self, opened: Opened) -> Iterable[str]:
        """The keys under which this record may be filed."""
        # The shard count of a foreign swarm is unknown here.
        for shard in homes(opened.sender, self._shards.get(opened.swarm_id, limits.MAX_SHARDS)):
            if isinstance(opened.message, Offer):
                yield offers_key(opened.swarm_id, shard, opened.message.slot)
            else:
                yield presence_key(opened.swarm_id, shard)
