"""What steers an optimiser step and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from ftis_node.policy.ftis_records import FtisMetrics, FtisSettings
from ftis_node.records import Origin, TrainGroup


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """AdamW and the shape of the passes. `warmup_steps` raise the rate linearly at the start of a run. `micro_tokens`
    bounds the tokens of one pass (prompt once, completions padded to the longest). After `max_nonfinite_steps` skipped
    steps in a row the run stops."""

    learning_rate: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    max_gradient_norm: float = 1.0
    micro_tokens: int = 8192
    max_nonfinite_steps: int = 5
    ftis: FtisSettings = field(default_factory=FtisSettings)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What one group gave. `surprise` is each member's mean -log pi_start in nats per token, empty for a group that was
    dropped before the pass because all outcomes agree."""

    group: TrainGroup
    metrics: FtisMetrics
    loss: float
    surprise: tuple[float, ...] = ()

    @property
    def used(self) -> bool:
        """True when a member had a weight."""
        return self.metrics.used > 0


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One call of `update`. `stepped`: the weights changed. `finite`: False for a step skipped because of its loss or
    gradient. `loss` is the mean over the groups drawn, `gradient_norm` that before clipping (nan when no pass was
    needed; an unfinite loss is nan and leaves `outcomes` empty). `tokens` went through the passes, prompts included."""

    stepped: bool
    finite: bool
    loss: float
    gradient_norm: float
    learning_rate: float
    drawn: int
    outcomes: tuple[GroupOutcome, ...]
    policy_version: int
    seconds: float
    tokens: int

    def metrics(self, origin: Origin) -> FtisMetrics:
        """Sums over own or foreign groups, those without signal included."""
        return sum((o.metrics for o in self.outcomes if o.group.origin is origin), FtisMetrics())

    def used_groups(self, origin: Origin) -> int:
        """Groups of that origin which moved the weights."""
        return sum(o.used for o in self.outcomes if o.group.origin is origin) if self.stepped else 0

    @property
    def used_digests(self) -> frozenset[bytes]:
        """Digests of the groups that moved the weights; empty when no step was taken."""
        return frozenset(o.group.digest for o in self.outcomes if o.used) if self.stepped else frozenset()
