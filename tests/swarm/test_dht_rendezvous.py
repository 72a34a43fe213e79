"""From an invite or a bare address to the rules of a swarm, over real daemons on loopback."""

from __future__ import annotations

import pytest

from ftis_node.errors import SwarmUnreachable, UsageError
from ftis_node.swarm.dht import DhtSwarm
from ftis_node.swarm.failures import JoinFailed
from ftis_node.swarm.ports import free_port
from ftis_node.swarm.rendezvous import resolve
from ftis_protocol.errors import InviteError
from ftis_protocol.identity import Identity
from ftis_protocol.invite import Invite
from swarm.builders import manifest
from swarm.dht_arena import LOOPBACK, STRANGER, DhtArena, daemons, over_the_network

pytestmark = over_the_network


async def test_an_invite_leads_to_the_manifest(arena: DhtArena):
    one = await arena.node()
    assert await resolve(Invite(one.swarm_id, one.addresses), LOOPBACK) == arena.manifest


async def test_a_bare_address_leads_to_the_only_swarm(arena: DhtArena):
    one = await arena.node()
    assert await resolve(Invite(None, one.addresses), LOOPBACK) == arena.manifest


async def test_two_swarms_behind_one_address_are_listed(arena: DhtArena):
    one = await arena.node()
    other = DhtSwarm(Identity.create(), manifest("another one"), LOOPBACK, one.addresses)
    arena.nodes.append(other)
    await other.start()
    with pytest.raises(UsageError) as caught:
        await resolve(Invite(None, one.addresses), LOOPBACK)
    assert one.swarm_id in str(caught.value)
    assert other.swarm_id in str(caught.value)
    assert "another one" in str(caught.value)
    assert await resolve(Invite(other.swarm_id, one.addresses), LOOPBACK) == other.manifest


async def test_an_unknown_swarm_is_said_to_be_unknown(arena: DhtArena):
    one = await arena.node()
    absent = manifest("absent").swarm_id
    with pytest.raises(SwarmUnreachable, match=absent):
        await resolve(Invite(absent, one.addresses), LOOPBACK)


async def test_an_address_without_a_swarm_says_so(arena: DhtArena):
    one = await arena.node()
    one._dht.transport.node.protocol.storage.clear()
    with pytest.raises(SwarmUnreachable, match="no swarm"):
        await resolve(Invite(None, one.addresses), LOOPBACK)


async def test_a_dead_address_gives_the_reason():
    address = f"/ip4/127.0.0.1/tcp/{free_port('127.0.0.1')}/p2p/{STRANGER}"
    with pytest.raises(JoinFailed, match="port closed"):
        await resolve(Invite(None, (address,)), LOOPBACK)
    with pytest.raises(InviteError):
        Invite.parse("ftis:nonsense")
    assert daemons() == set()
