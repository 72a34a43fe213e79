"""The jobs that somebody waits for, with their time limits and what became of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass

from ftis_node.errors import EngineError
from ftis_node.generate.base import TooSlow
from ftis_node.generate.jobs import Finished, Job

#: a job that was under way at this many deaths of engines is their likely cause
JOB_DEATHS = 2


@dataclass(slots=True)
class _Pending:
    """`asked_back_at` is when the engine was told to give the job up, None before."""

    job: Job
    future: Future[Finished]
    deadline: float
    deaths: int = 0
    asked_back_at: float | None = None


class PendingJobs:
    """Any thread may call. `limit_seconds` is the time that one job may take, from its start or its new start."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._lock = threading.RLock()
        self._jobs: dict[int, _Pending] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job, given_up: Callable[[int], None]) -> Future[Finished]:
        """A future for the job's group; `given_up` hears of a future that is cancelled before its job is done."""
        future: Future[Finished] = Future()
        with self._lock:
            self._jobs[job.number] = _Pending(job, future, time.monotonic() + self._limit_seconds)

        def look(done: Future[Finished]) -> None:
            if done.cancelled() and self._take(job.number):
                given_up(job.number)

        future.add_done_callback(look)
        return future

    def finish(self, group: Finished) -> None:
        if pending := self._take(group.number):
            with suppress(InvalidStateError):  # cancelled at this very moment
                pending.future.set_result(group)

    def expire(self, number: int) -> None:
        """The engine has given up a job that took too long."""
        error = TooSlow(
            f"a group took longer than {self._limit_seconds:g} s and was given up",
            hint="raise model.request_seconds, or lower the tokens or the completions of a group",
        )
        self._fail(number, error)

    def overdue(self) -> list[int]:
        """Jobs whose time is over now, each told once."""
        now = time.monotonic()
        with self._lock:
            late = [p for p in self._jobs.values() if p.asked_back_at is None and now > p.deadline]
            for pending in late:
                pending.asked_back_at = now
        return [pending.job.number for pending in late]

    def ignored(self, grace_seconds: float) -> bool:
        """Whether the engine has not answered for that long since it was told to give a job up."""
        now = time.monotonic()
        with self._lock:
            asked = [p.asked_back_at for p in self._jobs.values() if p.asked_back_at is not None]
        return any(now > moment + grace_seconds for moment in asked)

    def begin_again(self) -> list[Job]:
        """All jobs, for a new engine, with their whole time before them."""
        with self._lock:
            for pending in self._jobs.values():
                pending.deadline, pending.asked_back_at = time.monotonic() + self._limit_seconds, None
            return [pending.job for pending in self._jobs.values()]

    def engine_died(self) -> None:
        """Count it; a job that saw too many deaths fails, or it would take every engine with it."""
        with self._lock:
            for pending in self._jobs.values():
                pending.deaths += 1
            suspects = [p.job.number for p in self._jobs.values() if p.deaths >= JOB_DEATHS]
        for number in suspects:
            self._fail(number, EngineError(f"the engine died {JOB_DEATHS} times over this group", hint="see its log"))

    def fail_all(self, error: EngineError) -> None:
        """Nobody waits in vain."""
        for number in list(self._jobs):
            self._fail(number, error)

    def _fail(self, number: int, error: EngineError) -> None:
        if pending := self._take(number):
            with suppress(InvalidStateError):
                pending.future.set_exception(error)

    def _take(self, number: int) -> _Pending | None:
        with self._lock:
            return self._jobs.pop(number, None)
