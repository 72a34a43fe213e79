"""Sums, differences and products of whole numbers.

The assistant's turn begins with the expression ("3 * 4 ="), so a completion is little more than a number and even a
very small model can express an answer. The stop rule ends it where its outcome is settled, which leaves no free text
whose style could drift.

A space is a choice of operations and digits, e.g. "+-" with digits = 1: all of a + b and a - b with a, b in 0..9.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import product

from ftis_node.errors import UsageError
from ftis_node.records import ChatMessage
from ftis_node.tasks.base import Item, Task, draw, is_held_out, read_parameters
from ftis_protocol.manifest import TaskSpec

OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
MAX_DIGITS = 9
MAX_BLANKS = 2  # between the prefill and the number
ENUMERABLE_ITEMS = 50_000  # larger spaces are sampled for their held-out items


class ArithmeticTask(Task):
    """Parameters: `operations`, some of "+-*"; `digits` of both operands (1 means 0..9, 2 means 10..99, ...)."""

    VERSION = 1

    def __init__(self, spec: TaskSpec) -> None:
        super().__init__(spec)
        chosen = read_parameters(spec, {"operations": "+-", "digits": 1})
        self.operations, self.digits = str(chosen["operations"]), int(chosen["digits"])
        if not self.operations or set(self.operations) - set(OPERATIONS):
            raise UsageError(
                f"operations {self.operations!r} of task {spec.name!r} cannot be used",
                hint='Give some of + - *, for instance "+-".',
            )
        if len(set(self.operations)) < len(self.operations):
            raise UsageError(f"operations {self.operations!r} name one twice", hint="Name each operation once.")
        if not 1 <= self.digits <= MAX_DIGITS:
            raise UsageError(f"digits {self.digits} is out of range", hint=f"Choose 1 to {MAX_DIGITS}.")
        self._low = 0 if self.digits == 1 else 10 ** (self.digits - 1)
        self._high = 10**self.digits - 1
        self._answer_digits = max(len(str(abs(a))) for a in self._extreme_answers())
        self._sign = "-?" if min(self._extreme_answers()) < 0 else ""

    @property
    def max_completion_tokens(self) -> int:
        """Room for blank, sign, digits and what ends them, at one token a character."""
        return self._answer_digits + 4

    @property
    def stop_pattern(self) -> str:
        """Settled: a number of full length, a number with something behind it, or what cannot become a number."""
        blanks, number = f" {{0,{MAX_BLANKS}}}", f"{self._sign}[0-9]"
        no_number = "[^-0-9 ]|" + ("-[^0-9]" if self._sign else "-")
        return f"{blanks}(?:{number}{{{self._answer_digits}}}|{number}+[^0-9]|{no_number})| {{{MAX_BLANKS + 1}}}"

    def item(self, seed: int, index: int) -> Item:
        """See Task.item: draws again, deterministically, until the item is not a held-out one."""
        attempt = 0
        while True:
            chosen = self._drawn("train", seed, index, attempt)
            if not self._held(*chosen):
                return _item(*chosen)
            attempt += 1

    def held_out(self, count: int) -> tuple[Item, ...]:
        """See Task.held_out: small spaces in a hashed order, complete; large ones by drawing without repetition."""
        if len(self.operations) * (self._high - self._low + 1) ** 2 <= ENUMERABLE_ITEMS:
            return tuple(_item(*e) for e in self._all_held[:count])
        found: dict[tuple[int, str, int], None] = {}
        for chosen in self._endless_draws():
            if len(found) >= count:
                break
            if self._held(*chosen):
                found[chosen] = None
        return tuple(_item(*e) for e in found)

    def score(self, item: Item, text: str) -> float:
        """1.0 if the text begins with the answer, in plain decimal digits and not as a part of a longer number."""
        match = re.match(rf" {{0,{MAX_BLANKS}}}(-?[0-9]+)(?![0-9])", text)
        return 1.0 if match is not None and match[1] == item.answer else 0.0

    @cached_property
    def _all_held(self) -> list[tuple[int, str, int]]:
        numbers = range(self._low, self._high + 1)
        held = [e for e in product(numbers, self.operations, numbers) if self._held(*e)]
        return sorted(held, key=lambda e: draw("order", *e))

    def _extreme_answers(self) -> list[int]:
        ends = (self._low, self._high)
        return [OPERATIONS[o](a, b) for o in self.operations for a in ends for b in ends]

    def _drawn(self, *purpose: object) -> tuple[int, str, int]:
        size = self._high - self._low + 1
        left, right = (self._low + draw(*purpose, side) % size for side in ("left", "right"))
        return left, self.operations[draw(*purpose, "operation") % len(self.operations)], right

    def _endless_draws(self) -> Iterator[tuple[int, str, int]]:
        attempt = 0
        while True:
            yield self._drawn("probe", attempt)
            attempt += 1

    @staticmethod
    def _held(left: int, sign: str, right: int) -> bool:
        """By the unordered pair, so that neither a commuted sum nor a mirrored difference gives a held-out one away."""
        low, high = sorted((left, right))
        return is_held_out("arithmetic", f"{low}{sign}{high}")


def _item(left: int, sign: str, right: int) -> Item:
    expression = f"{left} {sign} {right}"
    first, second = (left, right) if sign == "-" else sorted((left, right))
    return Item(
        key=f"{first}{sign}{second}",
        messages=(ChatMessage(role="user", content=expression),),
        prefill=f"{expression} =",
        answer=str(OPERATIONS[sign](left, right)),
        question=expression,
    )
