"""How a node is told to end, and how its parts end together.

The first interrupt, SIGTERM or SIGHUP (the terminal is gone) drains: finish the running computation or drop it when it
takes too long, save, say good-bye. The second ends at once, and so does the end of the time that was set for an
orderly stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

log = logging.getLogger(__name__)


class StopSignal:
    """Turns SIGINT, SIGTERM and SIGHUP into an event. `install` needs the running loop of the main thread;
    `limit_seconds` is the time from the first signal to an end without further saving, None for no limit.

    `last_acts` are done before an end at once: quick, and safe to do in the middle of anything.
    """

    def __init__(self, limit_seconds: float | None = None) -> None:
        self.event = asyncio.Event()
        self.interrupted = False
        self.last_acts: list[Callable[[], object]] = []
        self._limit_seconds = limit_seconds

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)

    def end_now(self, code: int, why: str) -> None:
        """Leave the process without waiting for a computation that cannot be stopped."""
        for act in self.last_acts:
            act()
        with suppress(OSError):  # the terminal may be gone
            print(why, file=sys.stderr, flush=True)
        os._exit(code)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP and self.event.is_set():
            return  # a closed terminal sends it beside the interrupt that closed it
        if self.event.is_set():
            self._end("on a second signal")
        self.interrupted = number == signal.SIGINT
        self.event.set()
        if self._limit_seconds is not None:
            why = f"because an orderly stop took longer than {self._limit_seconds:g} s (node.stop_seconds)"
            asyncio.get_running_loop().call_later(self._limit_seconds, self._end, why)

    def _end(self, why: str) -> None:
        self.end_now(130, f"stopped at once, {why}; the last checkpoint is kept")


async def unless_stopped(
    stop: asyncio.Event, work: Coroutine[Any, Any, None], *, patience_seconds: float | None = None
) -> bool:
    """Await `work`, or cancel it as soon as `stop` is set and await its end, at most `patience_seconds` (None: however
    long it takes). Its error comes out as itself. False when it was left behind, still busy with something that
    cannot be broken off."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.wait((working, stopping), timeout=patience_seconds if stop.is_set() else None)
    if not working.done():
        return False
    if not working.cancelled() and (error := working.exception()):
        raise sole(error)
    return True


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Await all. The first error cancels the others and comes out as itself, not as a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as errors:
        raise sole(errors) from None


def sole(error: BaseException) -> BaseException:
    """The first error inside a task group's wrapper, so that its hint reaches the user; the others go to the log."""
    while isinstance(error, BaseExceptionGroup):
        error, *others = error.exceptions
        for other in others:
            log.error("another error at the same time", exc_info=other)
    return error
