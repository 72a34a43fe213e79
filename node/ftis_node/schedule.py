"""The hours of the day in which a node may work."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

_SPAN = re.compile(r"([01]?\d|2[0-4])(?::([0-5]\d))?\s*-\s*([01]?\d|2[0-4])(?::([0-5]\d))?")
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class Hours:
    """Spans of the local day in minutes after midnight, (begin, end); one that ends before it begins goes over
    midnight. No span at all means always."""

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Hours:
        """`22-6`, `22:30-06:00` or several separated by commas; empty for always. ValueError for anything else."""
        spans = []
        for part in text.split(",") if text.strip() else ():
            found = _SPAN.fullmatch(part.strip())
            if not found:
                raise ValueError(f"{part.strip()!r} is not a span of hours such as 22-6 or 22:30-06:00")
            begin_hour, begin_minute, end_hour, end_minute = (int(number or 0) for number in found.groups())
            begin, end = 60 * begin_hour + begin_minute, 60 * end_hour + end_minute
            if max(begin, end) > _DAY_MINUTES or begin == end:
                raise ValueError(f"{part.strip()!r} is not a span inside one day")
            spans.append((begin, end))
        return cls(tuple(spans))

    def open_at(self, moment: time.struct_time) -> bool:
        """Whether work is allowed at a local time."""
        minute = 60 * moment.tm_hour + moment.tm_min
        return not self.spans or any(
            begin <= minute < end if begin < end else minute >= begin or minute < end for begin, end in self.spans
        )

    def __str__(self) -> str:
        return ", ".join(f"{_clock(begin)}-{_clock(end)}" for begin, end in self.spans)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
