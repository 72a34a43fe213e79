"""The F-TIS loss of one group and its relatives: pure tensor maths, without a model and without input or output.

Source: "F-TIS: Harnessing Diverse Models in Collaborative GRPO", arXiv 2605.22537. For the completions a_1..a_G that
one policy mu sampled for one prompt, with rewards r, maximise

    A_i  = (r_i - mean r) / std r                          over all G members, filtered ones included
    D_i  = sum_t log mu(a_it) - log pi_start(a_it)
    A'_i = 0 where A_i < 0 and D_i >= g, else A_i
    w_it = min(pi_start(a_it) / mu(a_it), C)
    R_it = pi(a_it) / pi_start(a_it)
    J    = 1/G sum_i 1/|a_i| sum_t w_it min(R_it A'_i, clip(R_it, 1 - eps_low, 1 + eps_high) A'_i)

The loss is -J. `pi` are the weights that learn, `pi_start` the same policy when the batch was taken up.

    estimator   ftis   tis    vis              f-vis            nois   f-nois
    w           above  above  without the cap  without the cap  1      1
    filter      yes    no     no               yes              no     yes

Deviations, and choices where the paper is silent:
  * w and D are constants taken from pi_start. With one optimiser step a batch that equals the paper's pi; attached to
    the graph, w would give every token below the cap its gradient a second time.
  * The filter compares D_i / |a_i| with 0.25 nats; `FtisSettings.paper()` compares the sum D_i with g = 50, which
    grows with the length of the text.
  * std is the population's. Only shaped rewards add 1e-4 to it. Whether there is a signal at all is asked of the
    outcome (right or wrong), so a shaped reward never makes an all-wrong group train.
  * |A| of foreign members is at most 3; foreign negatives that were cut at the token cap have A = 0. Neither holds
    for `nois`, which takes foreign groups as own ones.
  * What is known of mu decides w and the filter. A node's own groups always carry `token` evidence.
        token     log-probs of every token  w = min(pi_start / mu, C)            D as above
        sequence  their sum S               w = min(pi_start * exp(-S / |a|), C) D = S - sum_t log pi_start
        none      nothing, so mu <= 1       w = min(pi_start / 1, 1), which is   no D: see `negatives`
                                            the lower bound of the true ratio
  * `negatives` says which foreign ones reach the filter: "exact" those with a D, "surprise" also text-only ones, by
    the learner's own u = -mean_t log pi_start against a bound, "off" none whatever the estimator.
  * `positives` is the weight of a text-only member with A > 0: "pi" as above, "one" 1, "shaped" pi / (pi + 0.1), "tis"
    min(pi_start * exp(h), C), which guesses log mu = -h with h the mean surprise of the learner's own text.
  * Rescue rule: with a `rescue_gate` (the learner fails this task), A' = 1 and w = 1 for the right members with
    u <= gate, A' = 0 for all others; that holds for groups without a wrong member too.

Shapes: G members of the group, M <= G of them in this call (all others count as zero), C tokens of the longest, padded
on the right. Everything is in nats at temperature 1; every length counts the learner's tokens. Sums and weights are
float32, or float64 where the log-probs are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

import torch
from torch import Tensor

from ftis_node.policy.ftis_records import FtisInput, FtisLoss, FtisMetrics, FtisSettings
from ftis_protocol.rollout import Evidence

__all__ = [
    "FtisInput", "FtisLoss", "FtisMetrics", "FtisSettings", "carries_signal", "drift", "far_off",
    "filtered_advantages", "ftis_loss", "group_advantages", "importance_weights", "negatives_off", "surprise",
]  # fmt: skip


def carries_signal(rewards: Sequence[float], settings: FtisSettings) -> bool:
    """True when the group holds a right and a wrong answer."""
    right = [reward >= settings.right_reward for reward in rewards]
    return any(right) and not all(right)


def group_advantages(rewards: Sequence[float], settings: FtisSettings) -> tuple[float, ...]:
    """A of all G members: standardised rewards, all zero for a group without signal."""
    assert all(math.isfinite(r) for r in rewards), "rewards must be finite"
    if not carries_signal(rewards, settings):
        return (0.0,) * len(rewards)
    mean, spread = fmean(rewards), pstdev(rewards)
    if any(reward not in (0.0, 1.0) for reward in rewards):
        spread += settings.shaped_std_floor
    return tuple((reward - mean) / spread for reward in rewards)


def importance_weights(group: FtisInput) -> tuple[Tensor, Tensor]:
    """(w [M, C], capped [M, C]): the constant token weights, 0 on padding, and where the ratio exceeded its cap."""
    start, settings = _real(group.start_logprobs), group.settings
    if group.rescue_gate is not None or not settings.importance:
        return group.mask.to(start.dtype), torch.zeros_like(group.mask)
    cap = math.log(settings.weight_cap) if settings.capped else math.inf
    if group.tier is Evidence.TOKEN:
        assert group.behaviour_logprobs is not None
        log_ratio = start - group.behaviour_logprobs
    elif group.tier is Evidence.SEQUENCE:
        assert group.logprob_sum is not None
        log_ratio = start - (group.logprob_sum / group.lengths)[:, None]
    else:
        log_ratio, cap = _text_only_log_weights(group, start, cap)
    weights = log_ratio.clamp(max=cap).exp()
    return torch.where(group.mask, weights, 0.0), group.mask & (log_ratio > cap)


def _text_only_log_weights(group: FtisInput, start: Tensor, cap: float) -> tuple[Tensor, float]:
    """(log w [M, C], its cap) where nothing is known of the sampler: pi, and what was chosen for positives."""
    chosen, pi = group.settings.positives, start.clamp(max=0.0)
    if chosen == "pi":
        return start, 0.0
    if chosen == "tis":
        weights = start + (group.own_surprise or 0.0)
    elif chosen == "one":
        weights = torch.zeros_like(start)
    else:
        weights = pi - (pi.exp() + group.settings.shaped_gamma).log()
    positive = torch.tensor([a > 0 for a in _advantages(group)], device=start.device)
    return torch.where(positive[:, None], weights, pi), cap


def drift(group: FtisInput) -> Tensor | None:
    """D [M] in nats, summed over each completion; None where nothing is known of the sampler."""
    start = _token_sum(group.start_logprobs, group.mask)
    if group.tier is Evidence.TOKEN:
        assert group.behaviour_logprobs is not None
        return _token_sum(group.behaviour_logprobs, group.mask) - start
    if group.tier is Evidence.SEQUENCE:
        assert group.logprob_sum is not None
        return group.logprob_sum - start
    return None


def surprise(group: FtisInput) -> Tensor:
    """u [M]: what each completion costs the learner, in nats per token."""
    return -_token_sum(group.start_logprobs, group.mask) / group.lengths


def far_off(group: FtisInput) -> Tensor:
    """[M] True where a negative member loses its gradient: the filter's threshold, or the surprise bound."""
    settings, distance, off = group.settings, drift(group), negatives_off(group)
    if off or not settings.filters:
        return torch.full_like(group.lengths, off, dtype=torch.bool)
    if distance is None:
        assert group.surprise_bound is not None
        return surprise(group) >= group.surprise_bound
    if settings.filter_by == "sum":
        return distance >= settings.filter_sum_nats
    return distance / group.lengths >= settings.filter_mean_nats


