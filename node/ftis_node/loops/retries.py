"""Frames that an offer names and nobody had when asked: when to ask again, and when to give up.

Storing nodes lag behind each other and die, and their authors store again what vanished, so one miss says little. Each
attempt waits three times longer than the last, give or take, so that readers of the same frame do not return together.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from random import Random

#: with these pauses the last attempt comes after about two minutes, when its author has looked after the frame once
ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 8.0
PAUSE_RATIO = 3.0
JITTER = 0.3
REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class _Miss:
    attempts: int
    again_at: float


class Retries:
    """What was missing, by digest; times are Unix seconds. The oldest are forgotten beyond REMEMBERED."""

    def __init__(self) -> None:
        self._missing: OrderedDict[bytes, _Miss] = OrderedDict()

    def due(self, digest: bytes, now: float) -> bool:
        """Whether the frame may be asked for: always the first time."""
        miss = self._missing.get(digest)
        return miss is None or now >= miss.again_at

    def missed(self, digest: bytes, now: float) -> bool:
        """Take note of a failed attempt; True when it was the last."""
        known = self._missing.pop(digest, None)
        attempts = 1 + (known.attempts if known else 0)
        if attempts >= ATTEMPTS:
            return True
        spread = Random(f"{digest.hex()}/{attempts}/{now}").uniform(1 - JITTER, 1 + JITTER)
        pause = FIRST_PAUSE_SECONDS * PAUSE_RATIO ** (attempts - 1) * spread
        self._missing[digest] = _Miss(attempts, now + pause)
        if len(self._missing) > REMEMBERED:
            self._missing.popitem(last=False)
        return False

    def found(self, digest: bytes) -> None:
        """The frame came after all."""
        self._missing.pop(digest, None)
