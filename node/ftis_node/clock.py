"""Time as the node sees it, so that a reproducible run can bring its own.

Slots (see docs/protocol.md) are the only place where wall time decides what a node samples; a run under a `StepClock`
therefore draws the same prompts every time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time in Unix seconds."""

    def now(self) -> float: ...


class WallClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()


class StepClock:
    """A clock that moves only when told to; every node of a lock-step run shares one."""

    def __init__(self, start_seconds: float = 1_000_000_000.0) -> None:
        self._now = start_seconds

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` (not negative)."""
        assert seconds >= 0
        self._now += seconds
