"""Hours of the day in which a node may work."""

from __future__ import annotations

import time

import pytest

from ftis_node.errors import UsageError
from ftis_node.layering import load
from ftis_node.schedule import Hours


def at(hour: int, minute: int = 0) -> time.struct_time:
    return time.struct_time((2026, 1, 1, hour, minute, 0, 3, 1, 0))


@pytest.mark.parametrize(
    ("text", "open_at", "closed_at"),
    [
        ("", [at(0), at(23, 59)], []),
        ("9-17", [at(9), at(16, 59)], [at(8, 59), at(17)]),
        ("22:30-6", [at(22, 30), at(0), at(5, 59)], [at(22, 29), at(6)]),
        ("0-1, 12-24", [at(0), at(12), at(23, 59)], [at(1), at(11)]),
    ],
)
def test_inside_and_outside(text: str, open_at: list, closed_at: list) -> None:
    hours = Hours.parse(text)
    assert all(map(hours.open_at, open_at))
    assert not any(map(hours.open_at, closed_at))
    assert Hours.parse(str(hours)) == hours


@pytest.mark.parametrize("text", ["9", "9-", "25-3", "9-9", "24:30-3", "now", "9-17,"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"limits"):
        load(flags={"limits.hours": text})
