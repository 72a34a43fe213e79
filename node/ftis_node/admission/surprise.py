"""What a node's own text costs its own policy, and which foreign text is close enough to that.

Tracked per task from the log-probabilities that sampling gives anyway. All figures are in nats per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: own completions of a task before its statistics mean anything
MIN_COUNT = 32
#: weight of the past in the running mean and variance, per own completion
DECAY = 0.99
#: how many spreads above the mean a foreign negative may cost
BOUND_SPREADS = 2.0
#: what a text may cost that trains by the rescue rule, while the statistics are young
YOUNG_GATE_NATS = 2.0


@dataclass(frozen=True, slots=True)
class Surprise:
    """Running mean and variance of nats per token over own completions of one task."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def with_value(self, nats: float) -> Surprise:
        """The statistics after one more completion; the first values weigh evenly, later ones by the decay."""
        weight = max(1 - DECAY, 1 / (self.count + 1))
        gap = nats - self.mean
        mean = self.mean + weight * gap
        return Surprise(self.count + 1, mean, (1 - weight) * (self.variance + weight * gap * gap))

    @property
    def young(self) -> bool:
        """Too little own text so far to say anything."""
        return self.count < MIN_COUNT

    @property
    def usual(self) -> float | None:
        """What own text costs on average; None while young."""
        return None if self.young else self.mean

    @property
    def bound(self) -> float | None:
        """Up to which a foreign negative counts as something this policy could have said; None while young."""
        return None if self.young else self.mean + BOUND_SPREADS * math.sqrt(self.variance)

    def gate(self, nats: float) -> float:
        """Up to which a right foreign text may rescue: `nats` above the own mean, an absolute 2 nats while young."""
        return YOUNG_GATE_NATS if self.young else self.mean + nats
