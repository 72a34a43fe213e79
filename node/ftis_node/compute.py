"""The one thread that computes.

Training shares it with engines that live in this process: side by side they would fight for the same cores, and one of
them reads weights that the other is changing. The event loop must stay free to answer the DHT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ComputeThread:
    """Runs heavy calls one after the other, away from the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The call's result or error, once its turn has come. A call that runs cannot be stopped: whoever is cancelled
        here leaves it running, and the next call waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*args, **kwargs))

    def close(self) -> None:
        """Wait for the running call and refuse further ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)


async def to_its_end(work: Coroutine[Any, Any, R]) -> R:
    """The result or error of `work`. A cancellation takes effect only when it is done, so that what changed weights is
    also counted and written down."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        task.result()
        raise
