"""What an operator asks of a running node: a table in its database, written by commands and by the page, polled by the
node. Nobody else writes there, so a page that fails can never hold up training.

`CommandTable` has a connection of its own, apart from the store's: it is the only part of the database that more than
one process writes to, each write a transaction of milliseconds.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ftis_node.errors import UsageError
from ftis_node.store_schema import MIGRATIONS, StoreError

COMMANDS_KEPT = 1_000
_COLUMNS = "id, ts, kind, arguments, source, done_at, ok, outcome"


class CommandKind(StrEnum):
    """PAUSE: sample and train nothing, keep the card. RESUME: work again. LEAVE: save, say good-bye, end. TRUST and
    BLOCK: believe a peer's evidence, or take nothing of it (`node_id`); FORGET takes either back."""

    PAUSE = "pause"
    RESUME = "resume"
    LEAVE = "leave"
    TRUST = "trust"
    BLOCK = "block"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class CommandRow:
    """One request. `done_at` None: not taken up yet; then `ok` and `outcome` mean nothing."""

    id: int
    ts: float
    kind: str
    arguments: dict[str, Any]
    source: str
    done_at: float | None
    ok: bool
    outcome: str


class CommandTable:
    """Requests to one node. Any process and any thread may hold one; each call is its own transaction."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    @classmethod
    def open(cls, path: Path) -> CommandTable:
        """The table in an existing database; UsageError where there is none, or one of another version."""
        if not path.exists():
            raise UsageError(f"there is no database {path}", hint="Start the node once, or check --state.")
        try:
            connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        except sqlite3.Error as error:
            raise UsageError(f"cannot open {path}: {error}", hint="Check that the file is yours to write.") from error
        if version != len(MIGRATIONS):
            connection.close()
            raise UsageError(
                f"{path} has schema {version}, this program writes {len(MIGRATIONS)}",
                hint="Use the same version of ftis-node as the running node.",
            )
        return cls(connection, path)

    def close(self) -> None:
        self._connection.close()

    def ask(self, kind: CommandKind, source: str, **arguments: Any) -> int:
        """Put a request down; its number, for `row`."""
        with self._answering():
            row = self._connection.execute(
                "INSERT INTO commands (ts, kind, arguments, source) VALUES (?, ?, ?, ?) RETURNING id",
                (time.time(), CommandKind(kind).value, json.dumps(arguments), source),
            ).fetchone()
            return int(row[0])

    def waiting(self) -> tuple[CommandRow, ...]:
        """Requests that nobody has taken up, oldest first."""
        with self._answering():
            query = f"SELECT {_COLUMNS} FROM commands WHERE done_at IS NULL ORDER BY id"
            return tuple(_row(values) for values in self._connection.execute(query).fetchall())

    def answer(self, number: int, outcome: str, *, ok: bool = True) -> None:
        """Say what became of a request; the oldest answered ones beyond what is kept go."""
        with self._answering():
            self._connection.execute(
                "UPDATE commands SET done_at = ?, ok = ?, outcome = ? WHERE id = ?", (time.time(), ok, outcome, number)
            )
            self._connection.execute("DELETE FROM commands WHERE id <= ?", (number - COMMANDS_KEPT,))

    def row(self, number: int) -> CommandRow | None:
        """One request as it stands."""
        with self._answering():
            query = f"SELECT {_COLUMNS} FROM commands WHERE id = ?"
            values = self._connection.execute(query, (number,)).fetchone()
            return _row(values) if values else None

    def recent(self, limit: int = 100) -> tuple[CommandRow, ...]:
        """The latest requests, newest first."""
        with self._answering():
            query = f"SELECT {_COLUMNS} FROM commands ORDER BY id DESC LIMIT ?"
            return tuple(_row(values) for values in self._connection.execute(query, (limit,)).fetchall())

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(
                f"the database {self._path} refused: {error}",
                hint="Free some disk space and check the directory's permissions.",
            ) from error


def _row(values: tuple[Any, ...]) -> CommandRow:
    number, ts, kind, arguments, source, done_at, ok, outcome = values
    return CommandRow(number, ts, kind, json.loads(arguments), source, done_at, bool(ok), outcome)
