"""The losses written out token by token in plain Python, derivatives by hand; shares nothing with the node."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt

FILTERED, WEIGHTED, CAPPED = ("ftis", "f-nois", "f-vis"), ("ftis", "tis", "vis", "f-vis"), ("ftis", "tis")


@dataclass(frozen=True)
class Row:
    """One completion: the learner's log-probs when the batch began, the sampler's, the reward, whether it was cut."""

    start: tuple[float, ...]
    mu: tuple[float, ...]
    reward: float
    capped: bool = False


@dataclass(frozen=True)
class Choices:
    """Everything that the loss of a group can be told. `tier` is none, sequence or token; the bounds are in nats."""

    estimator: str = "ftis"
    tier: str = "none"
    own: bool = False
    positives: str = "pi"
    negatives: str = "exact"
    paper: bool = False
    bound: float | None = None
    own_surprise: float | None = None
    gate: float | None = None


def surprise(row: Row) -> float:
    return -sum(row.start) / len(row.start)


def advantages(rows: list[Row], how: Choices) -> list[float]:
    """A' of every row."""
    rewards = [row.reward for row in rows]
    right = [reward >= 0.99 for reward in rewards]
    if how.gate is not None:
        return [1.0 if good and surprise(row) <= how.gate else 0.0 for row, good in zip(rows, right, strict=True)]
    if all(right) or not any(right):
        return [0.0] * len(rows)
    mean = sum(rewards) / len(rows)
    std = sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rows))
    if any(reward not in (0, 1) for reward in rewards):
        std += 1e-4
    return [one_advantage(row, (row.reward - mean) / std, how) for row in rows]


def one_advantage(row: Row, advantage: float, how: Choices) -> float:
    if advantage < 0 and not how.own and how.negatives == "off":
        return 0.0
    if advantage < 0 and how.estimator in FILTERED and far(row, how):
        return 0.0
    if how.own or how.estimator == "nois" or how.paper:
        return advantage
    if advantage < 0 and row.capped:
        return 0.0
    return min(max(advantage, -3.0), 3.0)


def far(row: Row, how: Choices) -> bool:
    if how.tier == "none" and not how.own:
        return how.negatives != "surprise" or how.bound is None or surprise(row) >= how.bound
    distance = sum(row.mu) - sum(row.start)
    return distance >= 50 if how.paper else distance / len(row.start) >= 0.25


def weight(row: Row, token: int, positive: bool, how: Choices) -> float:
    pi = exp(row.start[token])
    if how.gate is not None or how.estimator not in WEIGHTED:
        return 1.0
    if how.own or how.tier == "token":
        ratio = pi / exp(row.mu[token])
    elif how.tier == "sequence":
        ratio = pi / exp(sum(row.mu) / len(row.mu))
    elif positive and how.positives == "one":
        return 1.0
    elif positive and how.positives == "shaped":
        return pi / (pi + 0.1)
    elif positive and how.positives == "tis" and how.own_surprise is not None:
        ratio = pi * exp(how.own_surprise)
    else:
        return pi
    return min(ratio, 2.0) if how.estimator in CAPPED else ratio


def slow_loss(rows: list[Row], now: list[tuple[float, ...]], how: Choices) -> tuple[float, list[list[float]]]:
    """(-J, its derivative by every log-probability of `now`, the learner's at this moment)."""
    objective, slopes = 0.0, []
    for row, current, advantage in zip(rows, now, advantages(rows, how), strict=True):
        slopes.append([0.0] * len(current))
        for token, logprob in enumerate(current):
            if advantage == 0:
                continue
            ratio = exp(logprob - row.start[token])
            share = weight(row, token, advantage > 0, how) / len(current) / len(rows)
            held = 1.2 if ratio > 1.2 else 0.8 if ratio < 0.8 else ratio
            objective += share * min(ratio * advantage, held * advantage)
            if ratio * advantage <= held * advantage:  # the minimum is the branch that depends on the policy
                slopes[-1][token] = -share * ratio * advantage
    return -objective, slopes


def near_a_threshold(rows: list[Row], now: list[tuple[float, ...]], how: Choices) -> bool:
    """Rounding may fall on either side there; such groups say nothing."""
    gaps = []
    for row, current in zip(rows, now, strict=True):
        distance = sum(row.mu) - sum(row.start)
        gaps += [distance - 50, distance / len(row.start) - 0.25]
        gaps += [surprise(row) - limit for limit in (how.bound, how.gate) if limit is not None]
        gaps += [exp(c - s) - edge for c, s in zip(current, row.start, strict=True) for edge in (0.8, 1.2)]
    return any(abs(gap) < 1e-9 for gap in gaps)
