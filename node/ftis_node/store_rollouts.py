"""Texts as they trained, for people to read: whole groups with what became of each completion.

Bounded twice: the newest groups of `ROWS_KEPT`, and of each group at most `MAX_GROUP_CHARS` characters.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ftis_node.store import Store

MAX_PROMPT_CHARS = 4_000
#: characters kept of all completions of one group together
MAX_GROUP_CHARS = 16_384
CUT = " […]"

#: what became of one completion in its step; the page shows these words
VERDICTS: dict[str, str] = {
    "trained": "It had a weight in the optimiser step.",
    "rescued": "It had full weight by the rescue rule: right, and near enough to this node's own text.",
    "no_signal": "All completions of its group had the same outcome, or it stood exactly at the mean.",
    "filtered": "A wrong answer that this node would hardly say itself: its gradient was left out.",
    "negatives_off": "A foreign wrong answer, and nothing could tell whether this node might have said it.",
    "length_capped": "A foreign wrong answer cut at the token limit: how it would have ended is not known.",
    "outside_gate": "Wrong, or too far from this node's own text for the rescue rule.",
    "weightless": "So unlikely for this node that its importance weight is zero.",
    "put_aside": "Its group was admitted but put aside before the step, for the group's reason.",
    "refused": "Its group was refused at the door, for the group's reason.",
}


@dataclass(frozen=True, slots=True)
class CompletionRow:
    """One completion. `advantage` is what it was allowed to teach, `weight` its mean importance weight per token,
    `surprise` this node's own cost of it in nats per token; None where nothing was computed. `tokens` are this node's.
    """

    text: str
    finish: str
    reward: float
    tokens: int
    verdict: str
    advantage: float | None = None
    weight: float | None = None
    surprise: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One group: `verdict` is "used", "unused" or "refused", `reason` its code where there is one. `id` counts up in
    the order of training, 0 before it is stored."""

    step: int
    digest: bytes
    author: str
    origin: str
    task: str
    verdict: str
    reason: str
    prompt: str
    completions: tuple[CompletionRow, ...]
    ts: float = 0.0
    id: int = 0


def add_rollouts(store: Store, rows: Iterable[RolloutRow]) -> None:
    """Keep groups of one step; long texts are cut, and say so."""
    now = time.time()
    values = [
        (now, r.step, r.digest, r.author, r.origin, r.task, r.verdict, r.reason, _cut(r.prompt, MAX_PROMPT_CHARS),
         json.dumps([asdict(c) for c in _shortened(r.completions)], allow_nan=False))
        for r in rows
    ]  # fmt: skip
    if not values:
        return
    with store.writing() as db:
        db.executemany(
            "INSERT INTO rollouts (ts, step, digest, author, origin, task, verdict, reason, prompt, completions)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )
        store.grown("rollouts", len(values))


_COLUMNS = "id, ts, step, digest, author, origin, task, verdict, reason, prompt, completions"
#: what `rollouts` may be narrowed by
FILTERS = ("author", "origin", "task", "verdict", "reason", "step")


def rollouts(
    store: Store, limit: int, *, before: int | None = None, filters: Mapping[str, Any] | None = None
) -> tuple[RolloutRow, ...]:
    """The newest groups first, those with an id below `before` only; `filters` are columns of FILTERS."""
    wanted = {key: value for key, value in (filters or {}).items() if value is not None}
    assert set(wanted) <= set(FILTERS), wanted
    conditions = [f"{column} = ?" for column in wanted] + (["id < ?"] if before is not None else [])
    values = [*wanted.values(), *([before] if before is not None else [])]
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    query = f"SELECT {_COLUMNS} FROM rollouts {where}ORDER BY id DESC LIMIT ?"
    return tuple(_row(row) for row in store.rows(query, *values, limit))


def rollout(store: Store, number: int) -> RolloutRow | None:
    """The group with that id, or None."""
    rows = store.rows(f"SELECT {_COLUMNS} FROM rollouts WHERE id = ?", number)
    return _row(rows[0]) if rows else None


def _row(row: Sequence[Any]) -> RolloutRow:
    number, ts, step, digest, author, origin, task, verdict, reason, prompt, completions = row
    parts = tuple(CompletionRow(**part) for part in json.loads(completions))
    return RolloutRow(step, digest, author, origin, task, verdict, reason, prompt, parts, ts, number)


def _shortened(completions: Sequence[CompletionRow]) -> list[CompletionRow]:
    share = MAX_GROUP_CHARS // max(1, len(completions))
    return [
        CompletionRow(_cut(c.text, share), c.finish, c.reward, c.tokens, c.verdict, c.advantage, c.weight, c.surprise)
        for c in completions
    ]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - len(CUT)] + CUT
