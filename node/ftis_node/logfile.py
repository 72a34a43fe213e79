"""One log file per start, with a `latest` link beside them. What a person reads goes through `console`, not here."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

FILES_KEPT = 20
OUR_PACKAGES = ("ftis_node", "ftis_protocol")
_FORMAT = "%(asctime)s %(levelname)-7s %(threadName)s %(name)s: %(message)s"


class _AttemptLog(logging.FileHandler):
    """Told apart from log files that somebody else attached."""

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk loses lines, but does not print a trace for each of them: what matters is reported elsewhere."""


def begin(folder: Path, level: str = "info") -> Path:
    """Send our records of `level` and above, and other packages' warnings, to a new file in `folder`; its path."""
    path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    handler = _AttemptLog(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
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
    files = sorted(folder.glob("*.log"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[FILES_KEPT:]:
        file.unlink(missing_ok=True)