def negatives_off(group: FtisInput) -> bool:
    """True where no negative of the group trains, whatever it is like."""
    settings = group.settings
    if group.own or settings.negatives == "off":
        return not group.own
    judged = settings.negatives == "surprise" and group.surprise_bound is not None
    return settings.filters and group.tier is Evidence.NONE and not judged


def filtered_advantages(group: FtisInput) -> tuple[Tensor, FtisMetrics]:
    """(A' [M], metrics with the member counts): what each member may teach, after every limit and the filter.

    A member whose weights are all zero (its text is impossible for the learner) teaches nothing either."""
    if group.rescue_gate is not None:
        return _rescued(group, group.rescue_gate)
    settings, kept = group.settings, list(_advantages(group))
    limited = not group.own and settings.estimator != "nois"
    most = settings.foreign_advantage_cap if limited and settings.foreign_advantage_cap is not None else math.inf
    filtered = capped = 0
    weighted = importance_weights(group)[0].any(-1).tolist()
    for row, (advantage, far) in enumerate(zip(kept, far_off(group).tolist(), strict=True)):
        kept[row] = max(-most, min(advantage, most)) if weighted[row] else 0.0
        if advantage >= 0:
            continue
        if group.length_capped[row] and limited and not settings.foreign_capped_negatives:
            kept[row], capped = 0.0, capped + 1
        elif far:
            kept[row], filtered = 0.0, filtered + 1
    off = negatives_off(group)
    counts = FtisMetrics(
        groups=1,
        members=len(kept),
        used=sum(a != 0 for a in kept),
        filtered=0 if off else filtered,
        negatives_off=filtered if off else 0,
        length_capped=capped,
        advantages=tuple(kept),
    )
    return torch.tensor(kept, device=group.mask.device, dtype=_real(group.start_logprobs).dtype), counts


