"""The one loop of a seed: be there, keep the manifest findable, remember who came by."""

from __future__ import annotations

import asyncio

from ftis_node import __version__
from ftis_node.lifecycle import NodeState, together, unless_stopped
from ftis_node.store import Store
from ftis_node.swarm.base import Swarm
from ftis_protocol.limits import CARD_RENEW_SECONDS
from ftis_protocol.presence import NodeCard


class SeedLoop:
    """Announces a card without a model until told to stop."""

    def __init__(self, swarm: Swarm, store: Store, name: str) -> None:
        self._swarm = swarm
        self._store = store
        self._name = name

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; an error of the transport's guard comes out."""
        try:
            await unless_stopped(stop, together(self._swarm.watch(), self._announcing()))
        finally:
            await self._swarm.depart("stopped by its operator")
            self._store.set_facts(state=NodeState.STOPPED)

    async def _announcing(self) -> None:
        while True:
            await self._once()
            await asyncio.sleep(CARD_RENEW_SECONDS)

    async def _once(self) -> None:
        card = NodeCard(
            name=self._name,
            role="seed",
            state=NodeState.WORKING,
            addresses=self._swarm.addresses,
            software=f"ftis-node {__version__}",
        )
        await self._swarm.announce(card)
        peers = await self._swarm.peers()
        for peer in peers:
            self._store.peer_seen(peer.node_id, name=peer.card.name, model=peer.card.model)
        await self._swarm.renew()
        self._store.set_facts(state=NodeState.WORKING, peers=len(peers))
