"""Reasons for a failed join, from the transport's own words and from a plain TCP probe."""

from __future__ import annotations

import errno
import socket
from dataclasses import replace

import pytest

from ftis_node.errors import FtisError, SwarmUnreachable, UsageError
from ftis_node.swarm import failures, ports
from ftis_node.swarm.addresses import parse_endpoint
from ftis_node.swarm.failures import (
    Attempt,
    ClockWrong,
    IdentityInUse,
    JoinFailed,
    JoinFailure,
    PortTaken,
    diagnose,
    from_transport,
    probe_tcp,
)
from ftis_node.swarm.ports import choose_port, free_port, port_free
from ftis_node.swarm.settings import DhtOptions

ME = "12D3KooWR5PnYTAiXprb7zUYWsPq4VcVxAyJ9qiFTZuw1JHKS3Pp"
ADDRESS = f"/ip4/127.0.0.1/tcp/4001/p2p/{ME}"
ENDPOINT = parse_endpoint(ADDRESS)


def dialled(*lines: str) -> str:
    head = f"Connect failed. msg=failed to dial: failed to dial {ME}: all dials failed"
    return "\n".join((head, *(f"  * {line}" for line in lines)))


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (
            dialled(
                "[/ip4/127.0.0.1/tcp/4001] failed to negotiate security protocol: peer id mismatch: "
                f"expected {ME}, but remote key matches QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
            ),
            JoinFailure.PEER_ID,
        ),
        (
            dialled("[/ip4/127.0.0.1/tcp/4001] dial tcp4 127.0.0.1:4001: connect: connection refused"),
            JoinFailure.PORT_CLOSED,
        ),
        (dialled("[/ip4/127.0.0.1/tcp/4001] dial tcp4: connect: no route to host"), JoinFailure.NO_ROUTE),
        (dialled("[/ip4/127.0.0.1/tcp/4001] dial tcp4: connect: network is unreachable"), JoinFailure.NO_ROUTE),
        (dialled("[/ip4/127.0.0.1/tcp/4001] dial tcp4 127.0.0.1:4001: i/o timeout"), JoinFailure.TIMEOUT),
        (dialled("[/ip4/127.0.0.1/tcp/4001] dial backoff"), JoinFailure.TIMEOUT),
        (
            dialled("[/ip4/127.0.0.1/tcp/4001] failed to negotiate security protocol: context deadline exceeded"),
            JoinFailure.TIMEOUT,
        ),
        (
            dialled("[/ip4/127.0.0.1/tcp/4001] failed to negotiate security protocol: message did not have newline"),
            JoinFailure.NOT_A_NODE,
        ),
        ("Connect failed. msg=failed to dial: dial to self attempted", JoinFailure.PEER_ID),
        ("lookup node.example: no such host", JoinFailure.NO_NAME),
        ("something new", None),
        ("", None),
        (
            dialled(
                "[/ip4/10.0.0.9/tcp/4001] dial tcp4 10.0.0.9:4001: i/o timeout",
                "[/ip4/127.0.0.1/tcp/4001] dial tcp4 127.0.0.1:4001: connect: connection refused",
            ),
            JoinFailure.PORT_CLOSED,
        ),
    ],
)
def test_the_transports_words_are_understood(text: str, failure: JoinFailure | None):
    assert from_transport(text, ENDPOINT) is failure


async def test_a_probe_tells_open_and_closed_ports_apart():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert await probe_tcp("127.0.0.1", server.getsockname()[1]) is None
    assert await probe_tcp("127.0.0.1", free_port("127.0.0.1")) is JoinFailure.PORT_CLOSED


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (OSError(errno.ENETUNREACH, "unreachable"), JoinFailure.NO_ROUTE),
        (OSError(errno.EHOSTUNREACH, "no route"), JoinFailure.NO_ROUTE),
        (OSError(errno.ECONNRESET, "reset"), JoinFailure.PORT_CLOSED),
        (OSError("Multiple exceptions: [Errno 111] Connection refused, ..."), JoinFailure.PORT_CLOSED),
        (socket.gaierror(-2, "Name or service not known"), JoinFailure.NO_NAME),
        (TimeoutError(), JoinFailure.TIMEOUT),
    ],
)
async def test_a_probe_names_what_the_system_reports(monkeypatch, error: OSError, failure: JoinFailure):
    async def fail(host, port):
        raise error

    monkeypatch.setattr(failures.asyncio, "open_connection", fail)
    assert await probe_tcp("node.example", 4001) is failure


async def test_silence_of_the_transport_is_followed_up_by_a_probe():
    closed = f"/ip4/127.0.0.1/tcp/{free_port('127.0.0.1')}/p2p/{ME}"
    assert (await diagnose(closed, "")).failure is JoinFailure.PORT_CLOSED
    with socket.create_server(("127.0.0.1", 0)) as server:
        mute = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{ME}"
        assert (await diagnose(mute, "")).failure is JoinFailure.TIMEOUT
        assert (await diagnose(mute, "odd")).failure is JoinFailure.NOT_A_NODE
    assert (await diagnose("/tcp/1", "malformed")).failure is JoinFailure.MALFORMED


def test_a_failed_join_names_every_address_and_what_to_do():
    error = JoinFailed(
        [Attempt(ADDRESS, JoinFailure.PORT_CLOSED, ""), Attempt("/ip4/1.2.3.4", JoinFailure.PEER_ID, "expected A")]
    )
    assert isinstance(error, SwarmUnreachable)
    assert error.exit_code == 5
    assert ADDRESS in str(error)
    assert "port closed" in str(error)
    assert "expected A" in str(error)
    assert "fresh invite" in error.hint
    assert "firewall" in error.hint


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ClockWrong(3600.25, 3.0), ("3600.2 s ahead", "3 s")),
        (ClockWrong(-5.0, 3.0), ("5.0 s behind",)),
        (IdentityInUse("a node at X"), ("in use", "a node at X")),
        (PortTaken("0.0.0.0", 4001), ("4001",)),
    ],
)
def test_own_faults_are_usage_errors_with_a_remedy(error: FtisError, words: tuple[str, ...]):
    assert isinstance(error, UsageError)
    assert all(word in str(error) for word in words)
    assert error.hint


def test_a_port_in_use_is_not_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not port_free("127.0.0.1", server.getsockname()[1])
    assert port_free("127.0.0.1", free_port("127.0.0.1"))


def test_a_foreign_address_cannot_be_listened_on():
    with pytest.raises(UsageError, match=r"203\.0\.113\.7"):
        port_free("203.0.113.7", 4001)


async def test_ports_are_chosen_kept_or_refused(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ports, "_PATIENCE_SECONDS", 0.1)
    here = DhtOptions(state_dir=tmp_path, host="127.0.0.1")
    first = await choose_port(here)
    assert port_free("127.0.0.1", first)
    here.remember_port(first)
    assert await choose_port(here) == first
    with socket.create_server(("127.0.0.1", first)):
        assert await choose_port(here) != first
        with pytest.raises(PortTaken, match=str(first)):
            await choose_port(replace(here, port=first))
    assert await choose_port(replace(here, port=first)) == first
