"""Parts of a swarm that are well connected, each with itself alone, find together again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ftis_node.swarm import dht
from ftis_protocol.identity import Identity
from swarm.builders import card
from swarm.dht_arena import LOOPBACK, DhtArena, over_the_network, until
from swarm.test_dht_faults import crash

pytestmark = over_the_network


async def test_an_entrance_that_forgot_everybody_is_dialled_again(arena: DhtArena, tmp_path, monkeypatch):
    monkeypatch.setattr(dht, "WATCH_SECONDS", 0.2)
    monkeypatch.setattr(dht, "REUNITE_SECONDS", 1.0)
    identity = Identity.create()
    (tmp_path / "entrance").mkdir()
    options = replace(LOOPBACK, state_dir=tmp_path / "entrance", may_start_alone=True)
    entrance = await arena.node(identity, options)
    others = [await arena.node(addresses=entrance.addresses) for _ in range(2)]
    guards = [asyncio.create_task(node.watch()) for node in others]
    await crash(entrance)
    arena.nodes.remove(entrance)
    (tmp_path / "entrance" / "peers.json").unlink(missing_ok=True)

    async def forgotten() -> bool:
        for node in others:
            await node.announce(card())
        return all(node.health.connections == 1 for node in others)

    await until(forgotten, 60.0)
    back = await arena.node(identity, options, addresses=())
    assert back.health.connections == 0
    for node in others:
        await node.announce(card())

    async def met() -> bool:
        return len(await back.peers()) == 2

    await until(met)
    for guard in guards:
        guard.cancel()
