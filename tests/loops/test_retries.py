"""A frame that nobody had is asked for again: later each time, a few times, and never for ever."""

from __future__ import annotations

import pytest

from ftis_node.loops import retries
from ftis_node.loops.retries import ATTEMPTS, FIRST_PAUSE_SECONDS, JITTER, PAUSE_RATIO, Retries

DIGEST, OTHER = b"a" * 32, b"b" * 32


def test_pauses_grow_and_end() -> None:
    tries, now = Retries(), 1000.0
    assert tries.due(DIGEST, now)
    for attempt in range(1, ATTEMPTS):
        assert not tries.missed(DIGEST, now)
        pause = FIRST_PAUSE_SECONDS * PAUSE_RATIO ** (attempt - 1)
        assert not tries.due(DIGEST, now + (1 - JITTER) * pause - 0.01)
        now += (1 + JITTER) * pause
        assert tries.due(DIGEST, now)
        assert tries.due(OTHER, now)
    assert tries.missed(DIGEST, now), "the last attempt"


def test_what_came_is_forgotten() -> None:
    tries = Retries()
    assert not tries.missed(DIGEST, 0.0)
    tries.found(DIGEST)
    assert tries.due(DIGEST, 0.0)
    tries.found(OTHER)


def test_readers_do_not_return_together() -> None:
    pauses = set()
    for moment in range(20):
        tries = Retries()
        tries.missed(DIGEST, float(moment))
        pauses.add(round(tries._missing[DIGEST].again_at - moment, 6))
    assert len(pauses) == 20


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "REMEMBERED", 3)
    tries = Retries()
    for n in range(10):
        tries.missed(bytes([n]) * 32, 0.0)
    assert len(tries._missing) == 3
