"""The page's web server, in a thread with an event loop of its own.

It shares the process with the node so that a page costs no second interpreter, and nothing else: its own loop, so that
a slow reader or a busy page never delays an answer to the swarm; its own read-only connection, so that it cannot hold
up a write; bounded connections, streams and queues. Whatever goes wrong here ends here, as an event in the log.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from ftis_node.dashboard.guard import MAX_HEAD_BYTES
from ftis_node.errors import UsageError

log = logging.getLogger(__name__)

#: ports tried after the wanted one
PORTS_TRIED = 20
MAX_CONNECTIONS = 512
#: a connection that has sent nothing for so long is closed
SILENT_SECONDS = 30.0
START_SECONDS = 10.0
STOP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page listens; `port` 0 takes a free one, a taken port the next free one."""

    host: str
    port: int


class PageServer:
    """A running page. `start` raises UsageError where no port can be had."""

    def __init__(self, listening: socket.socket, app: Starlette) -> None:
        self.port = int(listening.getsockname()[1])
        self.address = _address(listening)
        self._socket = listening
        self._app = app
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=_Impatient,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                limit_concurrency=MAX_CONNECTIONS,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                timeout_graceful_shutdown=1,
                server_header=False,
            )
        )
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)

    @classmethod
    def start(cls, place: Place, app: Starlette) -> PageServer:
        """Listen and serve; returns when the page answers."""
        server = cls(listen(place), app)
        server._thread.start()
        server._ready.wait(START_SECONDS)
        return server

    @property
    def alive(self) -> bool:
        """Whether the page's thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End all streams and the server. Takes at most a moment more than STOP_SECONDS, whoever still reads."""
        loop = self._loop
        if loop is not None and self._thread.is_alive():
            self._server.should_exit = True
            loop.call_soon_threadsafe(self._app.state.pages.hub.close)
            self._thread.join(STOP_SECONDS)
            self._server.force_exit = True
            self._thread.join(STOP_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._server.serve(sockets=[self._socket])


def listen(place: Place) -> socket.socket:
    """A listening socket at the wanted port or the next free one."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    last: OSError | None = None
    for port in range(place.port, place.port + PORTS_TRIED) if place.port else (0,):
        with ExitStack() as on_failure:
            found = socket.socket(family, socket.SOCK_STREAM)
            on_failure.callback(found.close)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                found.bind((place.host, min(port, 65535)))
            except OSError as error:
                last = error
                continue
            found.listen(256)
            found.setblocking(False)
            on_failure.pop_all()
            return found
    raise UsageError(
        f"the page cannot listen on {place.host} port {place.port}: {last.strerror if last else 'no port'}",
        hint="Choose another port with page.port (0 takes a free one), or switch the page off with page.enabled.",
    )


class _Impatient(H11Protocol):
    """Closes connections on which nothing was ever asked."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waiting = self.loop.call_later(SILENT_SECONDS, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.close()


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"
