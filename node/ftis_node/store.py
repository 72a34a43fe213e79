"""What a node remembers about itself: one SQLite file that survives kill -9 and can be read while the node runs.

One connection, one lock, every write its own transaction: callers may be any thread. With a write-ahead log and
`synchronous=NORMAL` a killed process loses nothing that was committed; a power cut may lose the last moments, which
checkpoints do not depend on. Nothing here is ever rolled back together with the weights.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ftis_node import metrics
from ftis_node.errors import UsageError
from ftis_node.store_records import Event, PeerRow, Point, VerdictRow
from ftis_node.store_schema import AGED_BY, ROWS_KEPT, StoreError, connect, connect_read_only, is_damage, put_aside

Level = Literal["debug", "info", "warning", "error"]
_TRIM_EVERY_ROWS = 1_000
# Hops from name to name in the index instead of reading all of it.
_LATEST = """
    WITH RECURSIVE names (name) AS (
        SELECT min(name) FROM metrics
        UNION ALL SELECT (SELECT min(name) FROM metrics WHERE name > names.name) FROM names WHERE name IS NOT NULL
    )
    SELECT metrics.name, ts, step, value FROM names CROSS JOIN metrics
    WHERE metrics.id = (SELECT max(id) FROM metrics WHERE metrics.name = names.name)
