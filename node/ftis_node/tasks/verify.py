"""Rewards computed in processes that can be killed.

A checker works on text that strangers wrote: it may raise, return nonsense or never come back. Each of these is a
TaskError, which is neither a right nor a wrong answer; the process is replaced and the node goes on.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from pebble import ProcessExpired, ProcessPool

from ftis_node.errors import TaskError
from ftis_node.tasks.worker import Outcome, prepare, score_held_out, score_item
from ftis_protocol.manifest import TaskSpec

DEFAULT_TIMEOUT_SECONDS = 10.0
# From the call to the answer, waiting for a free process and its start included: nothing waits without a limit.
DEFAULT_PATIENCE_SECONDS = 120.0


class VerifyPool:
    """Scores completions in `workers` separate processes, started at the first call.

    `timeout_seconds`: wall-clock limit for the texts of one call once a process has taken it up; then that process is
    killed. `patience_seconds`: limit for the whole call.
    """

    def __init__(
        self,
        workers: int = 1,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        patience_seconds: float = DEFAULT_PATIENCE_SECONDS,
    ) -> None:
        self.workers = workers
        self.timeout_seconds = timeout_seconds
        self.patience_seconds = patience_seconds
        #: processes that were killed or died at work, and replaced
        self.replaced = 0
        self._pool: ProcessPool | None = None
        self._under_way: set[Future[Outcome]] = set()

    async def score(self, spec: TaskSpec, seed: int, index: int, texts: Sequence[str]) -> list[float]:
        """Rewards of one group, in order: the texts answer item `index` of the slice `seed`. Raises TaskError."""
        return await self._ask(spec, len(texts), score_item, spec, seed, index, tuple(texts))

    async def score_held_out(self, spec: TaskSpec, count: int, answers: Sequence[tuple[int, str]]) -> list[float]:
        """Rewards of (position, text) pairs; position points into the task's `held_out(count)`. Raises TaskError."""
        return await self._ask(spec, len(answers), score_held_out, spec, count, tuple(answers))

    def close(self) -> None:
        """End all processes now; calls under way fail with TaskError. A later call starts new ones."""
        pool, self._pool = self._pool, None
        for future in tuple(self._under_way):  # the pool would leave them pending for ever
            future.cancel()
        if pool is not None:
            pool.stop()
            pool.join()

    async def _ask(self, spec: TaskSpec, count: int, function: Callable[..., Outcome], *arguments: Any) -> list[float]:
        if count == 0:
            return []
        try:
            outcome = await self._outcome(function, arguments)
        except BrokenProcessPool:
            # One of its idle processes was killed from outside; the next submission replaces the pool.
            outcome = await self._outcome(function, arguments)
        if isinstance(outcome, str):
            raise _failed(spec.name, outcome)
        if len(outcome) != count:
            raise _failed(spec.name, f"{count} texts got {len(outcome)} rewards")
        return list(outcome)

    def _submit(self, function: Callable[..., Outcome], arguments: tuple[Any, ...]) -> Future[Outcome]:
        if self._pool is not None and not self._pool.active:
            self.close()
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=self.workers, initializer=prepare, context=multiprocessing.get_context("spawn")
            )
        future: Future[Outcome] = self._pool.schedule(function, args=arguments, timeout=self.timeout_seconds)
        self._under_way.add(future)
        return future

    async def _outcome(self, function: Callable[..., Outcome], arguments: tuple[Any, ...]) -> Outcome:
        """The worker's answer; a killed, dead or silent worker becomes a sentence about it."""
        future = self._submit(function, arguments)
        waiting = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({waiting}, timeout=self.patience_seconds)
        finally:
            self._under_way.discard(future)
            if not waiting.done():
                future.cancel()  # also kills the process that works on it
        if not done:
            self.replaced += 1
            return f"no answer within {self.patience_seconds:g} s"
        if waiting.cancelled():
            return "the verifying processes were stopped"
        error = waiting.exception()
        if isinstance(error, BrokenProcessPool):
            raise error
        if isinstance(error, TimeoutError | ProcessExpired):
            self.replaced += 1
        if isinstance(error, TimeoutError):
            return f"took longer than {self.timeout_seconds:g} s and was killed"
        if isinstance(error, ProcessExpired):
            return f"its process died (exit code {error.exitcode})"
        return waiting.result() if error is None else f"{type(error).__name__}: {error}"


def _failed(name: str, reason: str) -> TaskError:
    return TaskError(
        f"the checker of task {name!r} failed: {reason}",
        hint="The texts were neither right nor wrong; report this with the task's name if it happens again.",
    )
