"""A seed: there for others, without a model, until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

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


async def test_a_guard_that_breaks_is_not_passed_over(
    letters: Callable[..., SwarmManifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise OSError("the daemon is gone")

    async with Lab(tmp_path, letters()) as lab:
        swarm = MemorySwarm(lab.network, Identity.create(), lab.manifest)
        monkeypatch.setattr(swarm, "watch", broken)
        store = Store.open(tmp_path / "seed.db")
        with pytest.raises(OSError, match="the daemon is gone"):
            await asyncio.wait_for(SeedLoop(swarm, store, "lighthouse").run(asyncio.Event()), 60)
        assert store.fact("state") == "stopped"
        store.close()
