"""Reaching a swarm through addresses: all at once, with a reason for each that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ftis_node.swarm.addresses import peer_id_of
from ftis_node.swarm.failures import Attempt, ClockWrong, JoinFailure, diagnose
from ftis_node.swarm.transport import DIAL_SECONDS, Transport
from ftis_protocol.limits import MAX_CLOCK_SKEW_SECONDS

MAX_DIALS = 32
_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Reached:
    """Which addresses answered and why the others did not."""

    addresses: tuple[str, ...]
    attempts: tuple[Attempt, ...]


async def reach(transport: Transport, addresses: Sequence[str], *, deadline: float) -> Reached:
    """Dial the first MAX_DIALS of `addresses`, own ones left out; at most about `deadline` seconds."""
    foreign = [address for address in dict.fromkeys(addresses) if peer_id_of(address) != transport.peer_id]
    outcomes = await asyncio.gather(*(_try(transport, address, deadline) for address in foreign[:MAX_DIALS]))
    reached = tuple(address for address, attempt in outcomes if attempt is None)
    if reached:
        await transport.settle()
    return Reached(reached, tuple(attempt for _, attempt in outcomes if attempt is not None))


async def _try(transport: Transport, address: str, deadline: float) -> tuple[str, Attempt | None]:
    """Dial until it works, fails for good, or time is up. Two nodes that dial each other at the same moment can block
    each other's handshake, and the transport refuses to dial again for some seconds after a failure."""
    end = time.monotonic() + deadline
    first: Attempt | None = None
    while True:
        text = await transport.dial(address, deadline=min(DIAL_SECONDS, end - time.monotonic()))
        if text is None:
            return address, None
        attempt = await diagnose(address, text)
        first = first or attempt
        if attempt.failure is not JoinFailure.TIMEOUT or end - time.monotonic() < 2 * _AGAIN_SECONDS:
            return address, first
        await asyncio.sleep(_AGAIN_SECONDS)


async def check_clock(transport: Transport, reached: Sequence[str]) -> None:
    """Compare clocks with the nodes at `reached`. Raises `ClockWrong` when the middle one differs by too much."""
    peers = [peer for peer in map(peer_id_of, reached) if peer is not None]
    offsets = [o for o in await asyncio.gather(*map(transport.clock_offset, peers)) if o is not None]
    if offsets and abs(offset := median(offsets)) > MAX_CLOCK_SKEW_SECONDS:
        raise ClockWrong(offset, MAX_CLOCK_SKEW_SECONDS)
