"""What steers an optimiser step and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from ftis_node.policy.ftis_records import FtisMetrics, FtisSettings
from ftis_node.records import Origin, TrainGroup


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """AdamW and the shape of a batch. `optimiser_steps` is the number of steps that a batch is split into, `epochs` how
    often it is gone through. `warmup_steps` raise the rate linearly at the start of a run. `micro_tokens` bounds the
    tokens of one pass (prompt once, completions padded to the longest). After `max_nonfinite_steps` skipped steps in a
    row the run stops."""

    learning_rate: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    max_gradient_norm: float = 1.0
    micro_tokens: int = 8192
    max_nonfinite_steps: int = 5
    optimiser_steps: int = 1
    epochs: int = 1
    ftis: FtisSettings = field(default_factory=FtisSettings)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What one group gave. `surprise` is each member's mean -log pi_start in nats per token, empty for a group that was
    dropped before the pass because all outcomes agree; `weights` is each member's mean importance weight per token, and
    empty as well. `fates` says in a word what became of each member (see `ftis_fates`)."""

    group: TrainGroup
    metrics: FtisMetrics
    loss: float
    surprise: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    fates: tuple[str, ...] = ()

    @property
    def used(self) -> bool:
        """True when a member had a weight."""
        return self.metrics.used > 0


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One call of `update`. `steps`: how often the weights changed. `skipped`: steps that were not taken because their
    loss or gradient was not finite. `outcomes` are those of all groups whose loss was finite, at their last pass;
    `loss` is their mean over the groups drawn (nan if a step was skipped and none is left), `gradient_norm` that before
    clipping, averaged over the steps taken (nan without one). `used_digests` name the groups that moved the weights.
    `tokens` went through the passes with gradient, prompts included."""

    steps: int
    skipped: int
    loss: float
    gradient_norm: float
    learning_rate: float
    drawn: int
    outcomes: tuple[GroupOutcome, ...]
    used_digests: frozenset[bytes]
    policy_version: int
    seconds: float
    tokens: int

    @property
    def stepped(self) -> bool:
        """The weights changed."""
        return self.steps > 0

    @property
    def finite(self) -> bool:
        """No step was skipped."""
        return self.skipped == 0

    def metrics(self, origin: Origin) -> FtisMetrics:
        """Sums over own or foreign groups, those without signal included."""
        return sum((o.metrics for o in self.outcomes if o.group.origin is origin), FtisMetrics())

    def used_groups(self, origin: Origin) -> int:
        """Groups of that origin which moved the weights."""
        return sum(o.group.digest in self.used_digests for o in self.outcomes if o.group.origin is origin)
