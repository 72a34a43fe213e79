"""Why a node could not join, told apart so that a person knows what to do next.

Each address that was tried yields an `Attempt`. The transport's own error text is trusted where it names the cause;
otherwise a plain TCP connect tells a closed port from a missing route.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ftis_node.errors import SwarmUnreachable, UsageError
from ftis_node.swarm.addresses import Endpoint, parse_endpoint

PROBE_SECONDS = 2.0


class JoinFailure(StrEnum):
    """The kinds of failure a user can act on."""

    MALFORMED = "malformed address"
    NO_NAME = "host name unknown"
    NO_ROUTE = "no route"
    PORT_CLOSED = "port closed"
    PEER_ID = "peer id mismatch"
    NOT_A_NODE = "not a node"
    REFUSED = "refused"
    FULL = "full"
    TIMEOUT = "time-out"


HINTS = {
    JoinFailure.MALFORMED: "An address looks like /ip4/203.0.113.7/tcp/4001/p2p/12D3Koo…; paste the whole invite.",
    JoinFailure.NO_NAME: "Check the spelling of the host name and this machine's name resolution.",
    JoinFailure.NO_ROUTE: "This machine has no way to that host: check the network, the VPN and the address.",
    JoinFailure.PORT_CLOSED: "Nothing listens on that port: the node there is down, or a firewall refuses.",
    JoinFailure.PEER_ID: "Another node lives at that address now: ask the swarm for a fresh invite.",
    JoinFailure.NOT_A_NODE: "Something else listens on that port: check host and port of the invite.",
    JoinFailure.REFUSED: "The node there hung up: it may block this one, or be stopping. Try another address.",
    JoinFailure.FULL: "The node there takes no more connections: try another address of the swarm, or wait.",
    JoinFailure.TIMEOUT: "Nobody answered: the host is off, busy, or a firewall drops the packets. Try again later.",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One address that did not work; `detail` is the transport's own wording, shortened."""

    address: str
    failure: JoinFailure
    detail: str

    def __str__(self) -> str:
        return f"{self.address}: {self.failure}" + (f" ({self.detail})" if self.detail else "")


class JoinFailed(SwarmUnreachable):
    """No address of the swarm let this node in; `attempts` has one entry per address."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        assert attempts, "a join failed without an attempt"
        self.attempts = tuple(attempts)
        lines = "".join(f"\n  {attempt}" for attempt in self.attempts)
        kinds = sorted({attempt.failure for attempt in self.attempts})
        super().__init__(f"the swarm cannot be reached:{lines}", hint=" ".join(HINTS[kind] for kind in kinds))


class ClockWrong(UsageError):
    """This machine's clock is off by more than the swarm tolerates; `offset` in seconds, positive when it is ahead."""

    def __init__(self, offset: float, tolerance: float) -> None:
        self.offset = offset
        direction = "ahead of" if offset > 0 else "behind"
        super().__init__(
            f"this machine's clock is {abs(offset):.1f} s {direction} the swarm's (tolerated: {tolerance:g} s)",
            hint="Synchronise the clock (for example `timedatectl set-ntp true`) and start again.",
        )


class IdentityInUse(UsageError):
    """The same identity is running elsewhere; `where` names the place."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(
            f"this node's identity is already in use: {where}",
            hint="Stop the other node, or give this one its own state directory. After a crash wait one minute.",
        )


class PortTaken(UsageError):
    """The port this node shall listen on belongs to another program."""

    def __init__(self, host: str, port: int) -> None:
        self.port = port
        super().__init__(
            f"port {port} on {host} is taken by another program",
            hint="Choose another port, or 0 to have a free one chosen and remembered.",
        )


def from_transport(text: str, endpoint: Endpoint) -> JoinFailure | None:
    """The failure that the transport's error `text` names for `endpoint`; None when it leaves the cause open.

    The text may list several addresses of the same peer, one a line; only the lines of ours count, when there are any.
    """
    lines = [line for line in text.splitlines() if f"[{endpoint.transport}]" in line]
    relevant = "\n".join(lines) or text
    if "peer id mismatch" in relevant or "dial to self attempted" in relevant:
        return JoinFailure.PEER_ID
    if "resource limit exceeded" in relevant or "cannot reserve" in relevant or "too many open files" in relevant:
        return JoinFailure.FULL
    if "connection refused" in relevant:
        return JoinFailure.PORT_CLOSED
    if "no route to host" in relevant or "network is unreachable" in relevant:
        return JoinFailure.NO_ROUTE
    if "no such host" in relevant or "failed to resolve" in relevant:
        return JoinFailure.NO_NAME
    if "i/o timeout" in relevant or "deadline exceeded" in relevant or "dial backoff" in relevant:
        return JoinFailure.TIMEOUT
    if "failed to negotiate security protocol" in relevant or "did not have trailing newline" in relevant:
        return JoinFailure.NOT_A_NODE  # also where it then hangs up on us
    if "gater disallows" in relevant or "connection reset by peer" in relevant or "stream reset" in relevant:
        return JoinFailure.REFUSED
    return None


async def probe_tcp(host: str, port: int, *, deadline: float = PROBE_SECONDS) -> JoinFailure | None:
    """Connect and hang up. None when somebody accepted within `deadline` seconds."""
    try:
        async with asyncio.timeout(deadline):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return JoinFailure.TIMEOUT
    except ConnectionRefusedError:
        return JoinFailure.PORT_CLOSED
    except socket.gaierror:
        return JoinFailure.NO_NAME
    except OSError as error:
        # Several addresses behind one name raise one OSError without a number.
        closed = (error.errno is None and "refused" in str(error)) or error.errno == errno.ECONNRESET
        return JoinFailure.PORT_CLOSED if closed else JoinFailure.NO_ROUTE
    writer.close()
    return None


async def diagnose(address: str, text: str, *, deadline: float = PROBE_SECONDS) -> Attempt:
    """Name the reason why `address` failed, given the transport's error `text` (empty after a time-out)."""
    endpoint = parse_endpoint(address)
    detail = text.strip().rsplit("\n", 1)[-1].strip(" *")[-160:]
    if endpoint is None:
        return Attempt(address, JoinFailure.MALFORMED, detail)
    named = from_transport(text, endpoint)
    if named is not None:
        return Attempt(address, named, detail)
    probed = await probe_tcp(endpoint.host, endpoint.port, deadline=deadline)
    if probed is not None:
        return Attempt(address, probed, "")
    return Attempt(address, JoinFailure.NOT_A_NODE if text else JoinFailure.TIMEOUT, detail)
