"""The server in its thread: ports, crowds, people who do not read, and its end."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from dashboard.serving import Served
from dashboard.test_stream import until
from ftis_node.dashboard import events, server
from ftis_node.dashboard.server import Place, listen
from ftis_node.errors import UsageError

#: what closing a page may take, however many listen; the rest is for a machine that is busy with other things
CLOSE_SECONDS = 10.0


def connection(page: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", page.server.port), timeout=20)


def test_a_taken_port_is_passed_over():
    with listen(Place("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with listen(Place("127.0.0.1", port)) as found:
            assert port < found.getsockname()[1] < port + server.PORTS_TRIED


def test_without_a_port_the_line_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "PORTS_TRIED", 1)
    with listen(Place("127.0.0.1", 0)) as taken, pytest.raises(UsageError) as failure:
        listen(Place("127.0.0.1", taken.getsockname()[1]))
    assert "page.port" in failure.value.hint


def test_an_address_of_another_machine_is_told():
    with pytest.raises(UsageError, match=r"cannot listen on 203\.0\.113\.7"):
        listen(Place("203.0.113.7", 0))


def test_it_ends_at_once_with_open_pages(page: Served):
    streams = [page.listen() for _ in range(5)]
    for messages in streams:
        until(messages, "state")
    began = time.monotonic()
    page.server.close()
    assert not page.server.alive
    assert time.monotonic() - began < CLOSE_SECONDS
    for messages in streams:
        assert list(messages) is not None  # the stream has an end
    assert "page" not in {thread.name for thread in threading.enumerate()}


def test_two_hundred_idle_connections_leave_room(page: Served):
    idle = [connection(page) for _ in range(200)]
    try:
        assert page.ask("/api/v1/state").status == 200
    finally:
        for each in idle:
            each.close()


def test_who_never_asks_is_hung_up_on(page: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.1)
    with connection(page) as silent:
        assert silent.recv(1) == b""


def test_a_reader_who_does_not_read_is_let_go(page: Served, monkeypatch: pytest.MonkeyPatch):
    hub = page.server._app.state.pages.hub
    monkeypatch.setattr(events, "QUEUE_MESSAGES", 2)
    with connection(page) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert lazy.recv(12) == b"HTTP/1.1 200"
        deadline = time.monotonic() + 30
        while hub._queues and time.monotonic() < deadline:
            page.store.event("noise", "x" * 1_000_000)
            page.ask("/livez")
        assert not hub._queues, "cut off after so many messages that were not taken"
    assert page.ask("/api/v1/state").status == 200
