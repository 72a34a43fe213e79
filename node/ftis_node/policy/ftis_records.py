"""What goes into the F-TIS loss of one group and what comes out; the maths is in `ftis`.

Shapes: G members of the group, M <= G of them in this call, C tokens of the longest completion, padded on the right.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal, Self

import torch
from torch import Tensor

from ftis_node.config import Estimator, Negatives, Positives
from ftis_node.records import RIGHT_REWARD
from ftis_protocol.rollout import Evidence


@dataclass(frozen=True, slots=True)
class FtisSettings:
    """Choices and constants of the loss; `ftis` says what each does.

    `filter_by` chooses the statistic of the filter: the mean per token against `filter_mean_nats`, or the sum over the
    completion against `filter_sum_nats`. `shaped_gamma` belongs to `positives` "shaped". `right_reward` is the least
    reward of a right answer. `foreign_advantage_cap` None and `foreign_capped_negatives` True undo our two limits.
    """

    estimator: Estimator = "ftis"
    positives: Positives = "pi"
    negatives: Negatives = "exact"
    weight_cap: float = 2.0
    filter_by: Literal["mean", "sum"] = "mean"
    filter_mean_nats: float = 0.25
    filter_sum_nats: float = 50.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    shaped_gamma: float = 0.1
    foreign_advantage_cap: float | None = 3.0
    foreign_capped_negatives: bool = False
    right_reward: float = RIGHT_REWARD
    shaped_std_floor: float = 1e-4

    @classmethod
    def paper(cls, estimator: Estimator = "ftis") -> Self:
        """The published constants: C = 2, the sum of D against g = 50, eps = 0.2, and none of the limits added here."""
        return cls(
            estimator=estimator,
            weight_cap=2.0,
            filter_by="sum",
            filter_sum_nats=50.0,
            clip_low=0.2,
            clip_high=0.2,
            foreign_advantage_cap=None,
            foreign_capped_negatives=True,
        )

    @property
    def importance(self) -> bool:
        """Whether tokens weigh by their importance ratio; otherwise every weight is 1."""
        return self.estimator not in ("nois", "f-nois")

    @property
    def capped(self) -> bool:
        """Whether that ratio is cut at `weight_cap`."""
        return self.estimator in ("ftis", "tis")

    @property
    def filters(self) -> bool:
        """Whether far-off negatives lose their gradient."""
        return self.estimator in ("ftis", "f-nois", "f-vis")


@dataclass(frozen=True, slots=True)
class FtisInput:
    """M members of one group of G. `members[m]` is the place of row m in the group (None: all G rows are here).

    policy_logprobs [M, C] with gradient, start_logprobs [M, C] without; mask [M, C] is True on real tokens, at least
    one per row; rewards of all G; length_capped [M] tells completions cut at the token cap; behaviour_logprobs [M, C]
    for own groups and `token` evidence; logprob_sum [M] for `sequence`. In nats per token: surprise_bound for the
    negatives of `none` (None: not known yet), own_surprise what own text costs the learner on average (None as well),
    rescue_gate the bound of the rescue rule (None: the rule is off for this group's task).
    """

    policy_logprobs: Tensor
    start_logprobs: Tensor
    mask: Tensor
    rewards: tuple[float, ...]
    length_capped: tuple[bool, ...]
    evidence: Evidence
    own: bool
    behaviour_logprobs: Tensor | None = None
    logprob_sum: Tensor | None = None
    surprise_bound: float | None = None
    own_surprise: float | None = None
    rescue_gate: float | None = None
    members: tuple[int, ...] | None = None
    settings: FtisSettings = field(default_factory=FtisSettings)

    def __post_init__(self) -> None:
        rows, shape = len(self.places), self.mask.shape
        assert self.mask.dtype == torch.bool, "mask must be boolean"
        assert shape[0] == rows, "one row per member"
        assert shape == self.policy_logprobs.shape == self.start_logprobs.shape, "ragged group"
        assert len(self.length_capped) == rows, "one length flag per row"
        assert not self.start_logprobs.requires_grad, "start_logprobs are constants"
        assert self.rescue_gate is None or not self.own, "only foreign text can rescue"
        if self.tier is Evidence.TOKEN:
            assert self.behaviour_logprobs is not None, "token evidence needs the sampler's log-probs"
            assert self.behaviour_logprobs.shape == shape, "one sampler log-prob per token"
        if self.tier is Evidence.SEQUENCE:
            assert self.logprob_sum is not None, "sequence evidence needs the sampler's sums"
            assert self.logprob_sum.shape == shape[:1], "one sum per row"

    @property
    def tier(self) -> Evidence:
        """What is known of the sampler; own groups always know everything."""
        return Evidence.TOKEN if self.own else self.evidence

    @property
    def places(self) -> tuple[int, ...]:
        """Where in the group each row stands."""
        return self.members if self.members is not None else tuple(range(len(self.rewards)))

    @property
    def lengths(self) -> Tensor:
        """Tokens per row [M]."""
        return self.mask.sum(-1)


@dataclass(frozen=True, slots=True)
class FtisMetrics:
    """Counts and sums that add up over groups (`+`); ratios are properties, None while nothing was counted.

    members: rows seen. used: with a gradient; rescued: those of them by the rescue rule. filtered: dropped by the
    filter or the rescue gate. negatives_off: foreign negatives that no statistic could judge. length_capped: foreign
    negatives cut at the cap. Of the used rows: tokens, weight sums, tokens whose ratio exceeded its cap, tokens whose R
    the PPO clip held. drift: sum of log mu - log pi_start over the drift_tokens whose sampler is known. nats: sum of
    -log pi_start over seen_tokens, those of all rows. advantages: A' per row, in row order.
    """

    groups: int = 0
    members: int = 0
    used: int = 0
    rescued: int = 0
    filtered: int = 0
    negatives_off: int = 0
    length_capped: int = 0
    tokens: int = 0
    weight_sum: float = 0.0
    weight_square_sum: float = 0.0
    weights_capped: int = 0
    ratios_clipped: int = 0
    drift: float = 0.0
    drift_tokens: int = 0
    nats: float = 0.0
    seen_tokens: int = 0
    advantages: tuple[float, ...] = ()

    def __add__(self, other: FtisMetrics) -> FtisMetrics:
        return FtisMetrics(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def mean_weight(self) -> float | None:
        return self.weight_sum / self.tokens if self.tokens else None

    @property
    def weights_capped_ratio(self) -> float | None:
        """Share of used tokens whose importance ratio was cut at the cap."""
        return self.weights_capped / self.tokens if self.tokens else None

    @property
    def ratios_clipped_ratio(self) -> float | None:
        """Share of used tokens without gradient because R left the clip range."""
        return self.ratios_clipped / self.tokens if self.tokens else None

    @property
    def effective_sample_ratio(self) -> float | None:
        """(sum w)^2 / sum w^2 over the used tokens, as a share of them: 1 when all weigh the same."""
        if not self.weight_square_sum:
            return None
        return self.weight_sum**2 / self.weight_square_sum / self.tokens

    @property
    def mismatch(self) -> float | None:
        """Mean of log mu - log pi_start in nats per token: the k1 estimate of KL(mu || pi_start)."""
        return self.drift / self.drift_tokens if self.drift_tokens else None

    @property
    def surprise(self) -> float | None:
        """Mean of -log pi_start in nats per token, over all members, filtered ones included."""
        return self.nats / self.seen_tokens if self.seen_tokens else None


@dataclass(frozen=True, slots=True)
class FtisLoss:
    """`loss` is -J of the group: a float32 scalar, float64 where the log-probs are; exactly 0 and without a graph when
    no member is used."""

    loss: Tensor
    metrics: FtisMetrics
