"""Who is there: the newest card of each peer, until it expires or the peer says good-bye."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ftis_node.swarm.base import PeerCard
from ftis_node.swarm.flow import Limit
from ftis_protocol.limits import CARD_LIFETIME_SECONDS, MAX_CLOCK_SKEW_SECONDS
from ftis_protocol.presence import Departure, NodeCard

# Whoever makes keys by the thousand fills this list and no more.
MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Sighting:
    message: NodeCard | Departure
    issued_at: float
    sequence: int


class Roster:
    """Cards by node id. Storing nodes lag behind each other, so an older card than the known one changes nothing."""

    def __init__(self, limited: Counter[Limit]) -> None:
        self._limited = limited
        self._seen: dict[str, _Sighting] = {}

    def see(self, node_id: str, message: NodeCard | Departure, sequence: int, issued_at: float) -> None:
        """Take note of a checked card or departure; times in Unix seconds."""
        known = self._seen.get(node_id)
        if known is None and len(self._seen) >= MAX_REMEMBERED:
            self._limited[Limit.ROSTER] += 1
            return
        if known is None or sequence > known.sequence:
            self._seen[node_id] = _Sighting(message, issued_at, sequence)

    def living(self, now: float) -> tuple[PeerCard, ...]:
        """Cards that have not expired at `now`, by node id. A departure is kept as long as a card would be, so that a
        straggling older card does not bring its node back."""
        patience = CARD_LIFETIME_SECONDS + MAX_CLOCK_SKEW_SECONDS
        self._seen = {node: seen for node, seen in self._seen.items() if now < seen.issued_at + patience}
        return tuple(_cards(sorted(self._seen.items()), now))


def _cards(seen: Iterable[tuple[str, _Sighting]], now: float) -> Iterable[PeerCard]:
    for node_id, sighting in seen:
        if isinstance(sighting.message, NodeCard):
            age = max(0.0, now - sighting.issued_at)
            yield PeerCard(node_id, sighting.message, sighting.issued_at, sighting.sequence, age)
