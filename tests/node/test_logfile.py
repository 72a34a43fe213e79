"""The log of a start: lines or objects, and a fault that repeats for weeks does not fill the disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftis_node import logfile


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    logfile.end()


def test_json_lines(tmp_path: Path) -> None:
    path = logfile.begin(tmp_path, json_lines=True)
    log = logging.getLogger("ftis_node.x")
    log.info("step %d", 3)
    try:
        raise OSError("gone")
    except OSError:
        log.exception("it broke")
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert (first["level"], first["text"], first["logger"]) == ("info", "step 3", "ftis_node.x")
    assert "OSError: gone" in second["trace"]


def test_repeats_are_counted_instead_of_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = logfile.begin(tmp_path)
    log = logging.getLogger("ftis_node.x")
    for number in range(logfile.REPEATS_ALLOWED + 50):
        log.warning("attempt %d failed", number)
    log.warning("something else")
    assert len(path.read_text().splitlines()) == logfile.REPEATS_ALLOWED + 1
    later = logging.LogRecord("ftis_node.x", logging.WARNING, "", 0, "attempt %d failed", (99,), None)
    later.created += logfile.REPEAT_SECONDS + 1
    log.handle(later)
    assert path.read_text().splitlines()[-1].endswith("attempt 99 failed (and 50 more like it before)")


def test_a_large_file_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "MAX_FILE_BYTES", 10_000)
    monkeypatch.setattr(logfile, "REPEATS_ALLOWED", 10**9)
    path = logfile.begin(tmp_path)
    for number in range(1000):
        logging.getLogger("ftis_node.x").info("line %d of many", number)
    assert sum(file.stat().st_size for file in tmp_path.glob("*.log*")) < 25_000
    assert "line 999" in path.read_text()
