"""The table of keys, enforced on single records; keys arrive hashed."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.clock import StepClock
from ftis_node.swarm.rules import RecordRules
from ftis_node.swarm.shards import allowed_counts, homes
from ftis_protocol import limits
from ftis_protocol.envelope import Message, seal
from ftis_protocol.errors import Reason
from ftis_protocol.identity import Identity
from ftis_protocol.keys import body_digest, body_key, discovery_key, manifest_key, offers_key, presence_key, shard_of
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.presence import Departure, Offer
from swarm.builders import card, frame, manifest

NOW = 1_700_000_000.5
AUTHOR = Identity.create()
OURS = manifest(shards=8)
THEIRS = manifest("theirs", shards=8)
WRONG_SHARD = min(set(range(8)) - homes(AUTHOR.node_id, 8))
SKEW = limits.MAX_CLOCK_SKEW_SECONDS


def hashed(key: str) -> bytes:
    return hashlib.sha1(key.encode()).digest()


def sealed(message: Message, swarm: SwarmManifest = OURS, *, age: float = 0.0, identity: Identity = AUTHOR) -> bytes:
    return seal(message, identity, swarm.swarm_id, 1, NOW - age)


def place(
    swarm: SwarmManifest = OURS, slot: int | None = None, node_id: str = AUTHOR.node_id, shard: int | None = None
) -> bytes:
    shard = shard_of(node_id, swarm.shard_count) if shard is None else shard
    key = presence_key(swarm.swarm_id, shard) if slot is None else offers_key(swarm.swarm_id, shard, slot)
    return hashed(key)


@pytest.fixture
def rules() -> RecordRules:
    return RecordRules(hashed, OURS, StepClock(NOW))


def reason(rules: RecordRules, key: bytes, subkey: str | None, value: bytes, expires_at: float) -> Reason | None:
    """Why it is refused; None when it is accepted."""
    before = rules.refused.copy()
    accepted = rules.accepts(key, subkey, value, expires_at)
    (counted,) = (rules.refused - before) or (None,)
    assert accepted == (counted is None)
    return counted


@pytest.mark.parametrize("message", [card(), Departure(reason="tired")])
@pytest.mark.parametrize("swarm", [OURS, THEIRS], ids=["ours", "theirs"])
def test_presence_is_kept_for_its_lifetime(rules: RecordRules, message: Message, swarm: SwarmManifest):
    data = sealed(message, swarm)
    assert reason(rules, place(swarm), AUTHOR.node_id, data, NOW + limits.CARD_LIFETIME_SECONDS) is None
    late = NOW + limits.CARD_LIFETIME_SECONDS + SKEW + 2
    assert reason(rules, place(swarm), AUTHOR.node_id, data, late) is Reason.EXPIRED


def test_the_lifetime_counts_from_the_signed_date(rules: RecordRules):
    data = sealed(card(), age=50)
    assert reason(rules, place(), AUTHOR.node_id, data, NOW + 10) is None
    assert reason(rules, place(), AUTHOR.node_id, data, NOW + 30) is Reason.EXPIRED
    assert reason(rules, place(), AUTHOR.node_id, sealed(card(), age=-60), NOW + 10) is Reason.FUTURE


def test_a_record_has_one_place(rules: RecordRules):
    data, until = sealed(card()), NOW + 30
    mallory = Identity.create()
    assert reason(rules, place(shard=WRONG_SHARD), AUTHOR.node_id, data, until) is Reason.KIND
    assert reason(rules, place(THEIRS), AUTHOR.node_id, data, until) is Reason.KIND
    assert reason(rules, place(slot=7), AUTHOR.node_id, data, until) is Reason.KIND
    assert reason(rules, place(), mallory.node_id, data, until) is Reason.SIGNATURE
    assert reason(rules, place(), None, data, until) is Reason.KIND
    assert reason(rules, hashed(discovery_key()), AUTHOR.node_id, data, until) is Reason.KIND


@pytest.mark.parametrize("swarm", [OURS, THEIRS], ids=["ours", "theirs"])
def test_a_node_may_file_itself_under_any_power_of_two(rules: RecordRules, swarm: SwarmManifest):
    for count in allowed_counts(8):
        shard = shard_of(AUTHOR.node_id, count)
        assert reason(rules, place(swarm, shard=shard), AUTHOR.node_id, sealed(card(), swarm), NOW + 30) is None


def test_offers_belong_to_their_slot(rules: RecordRules):
    data, until = sealed(Offer(slot=7, frames=())), NOW + limits.OFFER_LIFETIME_SECONDS
    assert reason(rules, place(slot=7), AUTHOR.node_id, data, until) is None
    assert reason(rules, place(slot=8), AUTHOR.node_id, data, until) is Reason.KIND
    assert reason(rules, place(), AUTHOR.node_id, data, until) is Reason.KIND
    assert reason(rules, place(slot=7), AUTHOR.node_id, data, until + SKEW + 2) is Reason.EXPIRED


def test_bodies_are_filed_under_their_hash(rules: RecordRules):
    data, until = sealed(frame(1)), NOW + limits.BODY_LIFETIME_SECONDS
    key = hashed(body_key(body_digest(data)))
    assert reason(rules, key, None, data, until) is None
    assert reason(rules, key, None, data, until + SKEW + 1) is Reason.EXPIRED
    assert reason(rules, key, None, data[:-1], until) is not None
    assert reason(rules, key, AUTHOR.node_id, data, until) is Reason.KIND
    big = bytes(limits.MAX_FRAME_BYTES + 1)
    assert reason(rules, hashed(body_key(body_digest(big))), None, big, until) is Reason.SIZE


def test_manifests_are_filed_under_their_id(rules: RecordRules):
    data, until = sealed(OURS), NOW + limits.MANIFEST_LIFETIME_SECONDS
    key = hashed(manifest_key(OURS.swarm_id))
    assert reason(rules, key, None, data, until) is None
    assert reason(rules, hashed(discovery_key()), OURS.swarm_id, data, until) is None
    assert reason(rules, hashed(discovery_key()), THEIRS.swarm_id, data, until) is Reason.WRONG_SWARM
    assert reason(rules, hashed(manifest_key(THEIRS.swarm_id)), None, data, until) is Reason.DIGEST
    assert reason(rules, key, None, data, until + SKEW + 1) is Reason.EXPIRED


@pytest.mark.parametrize("expires_at", [float("nan"), float("inf"), float("-inf"), None, "soon"])
def test_an_expiry_is_a_number(rules: RecordRules, expires_at):
    assert reason(rules, place(), AUTHOR.node_id, sealed(card()), expires_at) is Reason.SCHEMA


def test_what_was_judged_before_is_judged_the_same(rules: RecordRules):
    data = bytearray(sealed(card()))
    good = bytes(data)
    data[-1] ^= 1
    for _ in range(3):
        assert reason(rules, place(), AUTHOR.node_id, good, NOW + 30) is None
        assert reason(rules, place(), AUTHOR.node_id, bytes(data), NOW + 30) is Reason.SIGNATURE
        assert reason(rules, place(shard=WRONG_SHARD), AUTHOR.node_id, good, NOW + 30) is Reason.KIND
        assert reason(rules, place(), Identity.create().node_id, good, NOW + 30) is Reason.SIGNATURE


@given(
    key=st.sampled_from([place(), place(slot=1), hashed(discovery_key()), hashed("x")]),
    subkey=st.one_of(st.none(), st.text(max_size=30)),
    value=st.one_of(
        st.binary(max_size=200),
        st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=4)).map(
            lambda cut: sealed(card())[: cut[0]] + cut[1] + sealed(card())[cut[0] + len(cut[1]) :]
        ),
    ),
)
def test_no_bytes_of_a_stranger_raise(key: bytes, subkey: str | None, value: bytes):
    rules = RecordRules(hashed, OURS, StepClock(NOW))
    assert rules.accepts(key, subkey, value, NOW + 30) == (rules.refused.total() == 0)