def _rescued(group: FtisInput, gate: float) -> tuple[Tensor, FtisMetrics]:
    """What `filtered_advantages` gives while the rescue rule is on: 1 for right answers within the gate, else 0."""
    rewards = [group.rewards[m] for m in group.places]
    right = torch.tensor([r >= group.settings.right_reward for r in rewards], device=group.mask.device)
    kept = (right & (surprise(group) <= gate)).to(_real(group.start_logprobs).dtype)
    used = int(kept.sum())
    counts = FtisMetrics(groups=1, members=len(rewards), used=used, rescued=used, filtered=int(right.sum()) - used)
    return kept, counts + FtisMetrics(advantages=tuple(kept.tolist()))


def ftis_loss(group: FtisInput) -> FtisLoss:
    """-J of the given members and its metrics. Calls on disjoint members of one group add up to the whole group's."""
    advantages, counts = filtered_advantages(group)
    weights, capped = importance_weights(group)
    active = group.mask & (advantages != 0)[:, None]
    metrics = counts + _token_metrics(group, advantages, weights, capped & active, active)
    if not counts.used:
        return FtisLoss(torch.zeros((), device=group.mask.device), metrics)
    # Rows without weight are cut out before exp, so that nothing they hold can reach the gradient as 0 * inf.
    ratio = torch.where(active, _real(group.policy_logprobs) - group.start_logprobs, 0.0).exp()
    clipped = ratio.clamp(1 - group.settings.clip_low, 1 + group.settings.clip_high)
    surrogate = torch.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
    per_token = torch.where(active, weights * surrogate, 0.0)
    objective = (per_token.sum(-1) / group.lengths).sum() / len(group.rewards)
    return FtisLoss(-objective, metrics)


def _advantages(group: FtisInput) -> tuple[float, ...]:
    """A of the rows of this call."""
    everyone = group_advantages(group.rewards, group.settings)
    return tuple(everyone[m] for m in group.places)


def _real(values: Tensor) -> Tensor:
    return values if values.dtype is torch.float64 else values.float()


def _token_sum(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, _real(values), 0.0).sum(-1)


@torch.no_grad()
def _token_metrics(
    group: FtisInput, advantages: Tensor, weights: Tensor, capped: Tensor, active: Tensor
) -> FtisMetrics:
    settings, distance = group.settings, drift(group)
    log_ratio, up, down = group.policy_logprobs - group.start_logprobs, settings.clip_high, settings.clip_low
    beyond = torch.where(advantages[:, None] > 0, log_ratio > math.log1p(up), log_ratio < math.log1p(-down))
    used = torch.where(active, weights, 0.0)
    sums = torch.stack(
        [
            active.sum(), used.sum(), used.square().sum(), capped.sum(), (beyond & active).sum(),
            weights.new_zeros(()) if distance is None else distance.sum(), group.mask.sum(),
            -_token_sum(group.start_logprobs, group.mask).sum(),
        ]
    ).tolist()  # fmt: skip
    return FtisMetrics(
        tokens=int(sums[0]),
        weight_sum=sums[1],
        weight_square_sum=sums[2],
        weights_capped=int(sums[3]),
        ratios_clipped=int(sums[4]),
        drift=sums[5],
        drift_tokens=0 if distance is None else int(sums[6]),
        nats=sums[7],
        seen_tokens=int(sums[6]),
    )
