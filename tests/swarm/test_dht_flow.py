"""Limits between real daemons: what is too much is refused, counted and told to the sender."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ftis_node.swarm import dht_board, flow, storage
from ftis_node.swarm.board import Write
from ftis_node.swarm.dht import DhtSwarm
from ftis_node.swarm.flow import MEBIBYTE, Limit, Rate
from ftis_node.swarm.hive import DHTID, DHTProtocol
from ftis_protocol import limits
from ftis_protocol.errors import ProtocolError, Reason
from ftis_protocol.identity import Identity
from ftis_protocol.keys import body_key
from swarm.builders import card, frame
from swarm.dht_arena import LOOPBACK, DhtArena, over_the_network

pytestmark = over_the_network


def peer_of(node: DhtSwarm):
    return node._dht.transport.node.protocol.p2p.peer_id


def protocol_of(node: DhtSwarm) -> DHTProtocol:
    return node._dht.transport.node.protocol


async def send(sender: DhtSwarm, receiver: DhtSwarm, *values: bytes) -> list[bool] | None:
    """Plain records without any of the sender's care, so that only the receiver's gate decides."""
    keys = [DHTID.generate(source=n.to_bytes(4, "big")) for n in range(len(values))]
    until = [sender._clock.now() + 30] * len(keys)
    answer = await protocol_of(sender).call_store(peer_of(receiver), keys, list(values), until, [None] * len(keys))
    return None if answer is None else list(answer)


@pytest.mark.parametrize(
    ("name", "rate", "limit"),
    [
        ("PEER_RECORDS", Rate(0.001, 4), Limit.PEER_RECORDS),
        ("PEER_BYTES", Rate(0.001, 4000), Limit.PEER_BYTES),
        ("TOTAL_RECORDS", Rate(0.001, 4), Limit.TOTAL_RECORDS),
        ("TOTAL_BYTES", Rate(0.001, 4000), Limit.TOTAL_BYTES),
    ],
)
async def test_a_flood_is_refused_before_it_is_looked_at(
    arena: DhtArena, monkeypatch: pytest.MonkeyPatch, name: str, rate: Rate, limit: Limit
) -> None:
    monkeypatch.setattr(flow, name, rate)
    victim, flooder = await arena.node(), await arena.node()
    victim._limits = victim._dht._limits
    before = victim.refused.total()
    assert await send(flooder, victim, *[bytes(1000)] * 9) == [False] * 9
    assert victim.limited[limit] == 1
    assert victim.refused.total() == before, "not one signature was checked"


async def test_a_peer_that_asks_without_end_gets_no_more_answers(
    arena: DhtArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "PEER_REQUESTS", Rate(0.001, 40))
    victim, asker, other = await arena.node(), await arena.node(), await arena.node()
    key = DHTID.generate(source=b"anything")
    answers = [await protocol_of(asker).call_find(peer_of(victim), [key]) for _ in range(45)]
    assert answers[0] is not None
    assert answers[-1] is None
    assert victim.limited[Limit.PEER_REQUESTS] > 0
    assert await protocol_of(other).call_find(peer_of(victim), [key]) is not None


async def test_the_upload_cap_covers_answers(arena: DhtArena) -> None:
    options = replace(LOOPBACK, upload_kibibytes_per_second=1.0)
    holder, reader = await arena.node(options=options), await arena.node()
    published = await holder.publish(frame(arena.slot()))
    key = DHTID.generate(source=body_key(published.digest))
    found = await protocol_of(reader).call_find(peer_of(holder), [key])
    assert found[key][0] is not None
    assert holder._limits.upload.takes(holder._limits.upload._tokens - 10)
    found = await protocol_of(reader).call_find(peer_of(holder), [key])
    assert found is not None
    assert found[key][0] is None
    assert found[key][1] or len(arena.nodes) == 2, "it still says who else might have it"
    assert holder.limited[Limit.UPLOAD] == 1


async def test_the_upload_cap_delays_own_frames_and_says_so(arena: DhtArena) -> None:
    options = replace(LOOPBACK, upload_kibibytes_per_second=2.0)
    node = await arena.node(options=options)
    node._limits.upload.takes(node._limits.upload._tokens)
    assert (await node.publish(frame(arena.slot()))).stored, "a moment later"
    assert node.limited[Limit.UPLOAD] >= 1
    slow = await arena.node(options=replace(LOOPBACK, upload_kibibytes_per_second=0.01, call_seconds=1.0))
    slow._limits.upload.takes(slow._limits.upload._tokens)
    assert not (await slow.publish(frame(arena.slot()))).stored
    assert slow.health.failures > 0


async def test_what_no_message_could_carry_never_leaves(arena: DhtArena) -> None:
    one, two = await arena.node(), await arena.node()
    large = Write(body_key(bytes(32)), bytes(4_300_000), arena.clock.now() + 30)
    with pytest.raises(ProtocolError) as caught:
        await one._link.put("body", large)
    assert caught.value.reason is Reason.SIZE
    assert str(limits.MAX_FRAME_BYTES) in str(caught.value)
    assert await asyncio.wait_for(two.fetch(bytes(32)), 12) is None


async def test_a_full_dictionary_refuses_and_the_sender_learns_it(
    arena: DhtArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 entries of 8 KB are above what one message carries: those that fit can be read, the others are told."""
    monkeypatch.setattr(flow, "PEER_RECORDS", Rate(1000, 1000))
    monkeypatch.setattr(storage.RuleValidator, "validate", lambda self, record: True)
    holder, sender = await arena.node(), await arena.node()
    monkeypatch.setattr(dht_board, "REPLICAS", 1)
    key, expires = arena.presence_key(holder.node_id), arena.clock.now() + 50
    stored = []
    for n in range(600):
        entry = Write(key, n.to_bytes(2, "big") * 4096, expires, f"node {n}")
        stored.append(await sender._dht.put(entry))
    assert 200 < sum(stored) < 600
    reader = await arena.node()
    found = (await reader._dht.dictionaries([key]))[key]
    assert set(found) >= {f"node {n}" for n, taken in enumerate(stored) if taken}
    assert sum(node.limited[Limit.DICTIONARY] for node in (holder, sender)) >= stored.count(False)


