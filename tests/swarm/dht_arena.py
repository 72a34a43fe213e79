"""Real nodes for tests: daemons on loopback that are all gone when a test ends."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from ftis_node.clock import WallClock
from ftis_node.swarm.board import BoardSilent, Write
from ftis_node.swarm.dht import DhtSwarm
from ftis_node.swarm.settings import DhtOptions
from ftis_protocol.identity import Identity
from swarm.behaviour import Arena
from swarm.builders import manifest

over_the_network = [
    pytest.mark.swarm,
    # hivemind looks up its daemon with a function that Python deprecated
    pytest.mark.filterwarnings("ignore:path is deprecated. Use files:DeprecationWarning"),
]

STRANGER = "12D3KooWR5PnYTAiXprb7zUYWsPq4VcVxAyJ9qiFTZuw1JHKS3Pp"
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
