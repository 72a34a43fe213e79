"""The part of the hash table in this process: what it lets in and how large it may become."""

from __future__ import annotations

import time

import msgpack
import pytest

from ftis_node.clock import WallClock
from ftis_node.swarm.hive import DHTID, DHTRecord, DictionaryDHTValue
from ftis_node.swarm.rules import RecordRules
from ftis_node.swarm.storage import MAX_DICTIONARY_BYTES, BoundedStorage, RuleValidator, hash_key, unwrap, wrap
from ftis_protocol.envelope import seal
from ftis_protocol.errors import Reason
from ftis_protocol.identity import Identity
from ftis_protocol.keys import body_digest, body_key, presence_key
from swarm.builders import card, frame, manifest

pytestmark = pytest.mark.swarm  # importing hivemind takes seconds

KEY, OTHER = DHTID.generate("one"), DHTID.generate("two")


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 1_000_000])
def test_bytes_survive_wrapping(size: int):
    assert unwrap(wrap(bytes(size))) == bytes(size)
    assert unwrap(msgpack.packb(bytes(size))) == bytes(size)
    assert unwrap(wrap(bytes(size)) + b"x") is None
    assert unwrap(wrap(bytes(size))[:-1]) is None


@pytest.mark.parametrize("value", ["text", 7, None, [b"x"], {b"a": 1}, msgpack.ExtType(0x50, b"x"), 1.5])
def test_anything_but_bytes_is_refused(value: object):
    assert unwrap(msgpack.packb(value)) is None
    validator = RuleValidator(RecordRules(hash_key, None, WallClock()))
    packed = msgpack.packb(value)
    key = hash_key(body_key(body_digest(b"")))
    assert not validator.validate(DHTRecord(key, msgpack.packb(None), packed, time.time() + 30))
    assert validator.rules.refused == {Reason.SCHEMA: 1}


def test_the_validator_knows_subkeys():
    swarm, author = manifest(), Identity.create()
    validator = RuleValidator(RecordRules(hash_key, swarm, WallClock()))
    now = time.time()
    value = wrap(seal(card(), author, swarm.swarm_id, 1, now))
    key = hash_key(presence_key(swarm.swarm_id, 0))
    assert validator.validate(DHTRecord(key, msgpack.packb(author.node_id), value, now + 30))
    for subkey in (None, 7, b"bytes", "x" * 26, "x" * 40, ["a"], "é"):
        assert not validator.validate(DHTRecord(key, msgpack.packb(subkey), value, now + 30))
    for raw in (b"", b"\xba", b"\xc1", b"\xa1\xff"):
        assert not validator.validate(DHTRecord(key, raw, value, now + 30))
    body = seal(frame(1), author, swarm.swarm_id, 2, now)
    place = hash_key(body_key(body_digest(body)))
    assert validator.validate(DHTRecord(place, msgpack.packb(None), wrap(body), now + 30))


def test_a_full_storage_refuses_and_keeps_what_it_has():
    storage = BoundedStorage(max_bytes=10_000)
    later = time.time() + 60
    accepted = [storage.store(DHTID.generate(n), bytes(1000), later) for n in range(30)]
    assert accepted == [True] * 10 + [False] * 20
    assert all(storage.get(DHTID.generate(n)) is not None for n in range(10))
    assert not storage.store(KEY, bytes(1000), later, subkey="a")


def test_room_comes_back_when_records_expire():
    storage = BoundedStorage(max_bytes=10_000)
    soon = time.time() + 0.05
    for n in range(10):
        storage.store(DHTID.generate(n), bytes(1000), soon)
    while time.time() < soon + 0.01:
        pass
    assert storage.store(KEY, bytes(1000), time.time() + 60)


def test_a_dictionary_is_bounded_and_its_members_may_renew():
    storage = BoundedStorage()
    entry, later = bytes(MAX_DICTIONARY_BYTES // 10), time.time() + 60
    assert all(storage.store(KEY, entry, later, subkey=f"n{n}") for n in range(10))
    assert not storage.store(KEY, entry, later, subkey="late")
    assert storage.store(KEY, entry, later + 1, subkey="n3")
    assert not storage.store(KEY, entry, later, subkey="n3")
    assert storage.store(OTHER, entry, later, subkey="late")
    value, expiration = storage.get(KEY)
    assert expiration == later + 1
    assert len(value) == 10


def test_a_search_does_not_write_into_the_storage():
    storage = BoundedStorage()
    later = time.time() + 60
    storage.store(KEY, b"mine", later, subkey="a")
    copy = storage.get(KEY).value
    copy.store("b", b"theirs", later)
    assert isinstance(copy, DictionaryDHTValue)
    assert len(storage.get(KEY).value) == 1
    assert storage.get(OTHER) is None


def test_plain_values_are_replaced_by_later_ones_only():
    storage = BoundedStorage()
    later = time.time() + 60
    assert storage.store(KEY, b"first", later)
    assert not storage.store(KEY, b"same time", later)
    assert storage.store(KEY, b"second", later + 1)
    assert storage.get(KEY).value == b"second"
    assert not storage.store(OTHER, b"past", time.time() - 1)
