"""The page's only way to data: a read-only connection to the node's database, opened when needed and given up when it
fails. Nothing here can hold up the node: with a write-ahead log readers never block the writer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ftis_node.errors import UsageError
from ftis_node.store import Store
from ftis_node.store_schema import StoreError

#: how long a question may wait for a database that somebody holds
BUSY_SECONDS = 1.0
T = TypeVar("T")


class DataUnavailable(Exception):
    """The database is missing, busy, damaged or of another version: try again later."""


class Source:
    """Questions to one database, one at a time; callers may be any thread. `memo` answers equal questions that come
    within `fresh_seconds` of each other once."""

    def __init__(self, path: Path, fresh_seconds: float = 0.5) -> None:
        self.path = path
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._fresh_seconds = fresh_seconds
        self._kept: dict[object, tuple[float, object]] = {}

    def read(self, question: Callable[[Store], T]) -> T:
        """The answer of `question`. Raises DataUnavailable."""
        if not self._lock.acquire(timeout=2 * BUSY_SECONDS):
            raise DataUnavailable("too many questions at once")
        try:
            if self._store is None:
                self._store = Store.view(self.path, BUSY_SECONDS)
            return question(self._store)
        except (StoreError, UsageError) as error:
            self._drop()
            raise DataUnavailable(str(error)) from error
        finally:
            self._lock.release()

    def memo(self, key: object, question: Callable[[Store], T]) -> T:
        """`read`, or the answer that the same `key` got a moment ago."""
        now = time.monotonic()
        found = self._kept.get(key)
        if found is not None and now - found[0] < self._fresh_seconds:
            return found[1]  # type: ignore[return-value]
        answer = self.read(question)
        if len(self._kept) > 128:
            self._kept.clear()
        self._kept[key] = (now, answer)
        return answer

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._store is not None:
            with suppress(StoreError):
                self._store.close()
            self._store = None
