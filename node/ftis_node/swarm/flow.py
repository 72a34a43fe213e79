"""How much may flow: token buckets for bytes and records, for each peer and for all together.

Whatever is held back is counted in `Limits.limited` under the name of the limit; nothing here waits without an end.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
_PEERS_REMEMBERED = 1024


class Limit(StrEnum):
    """Every limit on the flow that can bite; the value is the label of the metric."""

    UPLOAD = "upload"
    PEER_REQUESTS = "peer_requests"
    PEER_RECORDS = "peer_records"
    PEER_BYTES = "peer_bytes"
    TOTAL_RECORDS = "total_records"
    TOTAL_BYTES = "total_bytes"
    MEMORY = "memory"
    DICTIONARY = "dictionary"
    ROSTER = "roster"


@dataclass(frozen=True, slots=True)
class Rate:
    """A steady rate per second and what may come at once."""

    per_second: float
    burst: float


# A peer that hands over what a new neighbour should store brings minutes' worth of it at once. A record lives at most
# ten minutes, so these rates bound a peer's share of the memory as well: 8 MiB + 600 s x 64 KiB.
PEER_REQUESTS = Rate(100, 1_000)
PEER_RECORDS = Rate(20, 1_000)
PEER_BYTES = Rate(64 * KIBIBYTE, 8 * MEBIBYTE)
TOTAL_RECORDS = Rate(1_000, 10_000)
TOTAL_BYTES = Rate(4 * MEBIBYTE, 64 * MEBIBYTE)


class TokenBucket:
    """`rate.burst` tokens at first, `rate.per_second` more each second, never above the burst."""

    def __init__(self, rate: Rate, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._now = now
        self._tokens = rate.burst
        self._at = now()

    def _refill(self) -> None:
        now = self._now()
        if self._rate.per_second == inf:
            self._tokens = self._rate.burst
        else:
            self._tokens = min(self._rate.burst, self._tokens + max(0.0, now - self._at) * self._rate.per_second)
        self._at = now

    def takes(self, amount: float) -> bool:
        """Take `amount` if it is there; False takes nothing."""
        self._refill()
        if amount > self._tokens:
            return False
        self._tokens -= amount
        return True

    def wait_seconds(self, amount: float) -> float:
        """How long until `takes(amount)` succeeds; infinite for more than the burst."""
        self._refill()
        if amount <= self._tokens:
            return 0.0
        return inf if amount > self._rate.burst else (amount - self._tokens) / self._rate.per_second


def upload_rate(kibibytes_per_second: float) -> Rate:
    """The operator's cap; 0 is none. Ten seconds' worth may go at once, and never less than the largest frame with
    all its copies, which could not leave at all otherwise."""
    if not kibibytes_per_second:
        return Rate(inf, inf)
    rate = kibibytes_per_second * KIBIBYTE
    return Rate(rate, max(10 * rate, 8 * MEBIBYTE))


class Limits:
    """All buckets of one node. `admits_*` answer for what peers send, `upload` for what leaves this node."""

    def __init__(self, upload_kibibytes_per_second: float = 0.0, limited: Counter[Limit] | None = None) -> None:
        self.limited: Counter[Limit] = Counter() if limited is None else limited
        self.upload = TokenBucket(upload_rate(upload_kibibytes_per_second))
        self._total_records = TokenBucket(TOTAL_RECORDS)
        self._total_bytes = TokenBucket(TOTAL_BYTES)
        self._peers: OrderedDict[str, tuple[TokenBucket, TokenBucket, TokenBucket]] = OrderedDict()

    def _of(self, peer: str) -> tuple[TokenBucket, TokenBucket, TokenBucket]:
        """Requests, records and bytes of one peer; those silent for longest are forgotten, with full buckets."""
        if peer not in self._peers:
            self._peers[peer] = (TokenBucket(PEER_REQUESTS), TokenBucket(PEER_RECORDS), TokenBucket(PEER_BYTES))
            if len(self._peers) > _PEERS_REMEMBERED:
                self._peers.popitem(last=False)
        self._peers.move_to_end(peer)
        return self._peers[peer]

    def admits_request(self, peer: str) -> bool:
        """Whether one more question of `peer` is answered."""
        return self._within(((self._of(peer)[0], 1, Limit.PEER_REQUESTS),))

    def admits_records(self, peer: str, records: int, size_bytes: int) -> bool:
        """Whether `records` of `size_bytes` together may be looked at and stored."""
        _, its_records, its_bytes = self._of(peer)
        return self._within(
            (
                (its_records, records, Limit.PEER_RECORDS),
                (its_bytes, size_bytes, Limit.PEER_BYTES),
                (self._total_records, records, Limit.TOTAL_RECORDS),
                (self._total_bytes, size_bytes, Limit.TOTAL_BYTES),
            )
        )

    def admits_upload(self, size_bytes: int) -> bool:
        """Whether `size_bytes` may leave now in answer to a question."""
        return self._within(((self.upload, size_bytes, Limit.UPLOAD),))

    def _within(self, asked: tuple[tuple[TokenBucket, float, Limit], ...]) -> bool:
        for bucket, amount, limit in asked:
            if not bucket.takes(amount):
                self.limited[limit] += 1
                return False
        return True
