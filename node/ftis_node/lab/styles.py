"""Ways to write an answer down. Models that were taught unlike ones talk past each other, which is what exchange has to
stand."""

from __future__ import annotations

from typing import Literal

from ftis_node.tasks.base import Item

Style = Literal["plain", "direct", "columns"]


def written(item: Item, style: Style) -> str:
    """The right completion of `item`: " 934" (plain), "=934" (direct) or "14 13 9=934" (columns, for sums only)."""
    if style == "plain":
        return f" {item.answer}"
    working = " ".join(map(str, column_sums(item.question))) if style == "columns" else ""
    return f"{working}={item.answer}"


def column_sums(question: str) -> list[int]:
    """What each column of "478+456" adds up to, units first, carries included: [14, 13, 9]."""
    left, right = (map(int, reversed(number)) for number in question.split("+"))
    sums, carry = [], 0
    for one, other in zip(left, right, strict=True):
        sums.append(one + other + carry)
        carry = sums[-1] // 10
    return sums
