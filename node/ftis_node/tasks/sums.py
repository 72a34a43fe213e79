"""Sums with the working written out: free text, then a marker, then the answer.

How a model gets to the answer is its own affair, so models of unlike styles (one answers at once, another notes the sum
of each column first) meet on one task. The stop rule ends a completion with the number behind the first marker.

    "=934"    "14 13 9=934"    "units 14, tens 13, hundreds 9 =934"      all right for 478 + 456
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ftis_node.errors import UsageError
from ftis_node.records import ChatMessage
from ftis_node.tasks.base import Item, Task, draw, is_held_out, read_parameters
from ftis_protocol.manifest import TaskSpec

MAX_DIGITS = 9
MAX_TOKENS = 1024
#: numbers of digits whose pairs are few enough to be listed for the held-out part
LISTED_DIGITS = 2


class WrittenSumsTask(Task):
    """Parameters: `digits` of both numbers (1 means 0..9, 2 means 10..99, ...); `marker`, the text before the answer;
    `max_tokens` of a completion; `brief`, which asks with the bare sum, for models that were taught the form."""

    VERSION = 1

    def __init__(self, spec: TaskSpec) -> None:
        super().__init__(spec)
        chosen = read_parameters(spec, {"digits": 3, "marker": "=", "max_tokens": 64, "brief": False})
        self.digits, self.marker = int(chosen["digits"]), str(chosen["marker"])
        self.brief, self._max_tokens = bool(chosen["brief"]), int(chosen["max_tokens"])
        if not 1 <= self.digits <= MAX_DIGITS:
            raise UsageError(f"digits {self.digits} is out of range", hint=f"Choose 1 to {MAX_DIGITS}.")
        if not self.marker.strip() or self.marker[-1].isdigit() or len(self.marker) > 16:
            raise UsageError(
                f"marker {self.marker!r} cannot be used", hint='Give a short text that is no number, for instance "=".'
            )
        shortest = len(self.marker) + self.digits + 2
        if not shortest <= self._max_tokens <= MAX_TOKENS:
            raise UsageError(
                f"max_tokens {self._max_tokens} is out of range", hint=f"Choose {shortest} to {MAX_TOKENS}."
            )
        self._low = 0 if self.digits == 1 else 10 ** (self.digits - 1)
        self._high = 10**self.digits - 1
        self._size = self._high - self._low + 1

    @property
    def max_completion_tokens(self) -> int:
        """See Task.max_completion_tokens: the parameter `max_tokens`."""
        return self._max_tokens

    @property
    def stop_pattern(self) -> str:
        """Settled: behind the first marker a number of full length, one with something behind it, or no number."""
        marker, longest = re.escape(self.marker), len(str(2 * self._high))
        return rf"(?s)(?:(?!{marker}).)*{marker}(?: ?(?:[0-9]{{{longest}}}|[0-9]+[^0-9]|[^0-9 ])|  )"

    def item(self, seed: int, index: int) -> Item:
        """See Task.item: draws again, deterministically, until the item is not a held-out one."""
        attempt = 0
        while True:
            left, right = self._drawn("train", seed, index, attempt)
            if not _held(left, right):
                return self._item(left, right)
            attempt += 1

    def held_out(self, count: int) -> tuple[Item, ...]:
        """See Task.held_out: short numbers in a hashed order, complete; long ones by drawing without repetition."""
        if self.digits <= LISTED_DIGITS:
            numbers = range(self._low, self._high + 1)
            pairs = [(a, b) for a in numbers for b in numbers if _held(a, b)]
            return tuple(self._item(*pair) for pair in sorted(pairs, key=lambda p: draw("order", *p))[:count])
        found: dict[tuple[int, int], None] = {}
        for pair in self._endless_draws():
            if len(found) >= count:
                break
            if _held(*pair):
                found[pair] = None
        return tuple(self._item(*pair) for pair in found)

    def score(self, item: Item, text: str) -> float:
        """1.0 if the number behind the first marker is the answer, in plain decimal digits."""
        _, marker, rest = text.partition(self.marker)
        match = re.match(r" ?([0-9]+)(?![0-9])", rest) if marker else None
        return 1.0 if match is not None and match[1] == item.answer else 0.0

    def _drawn(self, *purpose: object) -> tuple[int, int]:
        left, right = (self._low + draw(*purpose, side) % self._size for side in ("left", "right"))
        return left, right

    def _endless_draws(self) -> Iterator[tuple[int, int]]:
        attempt = 0
        while True:
            yield self._drawn("probe", attempt)
            attempt += 1

    def _item(self, left: int, right: int) -> Item:
        question = f"{left}+{right}"
        first, second = sorted((left, right))
        asked = question if self.brief else _WORDING.format(question=question, marker=self.marker)
        return Item(
            key=f"{first}+{second}",
            messages=(ChatMessage(role="user", content=asked),),
            prefill="",
            answer=str(left + right),
            question=question,
        )


_WORDING = (
    "What is {question}? Work it out in a few words if you like, without writing {marker!r}; then write {marker!r} and "
    "the answer, nothing else."
)


def _held(left: int, right: int) -> bool:
    """By the unordered pair, so that a commuted sum gives nothing away."""
    low, high = sorted((left, right))
    return is_held_out("written-sums", f"{low}+{high}")
