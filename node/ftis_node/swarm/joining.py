"""Reaching a swarm through addresses: all at once, with a reason for each that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ftis_node.swarm.addresses import peer_id_of
from ftis_node.swarm.failures import Attempt, ClockWrong, diagnose
from ftis_node.swarm.transport import Transport
from ftis_protocol.limits import MAX_CLOCK_SKEW_SECONDS

MAX_DIALS = 32


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
    text = await transport.dial(address, deadline=deadline)
    return address, None if text is None else await diagnose(address, text)


async def check_clock(transport: Transport, reached: Sequence[str]) -> None:
    """Compare clocks with the nodes at `reached`. Raises `ClockWrong` when the middle one differs by too much."""
    peers = [peer for peer in map(peer_id_of, reached) if peer is not None]
    offsets = [o for o in await asyncio.gather(*map(transport.clock_offset, peers)) if o is not None]
    if offsets and abs(offset := median(offsets)) > MAX_CLOCK_SKEW_SECONDS:
        raise ClockWrong(offset, MAX_CLOCK_SKEW_SECONDS)
