"""Ways to write an answer down. Models that were taught unlike ones talk past each other, which is what exchange has to
stand."""

from __future__ import annotations

from random import Random
from typing import Literal

from ftis_node.tasks.base import Item

Style = Literal["plain", "direct", "columns", "undecided"]

#: how often an undecided model answers at once; share of wrong digits in what it notes otherwise
AT_ONCE = 0.5
GUESSED = 0.5


def lesson(item: Item, style: Style, noise: float, chance: Random) -> tuple[str, bool]:
    """(a completion to learn from, whether it is faultless); each digit is replaced with probability `noise`.

    An undecided model answers at once, or imitates the working of others without understanding it: of what it samples,
    the right and the wrong answers differ in style."""
    if style == "undecided":
        at_once = chance.random() < AT_ONCE
        style, noise = ("direct", noise) if at_once else ("columns", GUESSED)
    faultless = written(item, style)
    text = smudged(faultless, noise, chance)
    return text, text == faultless


def smudged(text: str, noise: float, chance: Random) -> str:
    """`text` with each digit replaced by another one with probability `noise`."""
    wrong = {digit: "0123456789".replace(digit, "") for digit in "0123456789"}
    return "".join(chance.choice(wrong[c]) if c in wrong and chance.random() < noise else c for c in text)


def written(item: Item, style: Literal["plain", "direct", "columns"]) -> str:
    """The right completion of `item`: " 934" (plain), "934=934" (direct) or "14 13 9=934" (columns, for sums only)."""
    if style == "plain":
        return f" {item.answer}"
    working = " ".join(map(str, column_sums(item.question))) if style == "columns" else item.answer
    return f"{working}={item.answer}"


def column_sums(question: str) -> list[int]:
    """What each column of "478+456" adds up to, units first, carries included: [14, 13, 9]."""
    left, right = (map(int, reversed(number)) for number in question.split("+"))
    sums, carry = [], 0
    for one, other in zip(left, right, strict=True):
        sums.append(one + other + carry)
        carry = sums[-1] // 10
    return sums
