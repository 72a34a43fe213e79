"""The parts of a running node: what each does now, its last useful act, how often it was started again, and which one
is stalled.

A part tells when it begins something (`doing`) and when something useful came out (the block ended well, or `act`). A
part that has been at one thing for longer than its patience is stalled; of several the innermost is named, because the
others only wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ftis_node import metrics
from ftis_node.clock import Clock
from ftis_node.store import Store
from ftis_node.store_records import Fact


class PartState(StrEnum):
    """STARTING until the first useful act; WORKING at something; IDLE between two; STALLED over its patience;
    RESTARTING or waiting for the next try; FAILED when its budget of restarts is used up; OFF when switched off."""

    STARTING = "starting"
    WORKING = "working"
    IDLE = "idle"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FAILED = "failed"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a broken part is started again: after `first_seconds`, twice as long each time up to `longest_seconds`, and
    at most `budget` times in `window_seconds`."""

    first_seconds: float = 1.0
    longest_seconds: float = 300.0
    budget: int = 10
    window_seconds: float = 3600.0

    def pause_seconds(self, restarts: int) -> float:
        """How long to wait before restart number `restarts` (from 1) of the window."""
        return min(self.longest_seconds, self.first_seconds * 2.0 ** min(restarts - 1, 30))


@dataclass(frozen=True, slots=True)
class PartRules:
    """What a part may take: `patience_seconds` for one act, and its restarts."""

    patience_seconds: float
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


# Innermost first: the trainer waits for the engine and the engine's groups for the checker, never the other way.
RULES: Mapping[str, PartRules] = {
    "verify": PartRules(150.0),
    "engine": PartRules(300.0),
    "dht": PartRules(240.0),
    "trainer": PartRules(600.0),
    "page": PartRules(60.0),
}


@dataclass(slots=True)
class _Part:
    begun_at: float | None = None
    doing: str = ""
    acted_at: float | None = None
    last_act: str = ""
    why: str = ""
    broken: PartState | None = None
    total: int = 0
    restarts: deque[float] = field(default_factory=deque)


class Parts:
    """The parts of one node, published as the fact `parts`. Times are the clock's."""

    def __init__(self, store: Store, clock: Clock, rules: Mapping[str, PartRules] = RULES) -> None:
        self._store = store
        self._clock = clock
        self._rules = rules
        self._parts = {name: _Part() for name in rules if name != "page"}

    @contextmanager
    def doing(self, name: str, what: str, useful: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Around one act of a part: its end without an error is a useful act, if `useful` then says so."""
        part = self._part(name)
        part.begun_at, part.doing = self._clock.now(), what
        try:
            yield
        finally:
            part.begun_at = None
        if useful():
            self.act(name, what)

    def act(self, name: str, what: str) -> None:
        """Something useful came out; whatever was wrong with the part is over."""
        part = self._part(name)
        part.acted_at, part.last_act = self._clock.now(), what
        part.broken, part.why = None, ""

    def broken(self, name: str, why: str) -> float | None:
        """A part broke and shall be started again. Returns the seconds to wait before that, or None when its budget
        is used up and it stays down."""
        part, policy, now = self._part(name), self._rules[name].restarts, self._clock.now()
        while part.restarts and now - part.restarts[0] > policy.window_seconds:
            part.restarts.popleft()
        part.why, part.begun_at = why, None
        if len(part.restarts) >= policy.budget:
            part.broken = PartState.FAILED
            self._store.event("part-failed", f"{name} stays down after {policy.budget} restarts: {why}", level="error")
            return None
        part.restarts.append(now)
        part.total += 1
        part.broken = PartState.RESTARTING
        self._store.count(metrics.series(metrics.PART_RESTARTS, name))
        self._store.event("part-restart", f"{name} is started again (restart {part.total}): {why}", level="warning")
        return policy.pause_seconds(len(part.restarts))

    def replaced(self, name: str, total: int, why: str) -> None:
        """A part that looks after itself was started again, `total` times so far in this process; it is restarting
        until its next useful act."""
        part = self._part(name)
        for number in range(part.total + 1, total + 1):
            part.broken, part.why = PartState.RESTARTING, why
            self._store.count(metrics.series(metrics.PART_RESTARTS, name))
            self._store.event("part-restart", f"{name} was started again (restart {number}): {why}", level="warning")
        part.total = max(part.total, total)

    def off(self, name: str, why: str) -> None:
        """The part is switched off, and why."""
        part = self._part(name)
        part.broken, part.why = PartState.OFF, why

    def stalled(self) -> tuple[str, str] | None:
        """The innermost part over its patience, with what it has been doing; None when there is none."""
        now = self._clock.now()
        for name, part in self._parts.items():
            if self._is_stalled(name, part, now):
                assert part.begun_at is not None
                return name, f"{part.doing} for {now - part.begun_at:.0f} s"
        return None

    def ailment(self) -> str:
        """One line about the part that is not well, empty when all are."""
        if found := self.stalled():
            return f"{found[0]} is stalled: {found[1]}"
        for name, part in self._parts.items():
            if part.broken in (PartState.RESTARTING, PartState.FAILED):
                return f"{name} is {part.broken}: {part.why}"
        return ""

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Name -> state, why, doing, since, last useful act with its time and age, restarts, and what is left of the
        budget; JSON values."""
        now = self._clock.now()
        return {name: self._shown(name, part, now) for name, part in self._parts.items()}

    def publish(self) -> None:
        """Write the snapshot and a sign of life into the store."""
        self._store.set_facts(**{Fact.PARTS: self.snapshot(), Fact.BEAT_AT: self._clock.now()})

    def _shown(self, name: str, part: _Part, now: float) -> dict[str, Any]:
        stalled = self._is_stalled(name, part, now)
        if stalled:
            state = PartState.STALLED
        elif part.broken:
            state = part.broken
        elif part.begun_at is not None:
            state = PartState.WORKING
        else:
            state = PartState.IDLE if part.acted_at is not None else PartState.STARTING
        policy = self._rules[name].restarts
        recent = sum(now - moment <= policy.window_seconds for moment in part.restarts)
        return {
            "state": state.value,
            "why": f"{part.doing} for {now - (part.begun_at or now):.0f} s" if stalled else part.why,
            "doing": part.doing if part.begun_at is not None else "",
            "since": part.begun_at,
            "last_act": part.last_act,
            "last_act_at": part.acted_at,
            "last_act_age_seconds": None if part.acted_at is None else round(max(0.0, now - part.acted_at), 1),
            "restarts": part.total,
            "restarts_left": max(0, policy.budget - recent),
        }

    def _is_stalled(self, name: str, part: _Part, now: float) -> bool:
        return part.begun_at is not None and now - part.begun_at > self._rules[name].patience_seconds

    def _part(self, name: str) -> _Part:
        assert name in self._rules, name
        return self._parts.setdefault(name, _Part())
