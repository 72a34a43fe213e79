"""The swarm over real daemons on loopback: the common behaviour, and what only a network can do."""

from __future__ import annotations

import asyncio

import pytest

from ftis_node.swarm import publisher
from ftis_node.swarm.board import Write
from ftis_protocol.identity import Identity
from swarm.behaviour import SwarmBehaviour
from swarm.builders import card, frame
from swarm.dht_arena import DhtArena, over_the_network, until

pytestmark = over_the_network


class TestDhtSwarm(SwarmBehaviour):
    async def test_eight_nodes_see_each_other_and_all_frames(self, arena: DhtArena):
        nodes = [await arena.node() for _ in range(8)]
        await asyncio.gather(*(node.announce(card(f"n{place}")) for place, node in enumerate(nodes)))
        published = await asyncio.gather(*(n.publish(frame(arena.slot(), 0, f"by {n.node_id}")) for n in nodes))
        digests = {record.digest for record in published}
        for node, own in zip(nodes, published, strict=True):
            assert len(await node.peers()) == 7
            seen = {offer.frame.digest for offer in await node.offers(slots=2)}
            assert seen == digests - {own.digest}
            for digest in digests:
                assert await node.fetch(digest) is not None

    async def test_records_expire(self, arena: DhtArena):
        await arena.node()
        reader = await arena.node()
        author = Identity.create()
        assert not await arena.store_as_stranger(Write("warm-up", b"", arena.clock.now() + 30))
        write = Write(
            arena.presence_key(author.node_id), arena.seal(card(), author), arena.clock.now() + 1.5, author.node_id
        )
        assert await arena.store_as_stranger(write)

        async def gone() -> bool:
            return not (await reader._dht.dictionaries([write.key])).get(write.key)

        assert not await gone()
        await until(gone)

    async def test_a_frame_lost_by_everybody_comes_back(self, arena: DhtArena, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(publisher, "RECHECK_SECONDS", 0.0)
        one, two = await arena.node(), await arena.node()
        published = await one.publish(frame(arena.slot()))
        assert await one.renew() == 0
        two._storage.clear()
        assert await one.renew() == 1
        one._storage.clear()
        assert await two.fetch(published.digest) is not None

    async def test_a_storing_node_counts_what_it_refused(self, arena: DhtArena):
        one = await arena.node()
        assert not await arena.store_as_stranger(Write("my-app/metrics", b"hello", arena.clock.now() + 30))
        assert one.refused.total() == 1
