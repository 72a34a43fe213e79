"""The tables of a node's database, how they came to be, and how a damaged file is put aside."""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack
from pathlib import Path

from ftis_node.errors import FtisError, UsageError

# One entry per schema version; entry k takes a database from version k to k + 1. Released entries never change.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE events (id INTEGER PRIMARY KEY, ts REAL NOT NULL, level TEXT NOT NULL, kind TEXT NOT NULL,
                         text TEXT NOT NULL, data TEXT NOT NULL);
    CREATE TABLE metrics (id INTEGER PRIMARY KEY, ts REAL NOT NULL, step INTEGER NOT NULL, name TEXT NOT NULL,
                          value REAL NOT NULL);
    CREATE INDEX metrics_by_name ON metrics (name, id);
    CREATE TABLE totals (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID;
    CREATE TABLE verdicts (id INTEGER PRIMARY KEY, ts REAL NOT NULL, digest BLOB NOT NULL, author TEXT NOT NULL,
                           task TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL, used_step INTEGER);
    CREATE INDEX verdicts_by_digest ON verdicts (digest);
    CREATE TABLE verdict_counts (verdict TEXT NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL,
                                 PRIMARY KEY (verdict, reason)) WITHOUT ROWID;
    CREATE TABLE seen (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, ts REAL NOT NULL);
    CREATE TABLE peers (id INTEGER PRIMARY KEY, node_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL DEFAULT '',
                        model TEXT NOT NULL DEFAULT '', addresses TEXT NOT NULL DEFAULT '[]',
                        accepted INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
                        used INTEGER NOT NULL DEFAULT 0, first_seen REAL NOT NULL, last_seen REAL NOT NULL);
    CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL, ts REAL NOT NULL) WITHOUT ROWID;
    """,
    # what operators ask of a running node, see store_commands
    """
    CREATE TABLE commands (id INTEGER PRIMARY KEY AUTOINCREMENT, ts REAL NOT NULL, kind TEXT NOT NULL,
                           arguments TEXT NOT NULL, source TEXT NOT NULL, done_at REAL,
                           ok INTEGER NOT NULL DEFAULT 0, outcome TEXT NOT NULL DEFAULT '');
    """,
    # what the page shows: see store_rollouts and store_cards
    """
    CREATE TABLE rollouts (id INTEGER PRIMARY KEY, ts REAL NOT NULL, step INTEGER NOT NULL, digest BLOB NOT NULL,
                           author TEXT NOT NULL, origin TEXT NOT NULL, task TEXT NOT NULL, verdict TEXT NOT NULL,
                           reason TEXT NOT NULL, prompt TEXT NOT NULL, completions TEXT NOT NULL);
    CREATE TABLE cards (id INTEGER PRIMARY KEY, node_id TEXT NOT NULL UNIQUE, card TEXT NOT NULL,
                        issued_at REAL NOT NULL, seen_at REAL NOT NULL,
                        present INTEGER NOT NULL DEFAULT 1);
    """,
)

# Rows kept per table; the oldest go first. Counts and totals are sums, so they outlive the rows.
ROWS_KEPT: dict[str, int] = {
    "events": 20_000,
    "metrics": 1_000_000,
    "verdicts": 100_000,
    "seen": 200_000,
    "peers": 20_000,
    "rollouts": 2_000,
    "cards": 5_000,
}
# Tables of which the least recently seen rows go first, not the oldest ones.
AGED_BY: dict[str, str] = {"peers": "last_seen", "cards": "seen_at"}

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class StoreError(FtisError):
    """The database refused a read or a write (disk full, no permission)."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is broken, rather than busy, full or forbidden."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def connect(path: Path) -> sqlite3.Connection:
    """A writing connection with the schema of this version; sqlite3.Error when the file cannot be used."""
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
    with ExitStack() as on_failure:
        on_failure.callback(connection.close)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise _damaged()
        _migrate(connection, path)
        on_failure.pop_all()
    return connection


def connect_read_only(path: Path, timeout_seconds: float = 10.0) -> sqlite3.Connection:
    """A connection that can only read; works beside a writing node, for which it waits at most `timeout_seconds`."""
    address = f"{path.resolve().as_uri()}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=timeout_seconds, check_same_thread=False)
    with ExitStack() as on_failure:
        on_failure.callback(connection.close)
        if _refuse_newer(connection, path) == 0:  # made this moment, still without tables
            raise UsageError(f"{path} is just being made", hint="Try again in a moment.")
        on_failure.pop_all()
    return connection


def put_aside(path: Path) -> Path:
    """Rename a damaged database and its side files so that a new one can begin; returns the new name."""
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}-{time.time_ns() % 1_000_000:06d}")
    for suffix in ("", "-wal", "-shm"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            source.rename(aside.with_name(aside.name + suffix))
    return aside


def _damaged() -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("the integrity check failed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _refuse_newer(connection: sqlite3.Connection, path: Path) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise UsageError(
            f"{path} was written by a newer ftis-node (schema {version}, this one knows {len(MIGRATIONS)})",
            hint="Update ftis-node, or use another --state directory.",
        )
    return version


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the missing migrations, each with its version number in one transaction."""
    for index in range(_refuse_newer(connection, path), len(MIGRATIONS)):
        connection.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[index]} PRAGMA user_version = {index + 1}; COMMIT;")
