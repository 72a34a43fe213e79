"""The one loop of an observer: look who is there and what is on offer, and write it down. Publishes nothing, not even a
card: whoever only watches changes no count of anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ftis_node import metrics
from ftis_node.clock import WallClock
from ftis_node.lifecycle import together, unless_stopped
from ftis_node.loops.census import Census
from ftis_node.states import NodeState
from ftis_node.store import Store
from ftis_node.store_records import Fact
from ftis_node.swarm.base import PeerCard, Swarm

LOOK_SECONDS = 3.0
#: looks between two samples of what is on offer
OFFERS_EVERY = 5
OFFERS_LIMIT = 4_096
#: arrivals and departures told one by one in a look; more are told as a number
TOLD = 10


class ObserveLoop:
    """Looks until told to stop. The step of an observer counts its looks, over all its lives."""

    def __init__(self, swarm: Swarm, store: Store) -> None:
        self._swarm = swarm
        self._store = store
        self._census = Census(store, WallClock())
        self._known: dict[str, str] | None = None
        self._looks = int(store.fact(Fact.STEP, 0))

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; an error of the transport's guard comes out."""
        try:
            await unless_stopped(stop, together(self._swarm.watch(), self._looking()))
        finally:
            self._store.set_facts(**{Fact.STATE: NodeState.STOPPED})

    async def _looking(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """One look."""
        self._looks += 1
        peers = await self._swarm.peers()
        self._census.note(peers, self._looks)
        self._tell(peers)
        if self._looks % OFFERS_EVERY == 1:
            await self._count_offers()
        facts = {Fact.STATE: NodeState.WORKING, Fact.PEERS: len(peers), Fact.STEP: self._looks}
        self._store.set_facts(**facts, **{Fact.BEAT_AT: WallClock().now()})

    async def _count_offers(self) -> None:
        groups = [group for offer in await self._swarm.offers(limit=OFFERS_LIMIT) for group in offer.frame.groups]
        values = {metrics.OFFERED_GROUPS: len(groups), metrics.OFFERED_TOKENS: sum(group.tokens for group in groups)}
        self._store.metric(self._looks, values)

    def _tell(self, peers: Sequence[PeerCard]) -> None:
        """Who came and who left since the last look, as events; the first look of a life tells only how many."""
        present = {peer.node_id: peer.card.name for peer in peers}
        before, self._known = self._known, present
        if before is None:
            self._store.event("look", f"{len(present)} others are there")
            return
        for kind, some in (("came", present.keys() - before.keys()), ("left", before.keys() - present.keys())):
            for node_id in sorted(some)[:TOLD]:
                self._store.event(kind, f"{present.get(node_id) or before[node_id]} ({node_id})")
            if len(some) > TOLD:
                self._store.event(kind, f"and {len(some) - TOLD} more")
