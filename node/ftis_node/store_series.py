"""Curves out of the metrics table: narrowed, thinned out to as many points as a screen shows, and what came since."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ftis_node import metrics
from ftis_node.store import Store

Axis = Literal["step", "time", "tokens"]
_COLUMN = {"step": "step", "time": "ts"}
#: points of the token axis; between them tokens are taken to come evenly
_TOKEN_KNOTS = 2_000


@dataclass(frozen=True, slots=True)
class Curve:
    """One series, oldest first. Where `thinned`, each point stands for `counts` values: `y` is their mean between `low`
    and `high`."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def thinned(self) -> bool:
        return any(count > 1 for count in self.counts)


@dataclass(frozen=True, slots=True)
class Fresh:
    """One value as it was recorded; `id` counts up over all series."""

    id: int
    ts: float
    step: int
    name: str
    value: float


def curve(
    store: Store, name: str, axis: Axis = "step", *, start: float = -math.inf, end: float = math.inf, points: int = 400
) -> Curve:
    """At most `points` points of one series. `start` and `end` are in units of the axis: steps, Unix seconds, or
    completion tokens sampled by this node."""
    if axis != "tokens":
        return _by_column(store, name, _COLUMN[axis], start, end, points)
    knots = _token_knots(store)
    found = _by_column(store, name, "ts", -math.inf, math.inf, points)
    x: Sequence[float] = [_tokens_at(knots, ts) for ts in found.x]
    kept = [i for i, tokens in enumerate(x) if start <= tokens <= end]
    x, y, low, high = (tuple(values[i] for i in kept) for values in (x, found.y, found.low, found.high))
    return Curve(name, x, y, low, high, tuple(found.counts[i] for i in kept))


def fresh(store: Store, after: int, limit: int) -> tuple[Fresh, ...]:
    """What was recorded after the value with id `after`, oldest first."""
    query = "SELECT id, ts, step, name, value FROM metrics WHERE id > ? ORDER BY id LIMIT ?"
    return tuple(Fresh(*row) for row in store.rows(query, after, limit))


def _by_column(store: Store, name: str, column: str, start: float, end: float, points: int) -> Curve:
    where, values = "WHERE name = ?", list[Any]([name])
    for bound, sign in ((start, ">="), (end, "<=")):
        if math.isfinite(bound):
            where += f" AND {column} {sign} ?"
            values.append(bound)
    ((count, least, most),) = store.rows(f"SELECT count(*), min({column}), max({column}) FROM metrics {where}", *values)
    if count <= points:
        rows = store.rows(f"SELECT {column}, value, value, value, 1 FROM metrics {where} ORDER BY id", *values)
    else:
        width = (most - least) / points or 1.0
        rows = store.rows(
            f"SELECT avg({column}), avg(value), min(value), max(value), count(*) FROM metrics {where}"
            f" GROUP BY min(CAST(({column} - ?) / ? AS INTEGER), ?) ORDER BY 1",
            *values, least, width, points - 1,
        )  # fmt: skip
    x, y, low, high, counts = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return Curve(name, x, y, low, high, counts)


def _token_knots(store: Store) -> tuple[list[float], list[float]]:
    """(Unix seconds, completion tokens sampled so far), both rising."""
    tokens = _by_column(store, metrics.GENERATED_TOKENS, "ts", -math.inf, math.inf, _TOKEN_KNOTS)
    times, sums, total = [], [], 0.0
    for ts, mean, count in zip(tokens.x, tokens.y, tokens.counts, strict=True):
        total += mean * count
        times.append(ts)
        sums.append(total)
    return times, sums


def _tokens_at(knots: tuple[list[float], list[float]], ts: float) -> float:
    times, sums = knots
    place = bisect_left(times, ts)
    if place == 0:
        return sums[0] if times and ts >= times[0] else 0.0
    if place == len(times):
        return sums[-1]
    share = (ts - times[place - 1]) / max(times[place] - times[place - 1], 1e-9)
    return sums[place - 1] + share * (sums[place] - sums[place - 1])
