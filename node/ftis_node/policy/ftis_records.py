"""What goes into the F-TIS loss of one group and what comes out; the maths is in `ftis`.

Shapes: G members of the group, M <= G of them in this call, C tokens of the longest completion, padded on the right.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal, Self

import torch
from torch import Tensor

from ftis_protocol.rollout import Evidence


@dataclass(frozen=True, slots=True)
class FtisSettings:
    """Constants of the estimator. `filter_by` chooses the statistic of the filter: the per-token mean against
    `filter_mean_nats`, the sum over the completion against `filter_sum_nats`, or "off". `right_reward` is the least
    reward of a right answer. `foreign_advantage_cap` None and `foreign_capped_negatives` True undo our two limits."""

    weight_cap: float = 2.0
    filter_by: Literal["mean", "sum", "off"] = "mean"
    filter_mean_nats: float = 0.25
    filter_sum_nats: float = 50.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    foreign_advantage_cap: float | None = 3.0
    foreign_capped_negatives: bool = False
    right_reward: float = 0.99
    shaped_std_floor: float = 1e-4

    @classmethod
    def paper(cls) -> Self:
        """The paper's constants, without the limits added here."""
        return cls(filter_by="sum", foreign_advantage_cap=None, foreign_capped_negatives=True)


@dataclass(frozen=True, slots=True)
class FtisInput:
    """M members of one group of G. `members[m]` is the place of row m in the group (None: all G rows are here).

    policy_logprobs [M, C] with gradient, start_logprobs [M, C] without; mask [M, C] is True on real tokens, at least
    one per row; rewards of all G; length_capped [M] tells completions cut at the token cap; behaviour_logprobs [M, C]
    for own groups and `token` evidence; logprob_sum [M] for `sequence`; surprise_bound in nats per token for `none`,
    None while its negatives are switched off.
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
    members: tuple[int, ...] | None = None
    settings: FtisSettings = field(default_factory=FtisSettings)

    def __post_init__(self) -> None:
        rows = len(self.members) if self.members is not None else len(self.rewards)
        shape = self.mask.shape
        assert self.mask.dtype == torch.bool, "mask must be boolean"
        assert shape[0] == rows, "one row per member"
        assert shape == self.policy_logprobs.shape == self.start_logprobs.shape, "ragged group"
        assert len(self.length_capped) == rows, "one length flag per row"
        assert not self.start_logprobs.requires_grad, "start_logprobs are constants"
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
    def lengths(self) -> Tensor:
        """Tokens per row [M]."""
        return self.mask.sum(-1)


@dataclass(frozen=True, slots=True)
class FtisMetrics:
    """Counts and sums that add up over groups (`+`); ratios are properties, None while nothing was counted.

    members: rows seen. used: with a gradient. filtered: negatives dropped by the filter. negatives_off: negatives of
    text-only groups while those are off. length_capped: foreign negatives cut at the cap. Of the used rows: tokens,
    weight sums, tokens whose ratio exceeded its cap, tokens whose R the PPO clip held. drift: sum of log mu - log
    pi_start over the drift_tokens whose sampler is known. advantages: A' per row, in row order.
    """

    groups: int = 0
    members: int = 0
    used: int = 0
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


@dataclass(frozen=True, slots=True)
class FtisLoss:
    """`loss` is -J of the group (float32 scalar; exactly 0 and without a graph when no member is used)."""

    loss: Tensor
    metrics: FtisMetrics
