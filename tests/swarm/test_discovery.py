"""From a swarm id, or from nothing but a board, to the rules of a swarm."""

from __future__ import annotations

import pytest

from ftis_node.clock import StepClock
from ftis_node.errors import SwarmUnreachable, UsageError
from ftis_node.swarm.board import Write
from ftis_node.swarm.discovery import find_manifest
from ftis_node.swarm.memory import MemoryBoard, MemoryNetwork, MemorySwarm
from ftis_protocol import limits
from ftis_protocol.errors import ProtocolError
from ftis_protocol.identity import Identity
from ftis_protocol.keys import discovery_key, manifest_key
from swarm.builders import card, manifest

SWARM = manifest("first")


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork(StepClock(1_700_000_000.0))


@pytest.fixture
def board(network: MemoryNetwork) -> MemoryBoard:
    return MemoryBoard(network, "guest")


async def member(network: MemoryNetwork, swarm=SWARM) -> MemorySwarm:
    node = MemorySwarm(network, Identity.create(), swarm)
    await node.start()
    return node


async def test_a_member_makes_its_swarm_findable(network: MemoryNetwork, board: MemoryBoard):
    await member(network)
    assert await find_manifest(board, SWARM.swarm_id) == SWARM
    assert await find_manifest(board, None) == SWARM


async def test_several_swarms_are_listed_and_none_is_chosen(network: MemoryNetwork, board: MemoryBoard):
    others = [manifest(f"swarm {number}") for number in range(9)]
    for swarm in (SWARM, *others):
        await member(network, swarm)
    with pytest.raises(UsageError, match="10 swarms") as caught:
        await find_manifest(board, None)
    assert "and 2 more" in str(caught.value)
    assert "ftis:" in caught.value.hint
    assert await find_manifest(board, others[3].swarm_id) == others[3]


async def test_nothing_there_is_not_a_fault_of_the_invite(network: MemoryNetwork, board: MemoryBoard):
    with pytest.raises(SwarmUnreachable, match="no swarm"):
        await find_manifest(board, None)
    with pytest.raises(SwarmUnreachable, match=SWARM.swarm_id):
        await find_manifest(board, SWARM.swarm_id)
    network.cut("guest")
    with pytest.raises(SwarmUnreachable, match="stopped answering"):
        await find_manifest(board, SWARM.swarm_id)


async def test_rules_of_another_swarm_are_refused(network: MemoryNetwork, board: MemoryBoard):
    other = await member(network, manifest("other"))
    data = network.value(manifest_key(other.swarm_id))
    expires = network.clock.now() + 60
    network.place(Write(manifest_key(SWARM.swarm_id), data, expires))
    network.place(Write(discovery_key(), data, expires, subkey=SWARM.swarm_id))
    with pytest.raises(ProtocolError):
        await find_manifest(board, SWARM.swarm_id)
    assert await find_manifest(board, None) == other.manifest


async def test_members_keep_the_rules_findable_after_the_founder_left(network: MemoryNetwork, board: MemoryBoard):
    founder, heir = await member(network), await member(network)
    await founder.close()
    for _ in range(2 * limits.MANIFEST_LIFETIME_SECONDS // 3600):
        network.clock.advance(3600)
        await heir.announce(card())
    assert await find_manifest(board, None) == SWARM


async def test_a_dead_swarm_is_forgotten(network: MemoryNetwork, board: MemoryBoard):
    await member(network)
    network.clock.advance(limits.MANIFEST_LIFETIME_SECONDS + 1)
    with pytest.raises(SwarmUnreachable):
        await find_manifest(board, None)
