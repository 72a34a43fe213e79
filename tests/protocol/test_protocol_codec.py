"""Bytes to messages and back: exact, canonical, and cheap to refuse."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from protocol_samples import CARD, FUZZ, MESSAGES, completion, frame, frames, group, plain_values

from ftis_protocol import limits
from ftis_protocol.canonical import pack
from ftis_protocol.codec import canonical_bytes, compress, decode, encode
from ftis_protocol.columns import pack_floats, pack_ints
from ftis_protocol.errors import ProtocolError, Reason
from ftis_protocol.fields import Record
from ftis_protocol.frame_layout import FIELD_TYPES, flatten
from ftis_protocol.presence import Departure, NodeCard
from ftis_protocol.rollout import Completion, Evidence, Frame

BOUNDS = (limits.MAX_FRAME_BYTES, limits.MAX_FRAME_DECOMPRESSED_BYTES)


def reason_of(data: bytes, model: type[Record] = Frame, bounds: tuple[int, int] = BOUNDS) -> Reason:
    with pytest.raises(ProtocolError) as caught:
        decode(data, model, *bounds)
    return caught.value.reason


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_equal(message: Record) -> None:
    assert decode(encode(message), type(message), *BOUNDS) == message


@FUZZ
@given(frames())
def test_every_frame_comes_back_equal(sample: Frame) -> None:
    data = encode(sample)
    again = decode(data, Frame, *BOUNDS)
    assert again == sample
    assert encode(again) == data


@FUZZ
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_a_reason(data: bytes) -> None:
    for candidate in (data, compress(data or b"\x00")):
        for model in (Frame, NodeCard):
            try:
                decode(candidate, model, *BOUNDS)
            except ProtocolError:
                continue
            pytest.fail("random bytes became a message")


@FUZZ
@given(st.data())
def test_a_frame_with_any_field_replaced_is_refused_or_valid(data: st.DataObject) -> None:
    fields = flatten(frame(group(), group(index=4)))
    place = data.draw(st.integers(0, len(fields) - 1))
    fields[place] = data.draw(st.one_of(plain_values, st.binary(max_size=12)))
    with contextlib.suppress(ProtocolError):
        decode(compress(msgpack.packb(fields)), Frame, *BOUNDS)


@FUZZ
@given(st.dictionaries(st.sampled_from([*NodeCard.model_fields, "odd"]), plain_values, max_size=4))
def test_a_card_with_any_fields_replaced_is_refused_or_valid(changes: dict[str, Any]) -> None:
    plain = CARD.model_dump() | changes
    with contextlib.suppress(ProtocolError):
        decode(compress(pack(plain)), NodeCard, *BOUNDS)


def test_too_many_bytes_are_refused_before_they_are_looked_at() -> None:
    assert reason_of(b"\x00" * 101, bounds=(100, 100)) is Reason.SIZE


def test_the_announced_size_is_checked_before_anything_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\x00" * 200_000_000)
    assert len(bomb) < limits.MAX_FRAME_BYTES
    tracemalloc.start()
    reason = reason_of(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason is Reason.SIZE
    assert peak < 1_000_000


@pytest.mark.parametrize("model", [Frame, NodeCard])
def test_hostile_bytes_within_the_limit_stay_cheap(model: type[Record]) -> None:
    """Pairs of bytes that each would be a nested one-item array: the dearest thing msgpack can say."""
    raw = b"\xdd" + struct.pack(">I", 100_000) + b"\x91\xc0" * 100_000
    tracemalloc.start()
    reason = reason_of(compress(raw), model)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason is Reason.SCHEMA
    assert peak < 3_000_000


def test_a_zstd_frame_without_a_content_size_is_refused() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    data = stream.compress(canonical_bytes(frame())) + stream.flush()
    assert reason_of(data) is Reason.SCHEMA


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data + b"\x00",
        lambda data: data + data,
        lambda data: b"",
        lambda data: struct.pack("<II", 0x184D2A50, 4) + b"skip",
        lambda data: zstandard.ZstdCompressor().compress(b""),
    ],
    ids=["cut", "tail", "two frames", "nothing", "skippable", "empty content"],
)
def test_damaged_zstd_is_refused(spoil: Any) -> None:
    assert reason_of(spoil(encode(frame()))) is Reason.SCHEMA


def test_a_wrong_announcement_is_refused() -> None:
    data = bytearray(zstandard.ZstdCompressor(level=1).compress(b"ab" * 100))
    size_at = data.index(200)  # single-segment header: one byte of content size
    for lie in (199, 201):
        data[size_at] = lie
        assert reason_of(bytes(data)) is Reason.SCHEMA


def _replaced(place: int, value: Any) -> bytes:
    fields = flatten(frame(group(), group(index=4)))
    fields[place] = value
    return compress(msgpack.packb(fields))


RAW = canonical_bytes(frame())
MALFORMED = {
    "deep nesting": b"\x91" * 900 + b"\xc0",
    "a nested list": msgpack.packb([*flatten(frame())[:-1], [1]]),
    "a field too few": msgpack.packb(flatten(frame())[:-1]),
    "a field too many": msgpack.packb([*flatten(frame()), b""]),
    "a map": msgpack.packb({"slot": 1}),
    "bytes after the end": RAW + b"\x00",
    "a longer form of an integer": RAW.replace(msgpack.packb(59_000_001), b"\xcf" + struct.pack(">Q", 59_000_001), 1),
    "an extension type": msgpack.packb([msgpack.ExtType(5, b"x")] * len(FIELD_TYPES)),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_frames_are_refused(raw: bytes) -> None:
    assert reason_of(compress(raw)) is Reason.SCHEMA


FIELD = {
    "trainable": 4,
    "names": 5,
    "count": 6,
    "versions": 7,
    "task": 8,
    "tier": 12,
    "size": 13,
    "finish": 14,
    "reward": 15,
}


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (FIELD["trainable"], "half", Reason.SCHEMA),
        (FIELD["names"], "arithmetic\nspare", Reason.SCHEMA),
        (FIELD["names"], "", Reason.SCHEMA),
        (FIELD["count"], 0, Reason.SIZE),
        (FIELD["count"], -1, Reason.SIZE),
        (FIELD["count"], 2**63, Reason.SIZE),
        (FIELD["count"], True, Reason.SCHEMA),
        (FIELD["versions"], pack_floats([0.5]), Reason.SCHEMA),
        (FIELD["task"], pack_ints([0, 1]), Reason.SCHEMA),
        (FIELD["task"], pack_ints([0]), Reason.SCHEMA),
        (FIELD["task"], b"", Reason.SCHEMA),
        (FIELD["task"], b"2\x00\x00\x00\x00", Reason.SCHEMA),
        (FIELD["tier"], pack_ints([0, 3]), Reason.SCHEMA),
        (FIELD["tier"], pack_ints([0, 1]), Reason.SCHEMA),
        (FIELD["size"], pack_ints([4, 0]), Reason.GROUP_SIZE),
        (FIELD["size"], pack_ints([3, 1]), Reason.GROUP_SIZE),
        (FIELD["size"], pack_ints([2, 200]), Reason.GROUP_SIZE),
        (FIELD["size"], pack_ints([2, 3]), Reason.SCHEMA),
        (FIELD["finish"], pack_ints([0, 1, 2, 3]), Reason.SCHEMA),
        (FIELD["reward"], b"h" + struct.pack("<4e", 1, 0, float("nan"), 0), Reason.SCHEMA),
        (FIELD["reward"], b"d" + struct.pack("<4d", 1, 0, float("inf"), 0.1), Reason.SCHEMA),
        (FIELD["reward"], b"b\xf5", Reason.SCHEMA),
        (FIELD["reward"], b"d" + struct.pack("<4d", 1, 0, 1, 0), Reason.SCHEMA),
        (FIELD["reward"] + 1, pack_ints([2, 2, 2, 1]), Reason.SCHEMA),
        (FIELD["reward"] + 2, b"1213\xff\xfe13", Reason.SCHEMA),
    ],
)
def test_a_wrong_column_is_refused(place: int, value: Any, reason: Reason) -> None:
    assert reason_of(_replaced(place, value)) is reason


def test_token_columns_must_fit_each_other() -> None:
    members = [completion(token_ids=(1, 2, 3), logprobs=(-0.5, -1.0, -0.25))] * 2
    fields = flatten(frame(group(*members, evidence=Evidence.TOKEN)))
    for place, column in (
        (-3, pack_ints([3, 2])),
        (-3, pack_ints([2**32, 0])),
        (-2, pack_ints([1, 2, 3, 1, 2])),
        (-2, pack_ints([1, 2, 3, 1, 2, 2**32])),
        (-1, pack_floats([-0.5] * 5)),
        (-1, b"f" + struct.pack("<6f", *[-0.5] * 6)),
        (-1, b"h" + struct.pack("<6e", *[float("nan")] * 6)),
        (-4, pack_floats([-1.0])),
    ):
        wrong = [*fields]
        wrong[place] = column
        assert reason_of(compress(msgpack.packb(wrong))) in (Reason.SCHEMA, Reason.SIZE)


def _map(*pairs: tuple[Any, Any]) -> bytes:
    return bytes([0x80 + len(pairs)]) + b"".join(msgpack.packb(key) + msgpack.packb(value) for key, value in pairs)


@pytest.mark.parametrize(
    "raw",
    [
        _map(("reason", "a"), ("reason", "b")),
        _map(("reason", "a"), ("more", 1)),
        _map((1, "a")),
        _map((b"reason", "a")),
        _map(("reason", b"a")),
        _map(("reason", "a")) + b"\xc0",
        _map(("reason", "a\nb")),
        b"\x81\xa6reason\xa1\xff",
        b"\x81\xa6reason\xa3\xed\xa0\x80",
        b"\xc0",
        b"\x91" * 5000,
        b"",
    ],
)
def test_malformed_maps_are_refused(raw: bytes) -> None:
    assert reason_of(compress(raw), Departure) is Reason.SCHEMA


def test_text_only_frames_cost_less_than_1_7_bytes_a_token() -> None:
    """8 groups of 8 texts of about 110 tokens (4 characters each), cut at random from English that has nothing in
    common: dearer than real groups, whose members all talk about the same question."""
    from pydoc_data.topics import topics

    prose = " ".join(" ".join(topics[key].split()) for key in sorted(topics))
    draw = random.Random(3)
    starts = [draw.randrange(len(prose) - 440) for _ in range(64)]
    members: list[Completion] = [completion(prose[at : at + 440], float(draw.random() < 0.5)) for at in starts]
    sample = frame(*(group(*members[at : at + 8], index=at // 8) for at in range(0, 64, 8)))
    assert len(encode(sample)) + 140 < 1.7 * 64 * 110
