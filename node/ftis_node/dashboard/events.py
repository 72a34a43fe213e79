"""Live news for open pages: one look at the database for all of them, one bounded queue for each.

A message's id says how far its reader has come in every table, `values.events.rollouts`. A reader that comes back with
it (Last-Event-ID) gets what it missed, or `reset` when that is too much to send: then it asks for everything again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from sse_starlette.event import ServerSentEvent

from ftis_node.dashboard.documents import Served, state
from ftis_node.dashboard.listings import event_view
from ftis_node.dashboard.source import DataUnavailable, Source
from ftis_node.store import Store
from ftis_node.store_log import log_after, newest
from ftis_node.store_series import fresh

log = logging.getLogger(__name__)

#: pause between two looks, while anybody listens
LOOK_SECONDS = 0.5
#: a look that found nothing still tells the time, at least so often: silence means that the line is dead
BEAT_SECONDS = 1.0
#: pages that may listen at once
MAX_LISTENERS = 128
#: messages that wait for one slow reader; beyond that it is cut off and comes back by itself
QUEUE_MESSAGES = 32
#: values or events that one message may bring; more is a reset
MAX_VALUES = 2_000
MAX_EVENTS = 200


class TooManyListeners(Exception):
    """No further page can listen now."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far somebody has read."""

    values: int = 0
    events: int = 0
    rollouts: int = 0

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """None for anything that this program never sent."""
        parts = text.split(".")
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) <= 15 for part in parts):
            return None
        return cls(*map(int, parts))

    def __str__(self) -> str:
        return f"{self.values}.{self.events}.{self.rollouts}"


@dataclass(frozen=True, slots=True)
class News:
    """One look: what came after `Mark`, as the messages to send."""

    mark: Mark
    messages: tuple[ServerSentEvent, ...]


def news_since(store: Store, mark: Mark) -> News:
    """What came after `mark`. A gap that is too wide, or a database that began anew, is told as `reset`."""
    now = Mark(*newest(store))
    values, events = fresh(store, mark.values, MAX_VALUES + 1), log_after(store, mark.events, MAX_EVENTS + 1)
    began_anew = now.values < mark.values or now.events < mark.events or now.rollouts < mark.rollouts
    if began_anew or len(values) > MAX_VALUES or len(events) > MAX_EVENTS:
        return News(now, (_message(now, "reset", {}),))
    reached = replace(
        now,
        values=values[-1].id if values else mark.values,
        events=events[-1].id if events else mark.events,
    )
    messages = []
    if values:
        points = [[v.id, v.ts, v.step, v.name, v.value] for v in values]
        messages.append(_message(reached, "points", {"points": points}))
    if events:
        rows = [event_view(row).model_dump() for row in events]
        messages.append(_message(reached, "log", {"events": rows}))
    if now.rollouts > mark.rollouts:
        messages.append(_message(reached, "rollouts", {"newest": now.rollouts}))
    return News(reached, tuple(messages))


class Hub:
    """Looks for news while somebody listens, and hands them to every listener."""

    def __init__(self, source: Source, served: Served, ask: Callable[..., Awaitable[Any]]) -> None:
        self._source = source
        self._served = served
        self._ask = ask
        self._queues: set[asyncio.Queue[tuple[ServerSentEvent, ...] | None]] = set()
        self._mark = Mark()
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    async def listen(self, came_from: Mark | None) -> AsyncIterator[ServerSentEvent]:
        """Messages until the reader leaves, is too slow, or the page closes. Raises TooManyListeners and
        DataUnavailable before the first message."""
        if self._closed or len(self._queues) >= MAX_LISTENERS:
            raise TooManyListeners
        # Registered before the first read, so nothing falls in between; what comes twice has the same id.
        queue: asyncio.Queue[tuple[ServerSentEvent, ...] | None] = asyncio.Queue(QUEUE_MESSAGES)
        self._queues.add(queue)
        with ExitStack() as on_failure:
            on_failure.callback(self._queues.discard, queue)
            mark, first = await self._ask(self._first, came_from)
            on_failure.pop_all()
        if self._looking is None or self._looking.done():
            self._mark = mark
            self._looking = asyncio.create_task(self._look_again_and_again())
        return self._messages(queue, first)

    async def _messages(
        self, queue: asyncio.Queue[tuple[ServerSentEvent, ...] | None], first: tuple[ServerSentEvent, ...]
    ) -> AsyncIterator[ServerSentEvent]:
        try:
            for message in first:
                yield message
            while (messages := await queue.get()) is not None:
                for message in messages:
                    yield message
        finally:
            self._queues.discard(queue)

    def _first(self, came_from: Mark | None) -> tuple[Mark, tuple[ServerSentEvent, ...]]:
        def question(store: Store) -> tuple[Mark, tuple[ServerSentEvent, ...]]:
            news = News(Mark(*newest(store)), ()) if came_from is None else news_since(store, came_from)
            return news.mark, (_message(news.mark, "hello", {}), *news.messages, self._state(store, news.mark))

        return self._source.read(question)

    def _state(self, store: Store, mark: Mark) -> ServerSentEvent:
        return ServerSentEvent(id=str(mark), event="state", data=state(store, self._served).model_dump_json())

    async def _look_again_and_again(self) -> None:
        """Ends when nobody listens any more; what cannot be read now is looked for again."""
        last = 0.0
        clock = asyncio.get_running_loop().time
        while self._queues and not self._closed:
            try:
                beat = clock() - last >= BEAT_SECONDS
                messages = await self._ask(self._look, beat)
            except DataUnavailable as reason:
                log.warning("the page cannot read the database: %s", reason)
                messages = (ServerSentEvent(event="unavailable", data=json.dumps({"error": str(reason)})),)
            if messages:
                last = clock()
                self._hand_out(messages)
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self, beat: bool) -> tuple[ServerSentEvent, ...]:
        def question(store: Store) -> tuple[ServerSentEvent, ...]:
            news = news_since(store, self._mark)
            self._mark = news.mark
            if not news.messages and not beat:
                return ()
            return (*news.messages, self._state(store, news.mark))

        return self._source.read(question)

    def _hand_out(self, messages: tuple[ServerSentEvent, ...]) -> None:
        for queue in tuple(self._queues):
            if queue.full():
                self._queues.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(messages)

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        for queue in tuple(self._queues):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)
        if self._looking is not None:
            self._looking.cancel()


def _message(mark: Mark, kind: str, content: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(id=str(mark), event=kind, data=json.dumps(content))
