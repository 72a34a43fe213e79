"""The tensor code against the slow reference in float64, on random groups: value and gradient, one step and several."""

from __future__ import annotations

from math import exp, log
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from slow_ftis import Choices, Row, near_a_threshold, slow_loss

from ftis_node.policy.ftis import FtisInput, FtisSettings, ftis_loss
from ftis_protocol.rollout import Evidence

Now = list[tuple[float, ...]]
CLOSE = {"rel": 1e-6, "abs": 1e-9}
QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
LOGPROB = st.floats(-4.0, -0.01)
ESTIMATORS = ("ftis", "tis", "f-nois", "nois", "vis", "f-vis")


def choices(**fixed: Any) -> st.SearchStrategy[Choices]:
    nats = st.one_of(st.none(), st.floats(0.1, 4.0))
    free: dict[str, st.SearchStrategy[Any]] = {
        "estimator": st.sampled_from(ESTIMATORS),
        "tier": st.sampled_from([tier.value for tier in Evidence]),
        "own": st.booleans(),
        "positives": st.sampled_from(["pi", "tis", "one", "shaped"]),
        "negatives": st.sampled_from(["exact", "surprise", "off"]),
        "paper": st.booleans(),
        "bound": nats,
        "own_surprise": nats,
        "gate": st.one_of(st.none(), st.none(), st.floats(0.1, 4.0)),
    }
    made = st.builds(Choices, **{**free, **{key: st.just(value) for key, value in fixed.items()}})
    return made.filter(lambda how: how.gate is None or not how.own)


@st.composite
def row(draw: st.DrawFn, tokens: st.SearchStrategy[float] = LOGPROB) -> Row:
    length = draw(st.integers(1, 4))
    start = tuple(draw(st.lists(tokens, min_size=length, max_size=length)))
    mu = tuple(draw(st.lists(LOGPROB, min_size=length, max_size=length)))
    if draw(st.booleans()):  # half of the samplers are close, so that both sides of the filter are met
        mu = tuple(s + 0.1 * (m + 2) for s, m in zip(start, mu, strict=True))
    return Row(start, mu, draw(st.sampled_from([0.0, 0.0, 1.0, 1.0, 0.4])), draw(st.booleans()))


@st.composite
def group(draw: st.DrawFn) -> tuple[list[Row], Now]:
    rows = draw(st.lists(row(), min_size=2, max_size=6))
    return rows, [tuple(s + draw(st.floats(-0.5, 0.5)) for s in r.start) for r in rows]


def pad(rows: Now) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*r, *[-3.0] * (width - len(r))] for r in rows], dtype=torch.float64)


def as_input(rows: list[Row], now: torch.Tensor, how: Choices) -> FtisInput:
    """The same group for the node; `now` is [M, C]."""
    lengths = torch.tensor([len(r.start) for r in rows])
    base = FtisSettings.paper() if how.paper else FtisSettings()
    fields = {name: getattr(base, name) for name in base.__slots__}
    chosen = {"estimator": how.estimator, "positives": how.positives, "negatives": how.negatives}
    return FtisInput(
        policy_logprobs=now,
        start_logprobs=pad([r.start for r in rows]),
        mask=torch.arange(now.shape[1]) < lengths[:, None],
        rewards=tuple(r.reward for r in rows),
        length_capped=tuple(r.capped for r in rows),
        evidence=Evidence(how.tier),
        own=how.own,
        behaviour_logprobs=pad([r.mu for r in rows]),
        logprob_sum=torch.tensor([sum(r.mu) for r in rows], dtype=torch.float64),
        surprise_bound=how.bound,
        own_surprise=how.own_surprise,
        rescue_gate=how.gate,
        settings=FtisSettings(**{**fields, **chosen}),
    )


@settings(max_examples=400, **QUIET)
@given(made=group(), how=choices())
def test_value_and_gradient(made: tuple[list[Row], Now], how: Choices) -> None:
    rows, now = made
    assume(not near_a_threshold(rows, now, how))
    current = pad(now).requires_grad_()
    loss = ftis_loss(as_input(rows, current, how)).loss
    expected, slopes = slow_loss(rows, now, how)
    assert loss.item() == pytest.approx(expected, **CLOSE)
    found = torch.zeros_like(current)
    if loss.requires_grad:
        (found,) = torch.autograd.grad(loss, current)
    for line, wanted in zip(found.tolist(), slopes, strict=True):
        assert line[: len(wanted)] == pytest.approx(wanted, **CLOSE)
        assert not any(line[len(wanted) :])