async def test_memory_for_others_is_bounded_and_told(arena: DhtArena) -> None:
    holder = await arena.node(options=replace(LOOPBACK, storage_mebibytes=1))
    author = await arena.node()
    holder._storage._max_bytes = 2000
    for index in range(12):
        await author.publish(frame(arena.slot(), index, f"{index} " * 20))
    assert holder.limited[Limit.MEMORY] > 0
    assert sum(len(item.value) for _, item in holder._storage.items() if isinstance(item.value, bytes)) <= 2000
    assert MEBIBYTE > 2000


async def test_an_offer_that_everybody_lost_is_stored_again(arena: DhtArena, monkeypatch: pytest.MonkeyPatch) -> None:
    from ftis_node.swarm import publisher

    monkeypatch.setattr(publisher, "RECHECK_SECONDS", 0.0)
    one, two = await arena.node(), await arena.node()
    published = await one.publish(frame(arena.slot()))
    key = DHTID.generate(source=arena.offers_key(one.node_id, arena.slot()))
    assert await one.renew() == 0
    for node in (one, two):
        del node._storage.data[key], node._storage.key_to_heap[key]
    assert await two.offers(slots=2) == ()
    assert await one.renew() == 1
    assert [offer.frame.digest for offer in await two.offers(slots=2)] == [published.digest]


async def test_the_size_of_the_network_is_known(arena: DhtArena) -> None:
    nodes = [await arena.node() for _ in range(4)]
    assert {round(node._dht.size) for node in nodes} == {4}
    await nodes[0].announce(card())


async def test_a_client_publishes_through_others_and_keeps_nothing(arena: DhtArena) -> None:
    one, two = await arena.node(), await arena.node()
    client = await arena.node(Identity.create(), replace(LOOPBACK, client=True))
    assert client.health.reach == "client"
    assert one.health.reach == "listening"
    assert client.addresses == ()
    assert await client.announce(card("behind a NAT"))
    published = await client.publish(frame(arena.slot(), 0, "from inside"))
    assert published.stored
    await one.publish(frame(arena.slot(), 1, "from outside"))
    assert {peer.card.name for peer in await two.peers()} == {"behind a NAT"}
    assert published.digest in {offer.frame.digest for offer in await two.offers(slots=2)}
    assert await two.fetch(published.digest) is not None
    (seen,) = await client.offers(slots=2)
    assert await client.fetch(seen.frame.digest) is not None
    assert len(client._storage) == 0
    client_id = client._dht.transport.node.node_id
    assert all(client_id not in protocol_of(node).routing_table for node in (one, two))


async def test_a_client_without_anybody_is_told_by_silence(arena: DhtArena) -> None:
    client = await arena.node(Identity.create(), replace(LOOPBACK, client=True, may_start_alone=True))
    assert not await client.announce(card())
