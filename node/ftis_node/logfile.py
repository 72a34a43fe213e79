"""One log file per start, with a `latest` link beside them. What a person reads goes through `console`, not here.

A line that repeats is written a few times and then only counted, so that a fault that goes on for weeks does not fill
the disk; a file that grows too large starts again from its beginning, keeping one predecessor.
"""

from __future__ import annotations

import json
import logging
import os
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

FILES_KEPT = 20
MAX_FILE_BYTES = 32 * 1024 * 1024
#: the same message is written so often in so long; messages told apart at a time
REPEATS_ALLOWED, REPEAT_SECONDS, PLACES_KEPT = 30, 60.0, 2_000
OUR_PACKAGES = ("ftis_node", "ftis_protocol")
_FORMAT = "%(asctime)s %(levelname)-7s %(threadName)s %(name)s: %(message)s"


class _AttemptLog(RotatingFileHandler):
    """Told apart from log files that somebody else attached."""

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk loses lines, but does not print a trace for each of them: what matters is reported elsewhere."""


class _Repeats(logging.Filter):
    """Lets the same message (its template, not its numbers) through a few times in a while, then says how many were
    left out."""

    def __init__(self, allowed: int, window_seconds: float) -> None:
        super().__init__()
        self._allowed = allowed
        self._window_seconds = window_seconds
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place = (record.name, record.levelno, str(record.msg))
        began, count = self._seen.get(place, (record.created, 0))
        if record.created - began > self._window_seconds:
            left_out = count - self._allowed
            if left_out > 0:
                record.msg = f"{record.msg} (and {left_out} more like it before)"
            began, count = record.created, 0
        if len(self._seen) > PLACES_KEPT:
            self._seen.clear()
        self._seen[place] = (began, count + 1)
        return count < self._allowed


class _JsonLines(logging.Formatter):
    """One object a line, for programs that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "thread": record.threadName,
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def begin(folder: Path, level: str = "info", *, json_lines: bool = False) -> Path:
    """Send our records of `level` and above, and other packages' warnings, to a new file in `folder`; its path."""
    path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    handler = _AttemptLog(path, encoding="utf-8", maxBytes=MAX_FILE_BYTES, backupCount=1)
    handler.setFormatter(_JsonLines() if json_lines else logging.Formatter(_FORMAT))
    handler.addFilter(_Repeats(REPEATS_ALLOWED, REPEAT_SECONDS))
    root = logging.getLogger()
    end()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # of other packages only what may matter
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(level.upper())
    _link(folder / "latest", path.name)
    _forget_old(folder)
    return path


def silence() -> None:
    """Until `begin`, keep records from being printed raw on stderr, which belongs to the console."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.NullHandler())


def current() -> Path | None:
    """The log file of this process, or None before `begin`."""
    found = _own_handlers()
    return Path(found[-1].baseFilename) if found else None


def end() -> None:
    """Close this process's log file."""
    for handler in _own_handlers():
        logging.getLogger().removeHandler(handler)
        handler.close()


def _own_handlers() -> list[_AttemptLog]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _AttemptLog)]


def _link(link: Path, target: str) -> None:
    fresh = link.with_name(f".latest.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


def _forget_old(folder: Path) -> None:
    files = sorted(folder.glob("*.log*"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[FILES_KEPT:]:
        file.unlink(missing_ok=True)
