"""The loop that watches the others: it names a stalled part, keeps memory and disk inside their limits, and does what
the operator asks.

It only looks and sets switches; whatever it finds shows as the node's state and in the parts' table.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

from ftis_node import metrics
from ftis_node.generate.choose import free_memory
from ftis_node.loops.requests import RequestDesk
from ftis_node.loops.rooms import Rooms
from ftis_node.processes import tree_bytes
from ftis_node.schedule import Hours

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
#: memory is measured this often, and passes are halved at most once in the second time
MEMORY_SECONDS, SHRINK_SECONDS = 5.0, 30.0
#: with less than this to spare the kernel may soon kill
MEMORY_LOW_BYTES = 256 * 1024 * 1024
MEBIBYTE = 1024 * 1024
SCHEDULE = "hours"


class OverseeLoop:
    """Watchdog, limits and the operator's requests of one node."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._hours = Hours.parse(rooms.config.limits.hours)
        self._desk: RequestDesk | None = None
        self._measured_at = self._shrunk_at = float("-inf")
        self._stalled = ""
        self._short = ""

    def begin(self, stop: asyncio.Event) -> None:
        """Open the desk for the operator's requests; `stop` is set by one to leave."""
        rooms = self._rooms
        self._desk = RequestDesk(rooms.store, rooms.states, stop, rooms.admission.take_opinions)
        self._desk.begin()
        self._keep_hours()

    def end(self) -> None:
        """Close the desk; a second call does nothing."""
        if self._desk is not None:
            self._desk.close()
            self._desk = None

    async def forever(self) -> None:
        """Until cancelled."""
        while True:
            self.once()
            await asyncio.sleep(WATCH_SECONDS)

    def once(self) -> None:
        """One look at everything."""
        self._keep_hours()
        if self._desk is not None:
            self._desk.serve()
        self._watch_memory()
        self._watch_parts()
        self._rooms.parts.publish()

    def _watch_parts(self) -> None:
        rooms = self._rooms
        rooms.parts.replaced("dht", rooms.swarm.health.restarts, "the transport's daemon died or did not answer")
        rooms.parts.replaced("verify", rooms.verify.replaced, "a checker did not end in time, or died")
        found = rooms.parts.stalled()
        name = found[0] if found else ""
        if found and name != self._stalled:
            rooms.store.event("stalled", f"{name} is stalled: {found[1]}", level="warning")
            log.warning("%s is stalled: %s", *found)
        self._stalled = name
        rooms.states.ailing(rooms.parts.ailment() or self._short)

    def _keep_hours(self) -> None:
        if self._hours.open_at(time.localtime()):
            self._rooms.states.resume(SCHEDULE)
        else:
            self._rooms.states.pause(SCHEDULE, f"outside the hours {self._hours} (limits.hours)")

    # ---- memory ------------------------------------------------------------------------------------------------

    def _watch_memory(self) -> None:
        now = time.monotonic()
        if now - self._measured_at < MEMORY_SECONDS:
            return
        self._measured_at = now
        rooms, limit = self._rooms, self._rooms.config.limits.memory_mebibytes
        free, used = free_memory("cpu"), tree_bytes(os.getpid())
        rooms.store.metric(rooms.policy.version, {metrics.MEMORY_FREE: free, metrics.MEMORY_USED: used})
        room = min(free, limit * MEBIBYTE - used) if limit is not None else free
        low = room < MEMORY_LOW_BYTES
        self._short = f"memory is short: {used >> 20} MiB used, {max(0, room) >> 20} MiB to spare" if low else ""
        if low and now - self._shrunk_at >= SHRINK_SECONDS:
            self._shrunk_at = now
            self._shrink()

    def _shrink(self) -> None:
        """Make passes smaller: the same gradient from less memory at a time."""
        tokens = self._rooms.updater.halve_passes()
        if tokens is None:
            self._rooms.store.event("memory", f"{self._short}; passes are as small as they get", level="warning")
            return
        self._rooms.store.count(metrics.BATCH_SHRUNK)
        text = f"{self._short}; passes now have at most {tokens} tokens"
        self._rooms.store.event("memory", text, level="warning")
        log.warning("%s", text)
