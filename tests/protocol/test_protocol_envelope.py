"""Signed envelopes: what is checked, in which order, and that nothing but a reason ever comes out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_samples import (
    CARD,
    FUZZ,
    IDENTITY,
    MANIFEST,
    MESSAGES,
    OTHER_IDENTITY,
    OTHER_SWARM_ID,
    SWARM_ID,
    completion,
    frame,
    group,
)

import resigning
from ftis_protocol import limits
from ftis_protocol.canonical import pack, raw_id, unpack
from ftis_protocol.codec import compress, encode
from ftis_protocol.envelope import KINDS, Kind, Message, open_envelope, seal
from ftis_protocol.errors import ManifestError, ProtocolError, Reason, WireError
from ftis_protocol.identity import Identity
from ftis_protocol.presence import Departure

NOW = 1_790_000_000
SEALED = seal(frame(), IDENTITY, SWARM_ID, 7, NOW)


def reason_of(data: Any, **how: Any) -> Reason:
    with pytest.raises(ProtocolError) as caught:
        open_envelope(data, **{"swarm_id": SWARM_ID} | how)
    return caught.value.reason


def resigned(identity: Identity = IDENTITY, **changes: Any) -> bytes:
    """SEALED with some fields replaced."""
    return resigning.resigned(SEALED, identity, **changes)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_is_opened_as_it_was_sealed(message: Message) -> None:
    opened = open_envelope(seal(message, IDENTITY, SWARM_ID, 7, NOW + 0.9), swarm_id=SWARM_ID)
    assert opened.message == message
    assert KINDS[opened.kind].model is type(message)
    assert (opened.sender, opened.public_key) == (IDENTITY.node_id, IDENTITY.public_key)
    assert (opened.sequence, opened.issued_at, opened.swarm_id) == (7, NOW, SWARM_ID)


def test_the_helper_signs_honestly() -> None:
    assert resigned() == SEALED


def test_the_wrapper_is_small() -> None:
    assert len(SEALED) - len(encode(frame())) <= 64 + 32 + 16 + 30


@FUZZ
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert isinstance(reason_of(data, swarm_id=None), Reason)


@FUZZ
@given(st.data())
def test_no_byte_can_be_changed_removed_or_added(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(SEALED) - 1))
    piece = data.draw(st.binary(max_size=3))
    length = data.draw(st.integers(0, 3))
    mutated = SEALED[:place] + piece + SEALED[place + length :]
    if mutated != SEALED:
        assert isinstance(reason_of(mutated, swarm_id=None), Reason)


@FUZZ
@given(st.integers(0, len(SEALED) - 1))
def test_a_cut_envelope_is_refused(length: int) -> None:
    assert reason_of(SEALED[:length]) is Reason.SCHEMA


@FUZZ
@given(st.data())
def test_well_signed_nonsense_is_refused(data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(["version", "kind", "swarm", "sequence", "issued_at", "body"]))
    value = data.draw(
        st.one_of(
            st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.binary(max_size=40), st.text(max_size=9)
        )
    )
    sealed = resigned(**{field: value})
    if sealed == SEALED:
        return
    try:
        open_envelope(sealed, swarm_id=None)
    except ProtocolError:
        return
    assert field in ("swarm", "sequence", "issued_at")


@pytest.mark.parametrize("data", [None, 7, "text", [], {}, bytearray(SEALED)])
def test_what_is_not_bytes_is_refused(data: Any) -> None:
    assert reason_of(data) is Reason.SCHEMA


def test_each_fault_has_its_reason() -> None:
    assert reason_of(b"\x00" * (limits.MAX_FRAME_BYTES + 1)) is Reason.SIZE
    assert reason_of(pack([1, 5])) is Reason.SCHEMA
    assert reason_of(resigned(version=2)) is Reason.VERSION
    assert reason_of(pack([2, "a future shape"])) is Reason.VERSION
    assert reason_of(resigned(kind=99)) is Reason.KIND
    assert reason_of(SEALED, kinds=frozenset({Kind.CARD, Kind.OFFER})) is Reason.KIND
    assert reason_of(SEALED, swarm_id=OTHER_SWARM_ID) is Reason.WRONG_SWARM
    assert reason_of(SEALED[:-1] + bytes([SEALED[-1] ^ 1])) is Reason.SIGNATURE
    assert reason_of(resigned(body=b"junk")) is Reason.SCHEMA
    assert reason_of(resigned(kind=int(Kind.CARD))) is Reason.SCHEMA
    assert reason_of(resigned(body=compress(b"\x00" * (limits.MAX_FRAME_DECOMPRESSED_BYTES + 1)))) is Reason.SIZE
    assert reason_of(resigned(sequence=-1)) is Reason.SCHEMA
    assert reason_of(resigned(swarm=b"short")) is Reason.SCHEMA


def test_the_cheapest_check_comes_first() -> None:
    everything_wrong = resigned(version=9, kind=99, swarm=raw_id(OTHER_SWARM_ID), body=b"junk")[:-1] + b"\x00"
    assert reason_of(everything_wrong) is Reason.VERSION
    assert reason_of(resigned(kind=99, swarm=raw_id(OTHER_SWARM_ID), body=b"junk")) is Reason.KIND
    assert reason_of(resigned(swarm=raw_id(OTHER_SWARM_ID), body=b"junk")) is Reason.WRONG_SWARM
    unsigned = resigned(body=b"junk")
    assert reason_of(unsigned[:-1] + bytes([unsigned[-1] ^ 1])) is Reason.SIGNATURE


def test_nobody_can_speak_for_another() -> None:
    stolen = [*unpack(SEALED)]
    stolen[3] = OTHER_IDENTITY.public_key
    assert reason_of(pack(stolen)) is Reason.SIGNATURE
    assert open_envelope(resigned(OTHER_IDENTITY), swarm_id=SWARM_ID).sender == OTHER_IDENTITY.node_id


def test_a_message_cannot_be_moved_to_another_swarm() -> None:
    moved = [*unpack(SEALED)]
    moved[2] = raw_id(OTHER_SWARM_ID)
    assert reason_of(pack(moved), swarm_id=OTHER_SWARM_ID) is Reason.SIGNATURE


@pytest.mark.parametrize("key", [b"\x00" * 32, b"\xff" * 32, b"\x01" + b"\x00" * 31])
def test_degenerate_keys_are_refused(key: bytes) -> None:
    """Points of small order, for which some libraries accept a signature of zeros."""
    weak = [*unpack(SEALED)]
    weak[3], weak[7] = key, b"\x00" * 64
    assert reason_of(pack(weak)) is Reason.SIGNATURE


def test_a_manifest_must_be_the_one_its_id_names() -> None:
    other = MANIFEST.model_copy(update={"slice_size": 65})
    forged = resigned(kind=int(Kind.MANIFEST), body=encode(other))
    with pytest.raises(ManifestError):
        open_envelope(forged, swarm_id=SWARM_ID)


def test_a_manifest_can_be_read_before_the_swarm_is_known() -> None:
    opened = open_envelope(seal(MANIFEST, IDENTITY, SWARM_ID, 1, NOW), swarm_id=None, kinds=frozenset({Kind.MANIFEST}))
    assert opened.swarm_id == SWARM_ID == opened.message.swarm_id  # type: ignore[union-attr]


def test_small_kinds_have_small_limits() -> None:
    data = resigned(kind=int(Kind.CARD), body=b"\x00" * limits.MAX_CARD_BYTES)
    assert reason_of(data) is Reason.SIZE


def test_a_message_that_only_compression_makes_small_is_not_sealed() -> None:
    long = completion("a" * limits.MAX_COMPLETION_CHARS)
    with pytest.raises(WireError, match="before compression"):
        seal(frame(*(group(*[long] * 64, index=index) for index in range(3))), IDENTITY, SWARM_ID, 1, NOW)


def test_an_honest_card_with_every_field_full_fits() -> None:
    peers = {Identity.create().node_id: next(iter(CARD.peers.values())) for _ in range(32)}
    full = CARD.model_copy(update={"peers": peers, "addresses": CARD.addresses * limits.MAX_CARD_ADDRESSES})
    assert len(seal(full, IDENTITY, SWARM_ID, 1, NOW)) < limits.MAX_CARD_BYTES


def test_sealing_under_a_word_that_is_no_swarm_id_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        seal(Departure(), IDENTITY, "my swarm", 1, NOW)


def test_a_changed_rule_changes_the_limit_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sender and receiver read the same table, so neither can drift."""
    monkeypatch.setitem(KINDS, Kind.FRAME, replace(KINDS[Kind.FRAME], max_bytes=len(SEALED) - 1))
    assert reason_of(SEALED) is Reason.SIZE
    with pytest.raises(WireError, match="too large") as caught:
        seal(frame(), IDENTITY, SWARM_ID, 7, NOW)
    assert caught.value.reason is Reason.SIZE
    assert "split a frame" in caught.value.hint
