"""A running page, and plain questions to it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ftis_node.dashboard.app import page_app
from ftis_node.dashboard.documents import Served as Role
from ftis_node.dashboard.guard import Rules
from ftis_node.dashboard.server import PageServer, Place
from ftis_node.dashboard.source import Source
from ftis_node.store import Store

SWARM_ID = "s" * 26
PATIENCE_SECONDS = 20.0


@dataclass(frozen=True)
class Answer:
    """Status, headers in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Message:
    """One server-sent event."""

    kind: str
    id: str
    data: Any


@dataclass
class Served:
    """A page and the store that it shows."""

    store: Store
    server: PageServer
    source: Source
    open: list[http.client.HTTPConnection] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.server.address

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """One request over a connection of its own. Header names are written with underscores."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE_SECONDS)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def listen(self, came_from: str = "") -> Iterator[Message]:
        """The stream's messages as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE_SECONDS)
        self.open.append(connection)
        connection.request("GET", "/api/v1/stream", headers={"Last-Event-ID": came_from} if came_from else {})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return _messages(answer)

    def close(self) -> None:
        for connection in self.open:
            connection.close()
        self.server.close()
        self.source.close()
        self.store.close()


def serve(
    store: Store,
    *,
    role: str = "node",
    public: bool = False,
    token: str = "",
    ask: Any = None,
    hosts: tuple[str, ...] = (),
    port: int = 0,
) -> Served:
    """A page on this machine, on a free port unless told otherwise."""
    source = Source(store.path, fresh_seconds=0.0)
    shown = Role(SWARM_ID, role, public=public, writable=ask is not None)
    app = page_app(source, shown, token=token, ask=ask, rules=Rules(frozenset(hosts), limited=public))
    return Served(store, PageServer.start(Place("127.0.0.1", port), app), source)


def _messages(answer: http.client.HTTPResponse) -> Iterator[Message]:
    fields: dict[str, str] = {}
    while line := answer.readline().decode():
        if line.strip():
            name, _, value = line.rstrip("\r\n").partition(": ")
            fields[name] = value
        elif fields:
            yield Message(fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"]))
            fields = {}
