"""Two models on the same held-out items: what changed item by item, and how sure one may be of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: standard errors on either side of the difference that make an interval of 95 %
INTERVAL_ERRORS = 1.96


@dataclass(frozen=True, slots=True)
class Paired:
    """`gained` items are right only with the first model, `lost` only with the second, out of `items`."""

    gained: int
    lost: int
    items: int

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> Paired:
        """Compare answers to the same items, in the same order."""
        assert len(first) == len(second), "the same items"
        pairs = list(zip(first, second, strict=True))
        return cls(sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs), len(pairs))

    @property
    def difference(self) -> float:
        """Pass@1 of the first minus that of the second."""
        return (self.gained - self.lost) / self.items if self.items else math.nan

    @property
    def standard_error(self) -> float:
        """Of the difference, from the spread of the items' own differences."""
        if not self.items:
            return math.nan
        changed = (self.gained + self.lost) / self.items
        return math.sqrt(max(0.0, changed - self.difference**2) / self.items)

    @property
    def interval(self) -> tuple[float, float]:
        """About 95 %: normal approximation of the paired difference."""
        reach = INTERVAL_ERRORS * self.standard_error
        return max(-1.0, self.difference - reach), min(1.0, self.difference + reach)

    @property
    def p_value(self) -> float:
        """McNemar's exact test, two-sided: how often chance alone would tip the changed items as far as this."""
        changed, fewer = self.gained + self.lost, min(self.gained, self.lost)
        tail = sum(math.comb(changed, k) for k in range(fewer + 1))
        return float(min(1.0, 2 * tail / 2**changed))
