"""The swarm over real daemons on loopback: the common behaviour, and what only a network can do wrong."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ftis_node.clock import WallClock
from ftis_node.swarm import publisher
from ftis_node.swarm.board import BoardSilent, Write
from ftis_node.swarm.dht import DhtSwarm
from ftis_node.swarm.settings import DhtOptions
from ftis_protocol.identity import Identity
from swarm.behaviour import Arena, SwarmBehaviour
from swarm.builders import card, frame, manifest

pytestmark = [
    pytest.mark.swarm,
    # hivemind looks up its daemon with a function that Python deprecated
    pytest.mark.filterwarnings("ignore:path is deprecated. Use files:DeprecationWarning"),
]

LOOPBACK = DhtOptions(host="127.0.0.1", connect_seconds=15.0)


class DhtArena(Arena):
    def __init__(self) -> None:
        self.clock = WallClock()
        self.manifest = manifest()
        self.nodes: list[DhtSwarm] = []
        self._stranger: DhtSwarm | None = None

    @property
    def entrance(self) -> tuple[str, ...]:
        return tuple(address for node in self.nodes for address in node.addresses)

    async def node(self, identity: Identity | None = None, options: DhtOptions = LOOPBACK, **more) -> DhtSwarm:
        node = DhtSwarm(identity or Identity.create(), self.manifest, options, more.get("addresses", self.entrance))
        await node.start()
        self.nodes.append(node)
        return node

    async def store_as_stranger(self, write: Write) -> bool:
        """From a node without rules of its own, so that only the others can refuse."""
        if self._stranger is None:
            self._stranger = await self.node()
            protocol = self._stranger._dht.transport.node.protocol
            protocol.record_validator.validate = lambda record: True
            protocol.storage.store = lambda *args, **kwargs: False  # its own copy would not count
        try:
            return await self._stranger._dht.put(write)
        except BoardSilent:
            return False

    async def close(self) -> None:
        await asyncio.gather(*(node.close() for node in self.nodes))


def daemons() -> set[int]:
    """Living p2pd children of this process."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)
            except OSError:
                continue
            if "(p2pd" in fields[0] and fields[1].split()[0] != "Z" and int(fields[1].split()[1]) == os.getpid():
                found.add(int(entry.name))
    return found


async def until(condition, deadline: float = 15.0):
    """Poll an async condition; its first true value."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if value := await condition():
            return value
        await asyncio.sleep(0.1)
    raise AssertionError("it did not happen in time")


@pytest.fixture
async def arena() -> AsyncIterator[DhtArena]:
    arena = DhtArena()
    yield arena
    await arena.close()
    assert daemons() == set()


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
