"""The second judgement on foreign groups: in the train loop, with the log-probabilities that training needs anyway.

A foreign group that passes here still gives nothing where every weight ends at zero; "used" is said only after an
optimiser step in which one of its completions had a weight. Own surprise (nats per own token that this node's own
completions cost it, per task) is tracked here, because the bound for text-only foreign negatives is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ftis_node.admission.verdict import Verdict
from ftis_node.records import JudgedGroup, ScoredGroup, TrainGroup
from ftis_protocol.errors import Reason
from ftis_protocol.rollout import Evidence

#: own completions of a task before its spread means anything
SURPRISE_MIN_COUNT = 32
#: weight of the past in the running mean and variance, per own completion
SURPRISE_DECAY = 0.99
#: how many spreads above the mean a foreign negative may cost
SURPRISE_SPREADS = 2.0


@dataclass(frozen=True, slots=True)
class Surprise:
    """Running mean and variance of nats per token over own completions of one task."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def with_value(self, nats: float) -> Surprise:
        """The statistics after one more completion; the first values weigh evenly, later ones by the decay."""
        weight = max(1 - SURPRISE_DECAY, 1 / (self.count + 1))
        gap = nats - self.mean
        mean = self.mean + weight * gap
        return Surprise(self.count + 1, mean, (1 - weight) * (self.variance + weight * gap * gap))

    @property
    def bound(self) -> float | None:
        """Nats per token up to which a foreign negative counts as something this policy could have said."""
        if self.count < SURPRISE_MIN_COUNT:
            return None
        return self.mean + SURPRISE_SPREADS * math.sqrt(self.variance)


@dataclass(frozen=True, slots=True)
class Judged:
    """What goes on to the update, and what was put aside with its reason."""

    groups: tuple[JudgedGroup, ...]
    unused: tuple[Verdict, ...]


class Judge:
    """Decides which scored foreign groups train. `negatives` is "off" or "surprise"."""

    def __init__(self, negatives: str, surprise: dict[str, Surprise] | None = None) -> None:
        assert negatives in ("off", "surprise"), negatives
        self._negatives = negatives
        self.surprise: dict[str, Surprise] = surprise or {}

    def observe_own(self, groups: Sequence[TrainGroup]) -> None:
        """Take the sampling-time log-probs of own groups as what own text costs this policy."""
        for group in groups:
            for completion in group.completions:
                if completion.behaviour_logprobs:
                    known = self.surprise.get(group.task, Surprise())
                    self.surprise[group.task] = known.with_value(-fmean(completion.behaviour_logprobs))

    def judge(self, scored: Sequence[ScoredGroup]) -> Judged:
        """Split scored foreign groups into those that may train and those that cannot."""
        kept: list[JudgedGroup] = []
        unused: list[Verdict] = []
        for item in scored:
            group = item.group
            if not all(math.isfinite(x) for row in item.start_logprobs for x in row):
                detail = "this node's own log-probabilities of it are not finite"
                unused.append(Verdict(group.author, group.task, group.digest, Reason.UNSCORABLE, detail))
                continue
            bound = self._bound(group) if group.evidence is Evidence.NONE else None
            kept.append(JudgedGroup(group, item.start_logprobs, bound))
        return Judged(tuple(kept), tuple(unused))

    def _bound(self, group: TrainGroup) -> float | None:
        if self._negatives == "off":
            return None
        return self.surprise.get(group.task, Surprise()).bound
