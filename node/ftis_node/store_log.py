"""The event log as a list that can be leafed through and followed: every entry with its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftis_node.store import Store

_COLUMNS = "id, ts, level, kind, text"


@dataclass(frozen=True, slots=True)
class LogRow:
    """An event; `id` counts up."""

    id: int
    ts: float
    level: str
    kind: str
    text: str


def log_page(store: Store, limit: int, *, before: int | None = None, level: str | None = None) -> tuple[LogRow, ...]:
    """The newest entries first, those with an id below `before` and of that level only."""
    given = [("id < ?", before), ("level = ?", level)]
    conditions = [condition for condition, value in given if value is not None]
    values: list[Any] = [value for _, value in given if value is not None]
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    rows = store.rows(f"SELECT {_COLUMNS} FROM events {where}ORDER BY id DESC LIMIT ?", *values, limit)
    return tuple(LogRow(*row) for row in rows)


def log_after(store: Store, after: int, limit: int) -> tuple[LogRow, ...]:
    """What was added after the entry with id `after`, oldest first."""
    query = f"SELECT {_COLUMNS} FROM events WHERE id > ? ORDER BY id LIMIT ?"
    return tuple(LogRow(*row) for row in store.rows(query, after, limit))


def newest(store: Store) -> tuple[int, int, int]:
    """The highest ids of metric values, events and rollouts; 0 where there is none."""
    ((values, events, rollouts),) = store.rows(
        "SELECT (SELECT max(id) FROM metrics), (SELECT max(id) FROM events), (SELECT max(id) FROM rollouts)"
    )
    return values or 0, events or 0, rollouts or 0


def last_write(store: Store) -> float | None:
    """Unix time of the newest entry of any kind, or None in an empty database."""
    query = """
        SELECT max(ts) FROM (
            SELECT max(ts) AS ts FROM facts
            UNION ALL SELECT ts FROM metrics WHERE id = (SELECT max(id) FROM metrics)
            UNION ALL SELECT ts FROM events WHERE id = (SELECT max(id) FROM events))
    """
    moment = store.rows(query)[0][0]
    return None if moment is None else float(moment)
