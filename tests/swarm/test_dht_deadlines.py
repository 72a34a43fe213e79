"""Nothing waits without an end: daemons that are alive and say nothing, and a look at the source."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import ftis_node.swarm
from ftis_node.swarm.settings import DhtOptions
from ftis_node.swarm.transport import Transport
from swarm.builders import card, frame
from swarm.dht_arena import LOOPBACK, DhtArena, over_the_network

pytestmark = over_the_network

CALL_SECONDS = 1.0
#: a frame takes a body and an offer, an announcement the manifest and the card
CALLS = 4

# What belongs to hivemind or its daemon; a wait for one of these needs a deadline around it.
FOREIGN = (
    "DHTNode.create", ".find_nearest_nodes", ".call_ping", ".call_store", ".call_find", ".node.get", ".rpc_ping",
    "p2p.shutdown", ".protocol.shutdown", "get_visible_maddrs", "connect(", "identify(", ".install(",
    "remove_p2p_handlers", "add_p2p_handlers", "._nearest(", "._store_at(", "._merged(",
)  # fmt: skip
GUARDS = ("asyncio.timeout(", "self._asking(")
# These run inside a guard of their callers, which this test looks at as well.
INNER = {"_nearest", "_store_at", "_merged", "install", "rpc_ping", "_ask", "connect", "identify"}


def unguarded() -> Iterator[str]:
    for path in sorted(Path(ftis_node.swarm.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if isinstance(function, ast.AsyncFunctionDef) and function.name not in INNER:
                yield from _unguarded_awaits(path.name, function, function.body, False)


def _unguarded_awaits(file: str, function: ast.AsyncFunctionDef, body: list[ast.stmt], guarded: bool) -> Iterator[str]:
    for statement in body:
        inner = guarded
        if isinstance(statement, ast.AsyncWith):
            inner = guarded or any(g in ast.unparse(item) for item in statement.items for g in GUARDS)
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        handlers = [handler.body for handler in getattr(statement, "handlers", [])]
        if any(blocks) or handlers:
            for block in (*blocks, *handlers):
                yield from _unguarded_awaits(file, function, block, inner)
        elif not inner:
            for node in ast.walk(statement):
                if isinstance(node, ast.Await) and any(name in ast.unparse(node) for name in FOREIGN):
                    yield f"{file}:{node.lineno} in {function.name}: {ast.unparse(node)}"


def test_every_wait_for_the_network_has_a_deadline() -> None:
    assert list(unguarded()) == []


def test_the_look_at_the_source_sees() -> None:
    naked = ast.parse("async def f():\n    if x:\n        await self.node.get(key)\n").body[0]
    assert len(list(_unguarded_awaits("x", naked, naked.body, False))) == 1
    dressed = ast.parse("async def f():\n    async with asyncio.timeout(3):\n        await self.node.get(key)\n").body[
        0
    ]
    assert list(_unguarded_awaits("x", dressed, dressed.body, False)) == []


@pytest.mark.parametrize("frozen", ["own daemon", "all others"])
async def test_frozen_daemons_stop_nobody(arena: DhtArena, frozen: str) -> None:
    options = replace(LOOPBACK, call_seconds=CALL_SECONDS)
    nodes = [await arena.node(options=options) for _ in range(3)]
    node = nodes[0]
    await asyncio.gather(*(each.announce(card()) for each in nodes))
    published = await nodes[1].publish(frame(arena.slot()))
    stopped = [node] if frozen == "own daemon" else nodes[1:]
    children = [each._dht.transport._p2p._child.pid for each in stopped]
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    try:
        for call in (
            lambda: node.announce(card("late")),
            node.peers,
            node.offers,
            lambda: node.fetch(bytes(32)),
            lambda: node.publish(frame(arena.slot(), 7)),
            node.renew,
            lambda: node.depart("cold"),
        ):
            await asyncio.wait_for(call(), CALLS * CALL_SECONDS + 10)
        assert node.health.failures > 0
        await asyncio.wait_for(node.close(), 30)
    finally:
        for pid in children:
            with suppress(ProcessLookupError):  # closing does not wait for a daemon that says nothing
                os.kill(pid, signal.SIGCONT)
    assert published.stored


def test_relay_and_reachability_checks_are_off_on_loopback_only() -> None:
    home = Transport._arguments(LOOPBACK, 4001)
    assert not any(home[name] for name in ("nat_port_map", "auto_nat", "use_relay", "use_auto_relay"))
    world = Transport._arguments(DhtOptions(host="0.0.0.0"), 4001)
    assert all(world[name] for name in ("nat_port_map", "auto_nat", "use_relay", "use_auto_relay"))
    alone = Transport._arguments(DhtOptions(host="0.0.0.0", relay=False), 4001)
    assert not any(alone[name] for name in ("use_relay", "use_auto_relay"))
    client = Transport._arguments(DhtOptions(host="0.0.0.0", client=True), None)
    assert client["use_relay"]
    assert client["dht_mode"] == "client"
    assert not client["nat_port_map"]
