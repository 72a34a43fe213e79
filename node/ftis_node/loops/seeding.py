"""The one loop of a seed: be there, keep the manifest findable, remember who came by."""

from __future__ import annotations

import asyncio

from ftis_node import __version__
from ftis_node.clock import WallClock
from ftis_node.lifecycle import together, unless_stopped
from ftis_node.loops.census import Census
from ftis_node.loops.ledger import SwarmLedger
from ftis_node.loops.requests import RequestDesk
from ftis_node.states import NodeState, StateMachine
from ftis_node.store import Store
from ftis_node.store_cards import note_own_card
from ftis_node.supervision import RULES, Parts
from ftis_node.swarm.base import Swarm
from ftis_protocol.limits import CARD_RENEW_SECONDS
from ftis_protocol.presence import NodeCard

WATCH_SECONDS = 1.0


class SeedLoop:
    """Announces a card without a model until told to stop."""

    def __init__(self, swarm: Swarm, store: Store, name: str) -> None:
        self._swarm = swarm
        self._store = store
        self._name = name
        self._states = StateMachine(store, WallClock())
        self._parts = Parts(store, WallClock(), {"dht": RULES["dht"]})
        self._ledger = SwarmLedger(store)
        self._census = Census(store, WallClock(), swarm.node_id)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; an error of the transport's guard comes out."""
        desk = RequestDesk(self._store, self._states, stop, lambda _: None)
        try:
            desk.begin()
            self._states.enter(NodeState.JOINING)
            work = together(self._swarm.watch(), self._announcing(), self._overseeing(desk))
            await unless_stopped(stop, work)
        finally:
            desk.close()
            self._states.enter(NodeState.DRAINING)
            await self._swarm.depart("stopped by its operator")
            self._states.enter(NodeState.STOPPED)

    async def _overseeing(self, desk: RequestDesk) -> None:
        while True:
            desk.serve()
            self._parts.publish()
            await asyncio.sleep(WATCH_SECONDS)

    async def _announcing(self) -> None:
        while True:
            with self._parts.doing("dht", "meeting the swarm"):
                await self._once()
            if self._states.state is NodeState.JOINING:
                self._states.enter(NodeState.WORKING, "serving as a meeting place")
            await asyncio.sleep(CARD_RENEW_SECONDS)

    async def _once(self) -> None:
        card = NodeCard(
            name=self._name,
            role="seed",
            state=self._states.state,
            addresses=self._swarm.addresses,
            software=f"ftis-node {__version__}",
        )
        await self._swarm.announce(card)
        note_own_card(self._store, self._swarm.node_id, card)
        peers = await self._swarm.peers()
        self._census.note(peers, 0)
        for peer in peers:
            self._store.peer_seen(peer.node_id, name=peer.card.name, model=peer.card.model)
        await self._swarm.renew()
        self._ledger.book(self._swarm)
        self._store.set_facts(peers=len(peers))