@settings(max_examples=30, **QUIET)
@given(made=group(), how=choices())
def test_the_references_own_derivative(made: tuple[list[Row], Now], how: Choices) -> None:
    """By finite differences, so that the reference is not just believed."""
    rows, now = made
    step = 1e-6
    for moved in (now, [tuple(x + step for x in r) for r in now], [tuple(x - step for x in r) for r in now]):
        assume(not near_a_threshold(rows, moved, how))
    _, slopes = slow_loss(rows, now, how)
    for i, line in enumerate(now):
        for t in range(len(line)):
            ends = []
            for sign in (1, -1):
                moved = [*now[:i], tuple(x + sign * step * (k == t) for k, x in enumerate(line)), *now[i + 1 :]]
                ends.append(slow_loss(rows, moved, how)[0])
            assert slopes[i][t] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-6)


# ---- several optimiser steps of one batch ----------------------------------------------------------------------
# The policy is a table of scores: after token a, the next token is drawn from the softmax of row a (row 0 at first).

VOCABULARY = 4
Table = list[list[float]]


@st.composite
def batch(draw: st.DrawFn) -> tuple[Table, list[tuple[list[tuple[int, ...]], list[Row], Choices]]]:
    """A table of scores, and groups of token sequences with what the node is told about them."""
    scores = st.lists(st.floats(-2, 2), min_size=VOCABULARY, max_size=VOCABULARY)
    table = draw(st.lists(scores, min_size=VOCABULARY, max_size=VOCABULARY))
    groups = []
    for _ in range(draw(st.integers(1, 4))):
        texts = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=2, max_size=4))
        rows = []
        for text in texts:
            start = slow_logprobs(table, text)
            off = draw(st.floats(-0.2, 0.6))
            rows.append(Row(start, tuple(s + off for s in start), draw(st.sampled_from([0.0, 1.0])), False))
        groups.append((texts, rows, draw(choices(positives="pi"))))
    return table, groups


def slow_logprobs(table: Table, text: tuple[int, ...]) -> tuple[float, ...]:
    found, before = [], 0
    for token in text:
        found.append(table[before][token] - log(sum(map(exp, table[before]))))
        before = token
    return tuple(found)


def slow_descent(table: Table, groups: list[Any], parts: int, epochs: int, rate: float) -> Table:
    """Plain gradient descent on a copy: groups are dealt out to `parts` steps, `epochs` times."""
    table = [list(line) for line in table]
    for _ in range(epochs):
        for first in range(parts):
            slope = [[0.0] * VOCABULARY for _ in range(VOCABULARY)]
            for texts, rows, how in groups[first::parts]:
                _, by_token = slow_loss(rows, [slow_logprobs(table, text) for text in texts], how)
                for text, derivatives in zip(texts, by_token, strict=True):
                    before = 0
                    for token, derivative in zip(text, derivatives, strict=True):
                        total = sum(map(exp, table[before]))
                        for k in range(VOCABULARY):  # d log softmax_token / d score_k
                            change = (k == token) - exp(table[before][k]) / total
                            slope[before][k] += derivative * change / (len(groups) / parts)
                        before = token
            for line, changes in zip(table, slope, strict=True):
                for k in range(VOCABULARY):
                    line[k] -= rate * changes[k]
    return table


def tensor_descent(table: Table, groups: list[Any], parts: int, epochs: int, rate: float) -> torch.Tensor:
    scores = torch.tensor(table, dtype=torch.float64, requires_grad=True)
    for _ in range(epochs):
        for first in range(parts):
            logs = scores.log_softmax(-1)
            total = torch.zeros((), dtype=torch.float64)
            for texts, rows, how in groups[first::parts]:
                width = max(map(len, texts))
                lines = [
                    torch.stack([logs[before, token] for before, token in zip((0, *text), text, strict=False)])
                    for text in texts
                ]
                now = torch.stack([torch.cat([x, x.new_full((width - len(x),), -3.0)]) for x in lines])
                total = total + ftis_loss(as_input(rows, now, how)).loss / (len(groups) / parts)
            if total.requires_grad:
                (slope,) = torch.autograd.grad(total, scores)
                scores = (scores - rate * slope).detach().requires_grad_()
    return scores.detach()


@settings(max_examples=120, **QUIET)
@given(made=batch(), parts=st.integers(1, 3), epochs=st.integers(1, 3), rate=st.sampled_from([0.1, 1.0, 4.0]))
def test_several_steps_end_at_the_same_policy(made: Any, parts: int, epochs: int, rate: float) -> None:
    table, groups = made
    for _, rows, how in groups:
        assume(not near_a_threshold(rows, [r.start for r in rows], how))
    expected = slow_descent(table, groups, parts, epochs, rate)
    found = tensor_descent(table, groups, parts, epochs, rate)
    assert found.flatten().tolist() == pytest.approx([x for line in expected for x in line], rel=1e-6, abs=1e-6)
