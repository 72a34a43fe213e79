"""A seed: there for others, without a model, until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.loops.seeding import SeedLoop
from ftis_node.store import Store
from ftis_node.swarm.memory import MemorySwarm
from ftis_protocol.identity import Identity
from ftis_protocol.manifest import SwarmManifest


async def test_a_seed_is_there_until_it_is_told_to_stop(
    letters: Callable[..., SwarmManifest], plan: Callable[..., LabPlan], tmp_path: Path
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        swarm = MemorySwarm(lab.network, Identity.create(), lab.manifest)
        await swarm.start()
        store, stop = Store.open(tmp_path / "seed.db"), asyncio.Event()
        running = asyncio.ensure_future(SeedLoop(swarm, store, "lighthouse").run(stop))
        while store.fact("state") != "working":
            await asyncio.sleep(0)
        (peer,) = await node.rooms.swarm.peers()
        assert (peer.card.name, peer.card.role, peer.card.model) == ("lighthouse", "seed", "")
        assert store.fact("peers") == 1
        assert [row.node_id for row in store.peers()] == [node.rooms.swarm.node_id]
        stop.set()
        await asyncio.wait_for(running, 60)
        assert await node.rooms.swarm.peers() == ()
        assert store.fact("state") == "stopped"
        store.close()
        await swarm.close()