"""
_COUNTED = {"admitted": "accepted", "rescue_only": "accepted", "refused": "refused"}


class Store:
    """Events, metrics, verdicts, seen digests, peers and facts of one node in one swarm.

    `notice` says what happened to a damaged predecessor, or is None. Reading and writing raise StoreError when the
    disk refuses.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, notice: str | None = None) -> None:
        self.path = path
        self.notice = notice
        self._connection = connection
        self._lock = threading.RLock()
        self._added: dict[str, int] = dict.fromkeys(ROWS_KEPT, 0)

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open or begin the database at `path`; a damaged one is renamed, reported as `notice`, and begun anew."""
        try:
            return cls(connect(path), path)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise _unusable(path, error) from error
            damage = error
        try:
            aside = put_aside(path)
            store = cls(connect(path), path, f"the database was damaged ({damage}); kept as {aside.name}, begun anew")
        except (OSError, sqlite3.Error) as error:
            raise _unusable(path, error) from error
        store.event("store-damaged", store.notice or "", level="warning")
        return store

    @classmethod
    def view(cls, path: Path, timeout_seconds: float = 10.0) -> Store:
        """Open an existing database for reading only, also while a node writes to it."""
        try:
            return cls(connect_read_only(path, timeout_seconds), path)
        except sqlite3.Error as error:
            raise UsageError(
                f"cannot read the database {path}: {error}", hint="Start the node once, or check --state."
            ) from error

    def close(self) -> None:
        """Close the file; further calls raise StoreError."""
        with self._lock:
            self._connection.close()

    # ---- writing -----------------------------------------------------------------------------------------------

    def event(self, kind: str, text: str, *, level: Level = "info", **data: Any) -> None:
        """Log that something happened. `data` holds JSON values."""
        with self.writing() as db:
            db.execute(
                "INSERT INTO events (ts, level, kind, text, data) VALUES (?, ?, ?, ?, ?)",
                (time.time(), level, kind, text, json.dumps(data, default=str)),
            )
            self.grown("events", 1)

    def metric(self, step: int, values: Mapping[str, float]) -> None:
        """Record series of the metric table at a step. A counter's value is what came on top since the last call."""
        now = time.time()
        with self.writing() as db:
            for name, value in values.items():
                self._add_total(db, name, value)
            rows = [(now, step, name, float(value)) for name, value in values.items() if value == value]
            db.executemany("INSERT INTO metrics (ts, step, name, value) VALUES (?, ?, ?, ?)", rows)
            self.grown("metrics", len(rows))

    def count(self, name: str, amount: float = 1) -> None:
        """Add to the total of a counter without a row of its own (what happens many times a step)."""
        assert metrics.metric_of(name).kind is metrics.Kind.COUNTER, name
        with self.writing() as db:
            self._add_total(db, name, amount)

    def verdict(
        self, digest: bytes, author: str, task: str, verdict: str, reason: str = "", *, charge: bool = True
    ) -> None:
        """Record a judgement on a group.

        `charge` False leaves the author's own tally alone: the sender is not proven, or the fault is not his.
        """
        now = time.time()
        with self.writing() as db:
            db.execute(
                "INSERT INTO verdicts (ts, digest, author, task, verdict, reason) VALUES (?, ?, ?, ?, ?, ?)",
                (now, digest, author, task, verdict, reason),
            )
            db.execute(
                "INSERT INTO verdict_counts VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
                (verdict, reason),
            )
            column = _COUNTED.get(verdict)
            if author and column and charge:
                self._touch_peer(db, author, now)
                db.execute(f"UPDATE peers SET {column} = {column} + 1 WHERE node_id = ?", (author,))
            self.grown("verdicts", 1)

    def mark_used(self, digests: Iterable[bytes], step: int) -> None:
        """Note that admitted groups got a non-zero weight in optimiser step `step`."""
        with self.writing() as db:
            for digest in digests:
                row = db.execute(
                    "UPDATE verdicts SET used_step = ? WHERE digest = ? AND used_step IS NULL"
                    " AND verdict != 'refused' RETURNING author",
                    (step, digest),
                ).fetchone()
                if row:
                    db.execute("UPDATE peers SET used = used + 1 WHERE node_id = ?", row)

    def remember(self, digest: bytes, *more: bytes) -> None:
        """Add digests to those already seen."""
        rows = [(each, time.time()) for each in (digest, *more)]
        with self.writing() as db:
            db.executemany("INSERT OR IGNORE INTO seen (digest, ts) VALUES (?, ?)", rows)
            self.grown("seen", len(rows))

    def peer_seen(self, node_id: str, *, name: str = "", model: str = "", addresses: Sequence[str] = ()) -> None:
        """Note a sign of life of a peer; empty fields leave what is known."""
        with self.writing() as db:
            self._touch_peer(db, node_id, time.time())
            known = {"name": name, "model": model, "addresses": json.dumps(list(addresses)) if addresses else ""}
            for column, value in known.items():
                if value:
                    db.execute(f"UPDATE peers SET {column} = ? WHERE node_id = ?", (value, node_id))

    def set_facts(self, **facts: Any) -> None:
        """Overwrite facts about the node now (state, step, alone_since, ...); values are JSON."""
        rows = [(key, json.dumps(value, default=str), time.time()) for key, value in facts.items()]
        with self.writing() as db:
            db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", rows)

    # ---- reading -----------------------------------------------------------------------------------------------

    def seen(self, digest: bytes) -> bool:
        """Whether `remember` was called with this digest (within the retention)."""
        return bool(self.rows("SELECT 1 FROM seen WHERE digest = ?", digest))

    def events(self, limit: int = 100) -> tuple[Event, ...]:
        """The latest events, newest first."""
        rows = self.rows("SELECT ts, level, kind, text, data FROM events ORDER BY id DESC LIMIT ?", limit)
        return tuple(Event(ts, level, kind, text, json.loads(data)) for ts, level, kind, text, data in rows)

    def points(self, name: str, limit: int = 10_000) -> tuple[Point, ...]:
        """The latest points of one series, oldest first."""
        query = "SELECT ts, step, value FROM metrics WHERE name = ? ORDER BY id DESC LIMIT ?"
        return tuple(Point(*row) for row in reversed(self.rows(query, name, limit)))

    def latest(self) -> dict[str, Point]:
        """The last point of every series; takes as long with a million points as with ten."""
        return {name: Point(*point) for name, *point in self.rows(_LATEST)}

    def totals(self) -> dict[str, float]:
        """Counter series -> sum since the first start."""
        return dict(self.rows("SELECT name, value FROM totals"))

    def counts(self) -> dict[tuple[str, str], int]:
        """(verdict, reason) -> how often, since the first start."""
        query = "SELECT verdict, reason, count FROM verdict_counts"
        return {(verdict, reason): count for verdict, reason, count in self.rows(query)}

    def verdicts(self, limit: int = 100) -> tuple[VerdictRow, ...]:
        """The latest verdicts, newest first."""
        query = "SELECT ts, digest, author, task, verdict, reason, used_step FROM verdicts ORDER BY id DESC LIMIT ?"
        return tuple(VerdictRow(*row) for row in self.rows(query, limit))

    def peers(self, limit: int = 1_000) -> tuple[PeerRow, ...]:
        """Peers, the most recently seen first."""
        query = (
            "SELECT node_id, name, model, addresses, accepted, refused, used, first_seen, last_seen FROM peers"
            " ORDER BY last_seen DESC, id DESC LIMIT ?"
        )
        return tuple(
            PeerRow(node_id, name, model, tuple(json.loads(addresses)), *rest)
            for node_id, name, model, addresses, *rest in self.rows(query, limit)
        )

    def facts(self) -> dict[str, Any]:
        """All facts."""
        return {key: json.loads(value) for key, value in self.rows("SELECT key, value FROM facts")}

    def fact(self, key: str, default: Any = None) -> Any:
        """One fact, or `default`."""
        rows = self.rows("SELECT value FROM facts WHERE key = ?", key)
        return json.loads(rows[0][0]) if rows else default

    # ---- for the tables that have a module of their own (store_*) ------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: committed at the end of the block, undone when it raises."""
        with self._lock, _disk(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:  # commits, or rolls back when the block raises
                yield self._connection

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Every row that a query gives."""
        with self._lock, _disk(self.path):
            return self._connection.execute(query, values).fetchall()

    def grown(self, table: str, rows: int) -> None:
        """Count added rows, inside `writing`, and now and then drop the oldest beyond what the table keeps."""
        self._added[table] += rows
        if self._added[table] >= min(_TRIM_EVERY_ROWS, ROWS_KEPT[table]):
            self._added[table] = 0
            order = AGED_BY.get(table, "id")
            self._connection.execute(
                f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY {order} DESC LIMIT -1 OFFSET ?)",
                (ROWS_KEPT[table],),
            )

    # ---- inside ------------------------------------------------------------------------------------------------

    @staticmethod
    def _add_total(db: sqlite3.Connection, name: str, amount: float) -> None:
        if metrics.metric_of(name).kind is metrics.Kind.COUNTER:
            db.execute(
                "INSERT INTO totals VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
                (name, float(amount)),
            )

    def _touch_peer(self, db: sqlite3.Connection, node_id: str, now: float) -> None:
        db.execute(
            "INSERT INTO peers (node_id, first_seen, last_seen) VALUES (?, ?, ?)"
            " ON CONFLICT (node_id) DO UPDATE SET last_seen = excluded.last_seen",
            (node_id, now, now),
        )
        self.grown("peers", 1)


def _unusable(path: Path, error: Exception) -> UsageError:
    return UsageError(
        f"cannot open the database {path}: {error}",
        hint="Check that the directory is yours to write, and that the disk is not full.",
    )


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(
            f"the database {path} refused: {error}",
            hint="Free some disk space and check the directory's permissions; the same command resumes.",
        ) from error
