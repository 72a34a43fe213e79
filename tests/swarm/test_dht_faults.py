"""Real daemons on loopback that die, lie about who they are, or stand in the way."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ftis_node.errors import SwarmUnreachable, UsageError
from ftis_node.swarm import dht, joining
from ftis_node.swarm.addresses import parse_endpoint
from ftis_node.swarm.dht import DhtSwarm
from ftis_node.swarm.failures import ClockWrong, IdentityInUse, JoinFailed, JoinFailure, PortTaken
from ftis_node.swarm.ports import free_port
from ftis_node.swarm.settings import DhtOptions
from ftis_protocol.identity import Identity
from swarm.builders import card, frame
from swarm.dht_arena import LOOPBACK, STRANGER, DhtArena, daemons, over_the_network, until

pytestmark = over_the_network


def lived_in(path: Path, **more) -> DhtOptions:
    path.mkdir(exist_ok=True)
    return replace(LOOPBACK, state_dir=path, **more)


async def crash(node: DhtSwarm) -> None:
    """What kill -9 of the whole node leaves behind: a dead daemon and nobody who said good-bye."""
    child = node._dht.transport._p2p._child
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    await node.close()


async def kill_daemon(node: DhtSwarm) -> None:
    child = node._dht.transport._p2p._child
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()


async def join_error(arena: DhtArena, *addresses: str, options: DhtOptions = LOOPBACK) -> JoinFailed:
    began = time.monotonic()
    with pytest.raises(SwarmUnreachable) as caught:
        await arena.node(addresses=addresses, options=options)
    assert time.monotonic() - began < 8.0
    assert isinstance(caught.value, JoinFailed)
    assert caught.value.hint
    return caught.value


class TestJoining:
    async def test_a_closed_port_is_named(self, arena: DhtArena):
        error = await join_error(arena, f"/ip4/127.0.0.1/tcp/{free_port('127.0.0.1')}/p2p/{STRANGER}")
        assert [attempt.failure for attempt in error.attempts] == [JoinFailure.PORT_CLOSED]

    async def test_a_wrong_peer_id_is_named(self, arena: DhtArena):
        one = await arena.node()
        endpoint = parse_endpoint(one.addresses[0])
        error = await join_error(arena, f"{endpoint.transport}/p2p/{STRANGER}")
        assert [attempt.failure for attempt in error.attempts] == [JoinFailure.PEER_ID]
        assert "fresh invite" in error.hint

    async def test_a_port_of_something_else_is_named(self, arena: DhtArena):
        async def greet(reader, writer):
            writer.write(b"220 mail.example ESMTP\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            error = await join_error(arena, f"/ip4/127.0.0.1/tcp/{port}/p2p/{STRANGER}")
        assert [attempt.failure for attempt in error.attempts] == [JoinFailure.NOT_A_NODE]

    async def test_a_host_that_accepts_and_says_nothing_times_out(self, arena: DhtArena):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{STRANGER}"
            error = await join_error(arena, address, options=replace(LOOPBACK, connect_seconds=2.0))
        assert [attempt.failure for attempt in error.attempts] == [JoinFailure.TIMEOUT]

    async def test_one_living_address_is_enough(self, arena: DhtArena):
        one = await arena.node()
        dead = f"/ip4/127.0.0.1/tcp/{free_port('127.0.0.1')}/p2p/{STRANGER}"
        two = await arena.node(addresses=(dead, *one.addresses))
        assert two.health.connections == 1

    async def test_a_node_may_start_alone_and_joins_by_itself(self, arena: DhtArena, tmp_path, monkeypatch):
        monkeypatch.setattr(dht, "WATCH_SECONDS", 0.2)
        options = lived_in(tmp_path / "founder")
        founder = await arena.node(Identity.create(), options)
        (address,) = founder.addresses
        await crash(founder)
        lonely = await arena.node(addresses=(address,), options=replace(LOOPBACK, may_start_alone=True))
        assert lonely.health.connections == 0
        assert await lonely.announce(card())
        guard = asyncio.create_task(lonely.watch())
        back = await arena.node(Identity.create(), options, addresses=())
        assert back.addresses == (address,)
        await until(_connected(lonely))
        guard.cancel()

    async def test_an_interrupted_start_leaves_no_daemon(self, arena: DhtArena):
        one = await arena.node()
        for tenths in range(1, 10):
            node = DhtSwarm(Identity.create(), arena.manifest, LOOPBACK, one.addresses)
            starting = asyncio.create_task(node.start())
            await asyncio.wait({starting}, timeout=0.07 * tenths)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await node.close()
            assert len(daemons()) == 1

    async def test_a_wrong_clock_is_named_with_its_offset(self, arena: DhtArena, monkeypatch):
        await arena.node()
        honest = joining.Transport.clock_offset

        async def late(self, peer):
            return await honest(self, peer) - 3600.0

        monkeypatch.setattr(joining.Transport, "clock_offset", late)
        with pytest.raises(ClockWrong, match=r"3600\.\d s behind") as caught:
            await arena.node()
        assert caught.value.offset == pytest.approx(-3600, abs=1)

    async def test_equal_clocks_measure_as_equal(self, arena: DhtArena):
        one, two = await arena.node(), await arena.node()
        offset = await two._dht.transport.clock_offset(one._dht.transport.peer_id)
        assert abs(offset) < 0.5


def _connected(node: DhtSwarm):
    async def connected() -> bool:
        return node.health.connections > 0

    return connected


class TestComingBack:
    async def test_address_and_identity_survive_ten_quick_restarts(self, arena: DhtArena, tmp_path):
        witness = await arena.node()
        identity, options = Identity.create(), lived_in(tmp_path / "state")
        seen = set()
        for version in range(10):
            node = await arena.node(identity, options, addresses=witness.addresses)
            assert await node.announce(card(version=version))
            seen.add(node.addresses)
            peers = await witness.peers()
            assert [(peer.node_id, peer.card.policy_version) for peer in peers] == [(identity.node_id, version)]
            await crash(node)
        assert len(seen) == 1

    async def test_a_taken_port_is_refused(self, arena: DhtArena):
        with socket.create_server(("127.0.0.1", 0)) as owner:
            port = owner.getsockname()[1]
            with pytest.raises(PortTaken, match=str(port)):
                await arena.node(options=replace(LOOPBACK, port=port))

    async def test_a_remembered_port_that_was_lost_is_replaced(self, arena: DhtArena, tmp_path):
        options = lived_in(tmp_path / "state")
        first = await arena.node(options=options)
        port = parse_endpoint(first.addresses[0]).port
        await first.close()
        with socket.create_server(("127.0.0.1", port)):
            second = await arena.node(options=options, addresses=())
        assert second.addresses != first.addresses

    async def test_a_damaged_transport_key_is_named(self, arena: DhtArena, tmp_path):
        options = lived_in(tmp_path / "state")
        for content in (b"", b"\x08\x00\x12\x03abc", os.urandom(900)):
            options.key_path.unlink(missing_ok=True)
            options.key_path.write_bytes(content)
            with pytest.raises(UsageError, match=r"p2p\.key"):
                await arena.node(options=options)

    async def test_peers_of_the_last_run_are_a_way_back(self, arena: DhtArena, tmp_path):
        entrance, other = await arena.node(), await arena.node()
        identity, options = Identity.create(), lived_in(tmp_path / "state")
        node = await arena.node(identity, options, addresses=entrance.addresses)
        await other.announce(card("other"))
        assert len(await node.peers()) == 1
        await node.close()
        await crash(entrance)
        again = await arena.node(identity, options, addresses=entrance.addresses)
        assert [peer.card.name for peer in await again.peers()] == ["other"]

    async def test_the_same_state_on_a_second_host_is_refused(self, arena: DhtArena, tmp_path):
        witness = await arena.node()
        identity, options = Identity.create(), lived_in(tmp_path / "one")
        first = await arena.node(identity, options)
        copy = lived_in(tmp_path / "two")
        copy.key_path.write_bytes(options.key_path.read_bytes())
        with pytest.raises(IdentityInUse) as caught:
            await arena.node(identity, copy, addresses=witness.addresses)
        assert first._dht.transport.peer_id in str(caught.value)

    async def test_the_same_key_behind_another_peer_id_is_refused_while_its_holder_lives(self, arena: DhtArena):
        witness = await arena.node()
        identity = Identity.create()
        first = await arena.node(identity)
        await first.announce(card())
        with pytest.raises(IdentityInUse, match=first.addresses[0]):
            await arena.node(identity, addresses=witness.addresses)
        await crash(first)
        second = await arena.node(identity, addresses=witness.addresses)
        assert second.node_id == first.node_id

    async def test_a_killed_daemon_is_noticed_and_replaced(self, arena: DhtArena, tmp_path, monkeypatch):
        monkeypatch.setattr(dht, "WATCH_SECONDS", 0.2)
        one, two = await arena.node(), await arena.node(options=lived_in(tmp_path / "two"))
        await one.announce(card("one"))
        published = await two.publish(frame(arena.slot()))
        address = two.addresses
        guard = asyncio.create_task(two.watch())
        began = time.monotonic()
        await kill_daemon(two)
        assert await asyncio.wait_for(two.fetch(bytes(32)), 12) is None

        async def restarted() -> bool:
            return two.health.restarts == 1 and two.health.connections > 0

        await until(restarted)
        assert time.monotonic() - began < 12
        assert two.addresses == address
        assert [peer.card.name for peer in await two.peers()] == ["one"]
        assert await two.announce(card("two"))
        assert await one.fetch(published.digest) is not None
        kept = two._dht.transport.node.protocol.storage
        assert kept is two._storage
        assert len(kept) > 0
        guard.cancel()
        assert len(daemons()) == 2

    async def test_a_restart_without_anybody_left_waits_alone(self, arena: DhtArena):
        one, two = await arena.node(), await arena.node()
        await crash(one)
        await kill_daemon(two)
        await two.restart()
        assert two.health.connections == 0
        assert await two.announce(card())
