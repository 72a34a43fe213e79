"""The states of a running node and the two ways to end it.

    starting -> joining -> working <-> alone -> draining -> stopped

`working` means that another learner shows a living card; `alone` that none does and the node trains by itself. The
first interrupt or SIGTERM drains: finish the running computation, save, say good-bye. The second ends at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from enum import StrEnum


class NodeState(StrEnum):
    """What a node says about itself in its card, in `status` and on the page."""

    STARTING = "starting"
    JOINING = "joining"
    WORKING = "working"
    ALONE = "alone"
    DRAINING = "draining"
    STOPPED = "stopped"


class StopSignal:
    """Turns SIGINT and SIGTERM into an event. `install` needs the running loop of the main thread."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.interrupted = False

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self.event.is_set():
            print("stopped at once, on a second signal; the last checkpoint is kept", file=sys.stderr, flush=True)
            os._exit(130)
        self.interrupted = number == signal.SIGINT
        self.event.set()
