"""What the swarm room counted, carried over into the store's metrics: bytes by kind, refusals, limits, silence."""

from __future__ import annotations

from collections import Counter

from ftis_node import metrics
from ftis_node.store import Store
from ftis_node.swarm.base import Swarm

#: kinds whose bytes are not counted where they arise (frames and published offers are)
READ_KINDS = ("card", "offer", "manifest")
WRITTEN_KINDS = ("card", "manifest")


class SwarmLedger:
    """Remembers what it has seen of a swarm's counters, which start at zero with the process, and stores the rest."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._booked: Counter[str] = Counter()

    def book(self, swarm: Swarm) -> None:
        """Store what came on top since the last time."""
        totals = Counter({metrics.SWARM_FAILURES: swarm.health.failures})
        for reason, count in swarm.refused.items():
            totals[metrics.series(metrics.RECORDS_REFUSED, reason.value)] = count
        for limit, count in swarm.limited.items():
            totals[metrics.series(metrics.FLOW_LIMITED, limit.value)] = count
        for kind in READ_KINDS:
            totals[metrics.series(metrics.BYTES_IN, kind)] = swarm.traffic.read[kind]
        for kind in WRITTEN_KINDS:
            totals[metrics.series(metrics.BYTES_OUT, kind)] = swarm.traffic.written[kind]
        for name, total in totals.items():
            if total > self._booked[name]:
                self._store.count(name, total - self._booked[name])
                self._booked[name] = total
