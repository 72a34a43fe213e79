"""Curves, texts and events for the page: the lists that are asked for in parts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ftis_node import metrics
from ftis_node.dashboard import schema
from ftis_node.dashboard.documents import meaning_of
from ftis_node.store import Store
from ftis_node.store_cards import names
from ftis_node.store_log import LogRow, log_page, newest
from ftis_node.store_rollouts import RolloutRow, rollout, rollouts
from ftis_node.store_series import curve


class UnknownName(Exception):
    """A series or a group that does not exist; the text says which."""


def series(store: Store, question: schema.SeriesQuestion) -> schema.Series:
    """Curves, thinned out. Raises UnknownName for a name outside the table of metrics."""
    for name in question.name:
        if name.partition("{")[0] not in metrics.TABLE:
            raise UnknownName(f"there is no series {name!r}")
    upto = newest(store)[0]
    start = -math.inf if question.start is None else question.start
    end = math.inf if question.end is None else question.end
    found = (
        curve(store, name, question.x, start=start, end=end, points=question.points)
        for name in dict.fromkeys(question.name)
    )
    return schema.Series(
        x=question.x,
        upto=upto,
        series=tuple(
            schema.CurveView(name=c.name, thinned=c.thinned, x=c.x, y=c.y, low=c.low, high=c.high) for c in found
        ),
    )


def rollout_page(store: Store, question: schema.RolloutsQuestion) -> schema.Rollouts:
    """Groups, newest first."""
    given = question.model_dump(exclude={"limit", "before"})
    rows = rollouts(store, question.limit, before=question.before, filters=given)
    known = names(store)
    before = rows[-1].id if len(rows) == question.limit else None
    return schema.Rollouts(before=before, rollouts=tuple(rollout_view(row, known) for row in rows))


def one_rollout(store: Store, number: int) -> schema.RolloutView:
    """One group. Raises UnknownName."""
    row = rollout(store, number)
    if row is None:
        raise UnknownName(f"there is no group {number} (any more)")
    return rollout_view(row, names(store))


def rollout_view(row: RolloutRow, known: Mapping[str, str]) -> schema.RolloutView:
    return schema.RolloutView(
        id=row.id,
        ts=row.ts,
        step=row.step,
        digest=row.digest.hex(),
        author=row.author,
        author_name=known.get(row.author, ""),
        origin=row.origin,
        task=row.task,
        verdict=row.verdict,
        reason=row.reason,
        reason_meaning=meaning_of(row.reason),
        prompt=row.prompt,
        completions=tuple(
            schema.CompletionView(
                text=c.text, finish=c.finish, reward=c.reward, tokens=c.tokens, verdict=c.verdict,
                advantage=c.advantage, weight=c.weight, surprise=c.surprise,
            )
            for c in row.completions
        ),
    )  # fmt: skip


def event_page(store: Store, question: schema.EventsQuestion) -> schema.Events:
    """The log, newest first."""
    rows = log_page(store, question.limit, before=question.before, level=question.level)
    before = rows[-1].id if len(rows) == question.limit else None
    return schema.Events(before=before, events=tuple(event_view(row) for row in rows))


def event_view(row: LogRow) -> schema.EventView:
    return schema.EventView(id=row.id, ts=row.ts, level=row.level, kind=row.kind, text=row.text)
