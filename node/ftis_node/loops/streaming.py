"""Own groups from an engine that samples beside the learner: each is asked for as soon as there is room for it.

How much is under way is bounded twice: the buffer wants only so many groups (`OwnSide`), and the engine is asked for no
more than its rows can hold twice over, so that it always has the next group at hand and new weights never wait long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from ftis_node import metrics
from ftis_node.errors import TaskError
from ftis_node.generate.base import StreamingGenerator, TooSlow
from ftis_node.loops.rooms import Rooms
from ftis_node.records import SampledGroup, TrainGroup

log = logging.getLogger(__name__)

#: completions that are asked for at once
ROWS_UNDER_WAY = 128
#: groups in a row that came to nothing, before the node says so
PATIENCE = 16


class GroupStream:
    """Keeps an engine busy. `reward` scores a group (None: its checker failed), `seed` names the next prompt's seed,
    `keep` takes finished groups with the seconds that sampling them took."""

    def __init__(
        self,
        rooms: Rooms,
        generator: StreamingGenerator,
        reward: Callable[[SampledGroup], Awaitable[TrainGroup | None]],
        seed: Callable[[], int],
        keep: Callable[[list[TrainGroup], float], Awaitable[None]],
    ) -> None:
        self._rooms, self._generator = rooms, generator
        self._reward, self._seed, self._keep = reward, seed, keep
        self._room = asyncio.Semaphore(max(1, ROWS_UNDER_WAY // rooms.config.train.group_size))
        self._under_way = 0
        self._failures = 0
        self._fresh: list[TrainGroup] = []
        self._since = 0.0

    async def run(self) -> None:
        """For ever. Raises TaskError when group after group comes to nothing."""
        async with asyncio.TaskGroup() as groups:
            while True:
                for _ in range(await self._rooms.own.wanted()):
                    await self._room.acquire()
                    if self._under_way == 0:
                        self._since = time.monotonic()
                    self._under_way += 1
                    groups.create_task(self._one())

    async def _one(self) -> None:
        """From a prompt to a group in the buffer; another prompt for one that came to nothing."""
        try:
            while (group := await self._try()) is None:
                self._failures += 1
                if self._failures >= PATIENCE:
                    raise TaskError(
                        f"{self._failures} groups in a row came to nothing",
                        hint="Look for the checker's or the engine's own error in the log above.",
                    )
            self._failures = 0
        finally:
            self._room.release()
            self._under_way -= 1
        self._rooms.own.put(group)
        self._fresh.append(group)
        if self._under_way == 0 or len(self._fresh) >= self._rooms.config.train.groups_per_step:
            await self._hand_on()

    async def _try(self) -> TrainGroup | None:
        rooms = self._rooms
        await rooms.states.may_work()
        seed = self._seed()
        prompt = rooms.prompts.draw()
        size = rooms.config.train.group_size
        try:
            sampled = await asyncio.wrap_future(self._generator.submit(prompt, group_size=size, seed=seed))
        except TooSlow as failure:
            log.warning("an own group of %s was given up: %s", prompt.ref.task, failure)
            rooms.store.count(metrics.GROUPS_GIVEN_UP)
            rooms.store.event("group-given-up", str(failure), level="warning")
            return None
        rooms.parts.act("engine", f"a group of {size}")
        return await self._reward(sampled)

    async def _hand_on(self) -> None:
        fresh, self._fresh = self._fresh, []
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        await self._keep(fresh, seconds)
