"""How a node's groups and frames are spread over a slot.

An offer holds a limited number of frames, and others look at a limited number of groups of one node in one slot. A fast
node that sent as it samples would use both up in the first seconds and then be silent, with its freshest groups unseen.
So at any moment of the slot it may have used its share of the elapsed time, and a little at the start.
"""

from __future__ import annotations

from math import ceil

from ftis_protocol.limits import MAX_OFFER_FRAMES

#: half of what an offer holds, the rest is for frames that had to be split
FRAMES_PER_SLOT = MAX_OFFER_FRAMES // 2
#: share of the slot's allowance that may be used at its very beginning
HEAD_START = 0.25
#: a slot is over for groups that could not travel before its end, seconds
SLOT_MARGIN_SECONDS = 0.5


class Pace:
    """Counts what went out in the running slot. Times are Unix seconds."""

    def __init__(self, slot_seconds: int, groups_per_slot: int) -> None:
        self._slot_seconds = slot_seconds
        self._groups_per_slot = groups_per_slot
        self._slot = -1
        self._groups = 0
        self._frames = 0

    def _elapsed(self, now: float) -> float:
        """Share of the slot that is over; a new slot starts with nothing sent."""
        slot, into = divmod(now, self._slot_seconds)
        if int(slot) != self._slot:
            self._slot, self._groups, self._frames = int(slot), 0, 0
        return max(HEAD_START, into / self._slot_seconds)

    def groups_allowed(self, now: float) -> int:
        """Groups that may go out now."""
        return max(0, ceil(self._groups_per_slot * self._elapsed(now)) - self._groups)

    def wait_seconds(self, now: float) -> float:
        """Until one more frame may go out; 0 when it may now."""
        allowed = FRAMES_PER_SLOT * self._elapsed(now)
        if self._frames < allowed:
            return 0.0
        allowed_at = self._frames * self._slot_seconds / FRAMES_PER_SLOT
        return max(0.001, min(allowed_at, self._slot_seconds) - now % self._slot_seconds)

    def left_seconds(self, now: float) -> float:
        """Until the slot is over for groups that wait; 0 within the margin."""
        return max(0.0, self._slot_seconds - now % self._slot_seconds - SLOT_MARGIN_SECONDS)

    def sent(self, now: float, groups: int, frames: int) -> None:
        """Take note of what went out."""
        self._elapsed(now)
        self._groups += groups
        self._frames += frames
