"""The tensor code against the formula written out token by token in plain Python, on random groups."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftis_node.policy.ftis import FtisInput, FtisSettings, ftis_loss
from ftis_protocol.rollout import Evidence

LOGPROB = st.floats(-4.0, -0.01)


@dataclass(frozen=True)
class Row:
    start: tuple[float, ...]
    moved: tuple[float, ...]  # log pi - log pi_start
    mu: tuple[float, ...]
    reward: float
    capped: bool


@st.composite
def row(draw: st.DrawFn) -> Row:
    length = draw(st.integers(1, 4))
    values = [
        tuple(draw(st.lists(s, min_size=length, max_size=length))) for s in (LOGPROB, st.floats(-0.5, 0.5), LOGPROB)
    ]
    near = draw(st.booleans())  # half of the samplers are close, so that both sides of the filter are met
    mu = tuple(s + 0.1 * m for s, m in zip(values[0], values[1], strict=True)) if near else values[2]
    return Row(values[0], values[1], mu, draw(st.sampled_from([0.0, 1.0, 1.0, 0.4])), draw(st.booleans()))


def slow_loss(rows: list[Row], tier: Evidence, own: bool, bound: float | None, known: FtisSettings) -> float:
    rewards = [r.reward for r in rows]
    mean = sum(rewards) / len(rows)
    std = sqrt(sum((r - mean) ** 2 for r in rewards) / len(rows))
    if any(r not in (0, 1) for r in rewards):
        std += 1e-4
    right = [r >= 0.99 for r in rewards]
    if all(right) or not any(right):
        return 0.0
    objective = 0.0
    for r in rows:
        length, advantage = len(r.start), (r.reward - mean) / std
        distance = sum(r.mu) - sum(r.start)
        if tier is Evidence.NONE and not own:
            far = bound is None or -sum(r.start) / length >= bound
        elif known.filter_by == "sum":
            far = distance >= known.filter_sum_nats
        else:
            far = distance / length >= known.filter_mean_nats
        if not own and known.foreign_advantage_cap is not None:
            advantage = min(max(advantage, -known.foreign_advantage_cap), known.foreign_advantage_cap)
        if advantage < 0 and (far or (r.capped and not own and not known.foreign_capped_negatives)):
            continue
        total = 0.0
        for t in range(length):
            if own or tier is Evidence.TOKEN:
                weight = min(exp(r.start[t]) / exp(r.mu[t]), known.weight_cap)
            elif tier is Evidence.SEQUENCE:
                weight = min(exp(r.start[t]) * exp(-sum(r.mu) / length), known.weight_cap)
            else:
                weight = min(exp(r.start[t]), 1.0)
            ratio = exp(r.moved[t])
            held = min(max(ratio, 1 - known.clip_low), 1 + known.clip_high)
            total += weight * min(ratio * advantage, held * advantage)
        objective += total / length / len(rows)
    return -objective


def pad(rows: list[tuple[float, ...]]) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*r, *[-3.0] * (width - len(r))] for r in rows], dtype=torch.float64)


def as_input(rows: list[Row], tier: Evidence, own: bool, bound: float | None, known: FtisSettings) -> FtisInput:
    start, moved = pad([r.start for r in rows]), pad([r.moved for r in rows])
    lengths = torch.tensor([len(r.start) for r in rows])
    return FtisInput(
        policy_logprobs=(start + moved).requires_grad_(),
        start_logprobs=start,
        mask=torch.arange(start.shape[1]) < lengths[:, None],
        rewards=tuple(r.reward for r in rows),
        length_capped=tuple(r.capped for r in rows),
        evidence=tier,
        own=own,
        behaviour_logprobs=pad([r.mu for r in rows]),
        logprob_sum=torch.tensor([sum(r.mu) for r in rows], dtype=torch.float64),
        surprise_bound=bound,
        settings=known,
    )


def near_a_threshold(rows: list[Row], bound: float | None, known: FtisSettings) -> bool:
    """Rounding may fall on either side there; such groups say nothing."""
    gaps = [bound + sum(r.start) / len(r.start) for r in rows] if bound is not None else []
    for r in rows:
        distance = sum(r.mu) - sum(r.start)
        gaps += [distance - known.filter_sum_nats, distance / len(r.start) - known.filter_mean_nats]
        gaps += [m - log(edge) for m in r.moved for edge in (1 - known.clip_low, 1 + known.clip_high)]
    return any(abs(gap) < 1e-4 for gap in gaps)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(row(), min_size=2, max_size=6),
    tier=st.sampled_from(list(Evidence)),
    own=st.booleans(),
    bound=st.one_of(st.none(), st.floats(0.1, 4.0)),
    known=st.sampled_from([FtisSettings(), FtisSettings.paper(), FtisSettings(weight_cap=1.0, filter_mean_nats=0.05)]),
)
def test_equals_the_slow_reference(
    rows: list[Row], tier: Evidence, own: bool, bound: float | None, known: FtisSettings
) -> None:
    if near_a_threshold(rows, bound, known):
        return
    loss = ftis_loss(as_input(rows, tier, own, bound, known)).loss
    assert loss.item() == pytest.approx(slow_loss(rows, tier, own, bound, known), rel=1e-4, abs=1e-5)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(row(), min_size=2, max_size=4), tier=st.sampled_from(list(Evidence)), own=st.booleans())
def test_gradient_equals_finite_differences(rows: list[Row], tier: Evidence, own: bool) -> None:
    known, bound, step = FtisSettings(), 2.0, 1e-5
    if near_a_threshold(rows, bound, known):
        return
    built = as_input(rows, tier, own, bound, known)
    loss = ftis_loss(built).loss
    found = torch.zeros_like(built.policy_logprobs)
    if loss.requires_grad:
        (found,) = torch.autograd.grad(loss, built.policy_logprobs)
    for i, r in enumerate(rows):
        for t in range(len(r.start)):
            values = []
            for sign in (1, -1):
                moved = tuple(m + sign * step * (k == t) for k, m in enumerate(r.moved))
                changed = [*rows[:i], Row(r.start, moved, r.mu, r.reward, r.capped), *rows[i + 1 :]]
                values.append(slow_loss(changed, tier, own, bound, known))
            assert found[i, t].item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-3, abs=1e-5)
        assert not found[i, len(r.start) :].any()
