"""Frames that are compressed with a dictionary: exact, small, and refused with a reason before they cost anything."""

from __future__ import annotations

import contextlib
import lzma
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_samples import FUZZ, IDENTITY, MANIFEST, completion, frame, frames, group

from ftis_protocol import dictionaries, limits
from ftis_protocol.canonical import pack
from ftis_protocol.codec import decode, encode
from ftis_protocol.columns import half, pack_floats, pack_ints, single
from ftis_protocol.dictionaries import DICTIONARIES, TextDictionary, newest_dictionary, text_dictionary
from ftis_protocol.envelope import open_envelope, seal
from ftis_protocol.errors import ManifestError, ProtocolError, Reason
from ftis_protocol.frame_layout import flatten
from ftis_protocol.packing import pack_frame, unpack_frame
from ftis_protocol.rollout import Frame
from ftis_protocol.words import WordList

BOUNDS = (limits.MAX_FRAME_BYTES, limits.MAX_FRAME_DECOMPRESSED_BYTES)
SMALL = TextDictionary.of_text(b"The answer is 12.\xffFirst, add the two numbers.\xff" * 3)
OTHER = TextDictionary.of_text(b"another text")
DATA = Path(dictionaries.__file__).parent / "data"


def read(data: bytes, dictionary: TextDictionary | None = SMALL) -> Frame:
    return decode(data, Frame, *BOUNDS, dictionary)


def reason_of(data: bytes, dictionary: TextDictionary | None = SMALL) -> Reason:
    with pytest.raises(ProtocolError) as caught:
        read(data, dictionary)
    return caught.value.reason


def body(content: bytes, size: int | None = None, coded: bytes | None = None) -> bytes:
    """A packed body around any content; `size` and `coded` replace what belongs to it."""
    true_size, true_code = SMALL.compress(content)
    told = (true_size if size is None else size).to_bytes(4, "little")
    return b"\x01" + SMALL.tag + told + (true_code if coded is None else coded)


@FUZZ
@given(frames())
def test_every_frame_comes_back_equal(sample: Frame) -> None:
    assert read(encode(sample, SMALL)) == sample
    assert unpack_frame(pack_frame(flatten(sample))) == flatten(sample)


def test_the_shipped_dictionary_makes_known_words_nearly_free() -> None:
    shipped = text_dictionary(newest_dictionary())
    assert shipped is not None
    words = ("To solve this problem, we need to find the number of", "The answer is 12.", "The answer is 15.")
    sample = frame(*(group(*map(completion, words), index=place) for place in range(8)))
    assert len(encode(sample, shipped)) < 0.8 * len(encode(sample))
    assert read(encode(sample, shipped), shipped) == sample


@pytest.mark.parametrize("digest", DICTIONARIES)
def test_every_shipped_dictionary_is_whole_and_of_a_deliberate_size(digest: str) -> None:
    found = text_dictionary(digest)
    assert found is not None
    assert found.digest == digest
    assert len(found.head) == (DATA / f"{digest}.lzma").stat().st_size <= 112 * 1024


def test_no_dictionary_lies_around_unlisted() -> None:
    assert {path.stem for path in DATA.glob("*.lzma")} == set(DICTIONARIES)


def test_a_node_without_the_dictionary_says_so_and_what_to_do() -> None:
    with pytest.raises(ManifestError, match="0123456789abcdef" * 2) as caught:
        text_dictionary("0123456789abcdef" * 2)
    assert "Install the version" in caught.value.hint
    assert text_dictionary("") is None


def test_frames_without_a_dictionary_are_read_everywhere() -> None:
    for dictionary in (None, SMALL):
        assert read(encode(frame()), dictionary) == frame()


def test_a_dictionary_that_the_swarm_does_not_name_has_its_own_reason() -> None:
    packed = encode(frame(), SMALL)
    assert reason_of(packed, None) is Reason.DICTIONARY
    assert reason_of(packed, OTHER) is Reason.DICTIONARY


def test_a_manifest_without_a_dictionary_keeps_its_id() -> None:
    """Made before manifests knew the field."""
    assert "dictionary" not in MANIFEST.model_dump()
    named = MANIFEST.model_copy(update={"dictionary": SMALL.digest})
    assert named.swarm_id != MANIFEST.swarm_id
    assert decode(encode(named), type(named), *BOUNDS) == named
    with_empty = pack(MANIFEST.model_dump() | {"dictionary": ""})
    with pytest.raises(ProtocolError, match="canonical"):
        decode(dictionaries_zstd(with_empty), type(MANIFEST), *BOUNDS)


def dictionaries_zstd(raw: bytes) -> bytes:
    from ftis_protocol.codec import compress

    return compress(raw)


def test_an_envelope_travels_with_the_dictionary_of_its_swarm() -> None:
    named = MANIFEST.model_copy(update={"dictionary": SMALL.digest})
    sealed = seal(frame(), IDENTITY, named.swarm_id, 1, 1_790_000_000, SMALL)
    assert open_envelope(sealed, swarm_id=named.swarm_id, dictionary=SMALL).message == frame()
    with pytest.raises(ProtocolError) as caught:
        open_envelope(sealed, swarm_id=named.swarm_id)
    assert caught.value.reason is Reason.DICTIONARY


def test_a_frame_too_large_for_the_dictionary_travels_without() -> None:
    long = completion("ab" * (limits.MAX_COMPLETION_CHARS // 2))
    large = frame(*(group(*[long] * 9, index=index) for index in range(2)))
    assert len(pack_frame(flatten(large))) > limits.MAX_PACKED_FRAME_BYTES
    data = encode(large, SMALL)
    assert data == encode(large)
    assert read(data) == large


def test_a_bomb_is_refused_by_its_announcement_and_a_lie_by_its_length() -> None:
    _, bomb = SMALL.compress(bytes(3_000_000))
    assert len(bomb) < limits.MAX_FRAME_BYTES
    sizes = (limits.MAX_PACKED_FRAME_BYTES + 1, 2**32 - 1, 0, 1000)
    bodies = [body(b"", size, bomb) for size in sizes]
    tracemalloc.start()
    reasons = [reason_of(data) for data in bodies]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reasons == [Reason.SIZE, Reason.SIZE, Reason.SIZE, Reason.SCHEMA]
    assert peak < 2_000_000


CONTENT = pack_frame(flatten(frame()))
SIZE, CODED = SMALL.compress(CONTENT)
DAMAGED = {
    "nothing": b"\x01",
    "a cut header": encode(frame(), SMALL)[:8],
    "no content": encode(frame(), SMALL)[:9],
    "a cut stream": encode(frame(), SMALL)[:-1],
    "a byte more": encode(frame(), SMALL) + b"\0",
    "a size too small": body(CONTENT, SIZE - 1),
    "a size too large": body(CONTENT, SIZE + 1),
    "a place outside the dictionary": body(CONTENT, None, b"\xff\xff\xff" + CODED[3:]),
    "another place in the dictionary": body(CONTENT, None, b"\x05\0\0" + CODED[3:]),
    "another dictionary's stream": body(CONTENT, None, OTHER.compress(CONTENT)[1]),
    "not a list": body(pack({"slot": 1})),
    "a list too short": body(pack(["a"])),
    "deep nesting": body(b"\x91" * 900 + b"\xc0"),
    "bytes after the list": body(CONTENT + b"\0"),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_bodies_are_refused(data: bytes) -> None:
    assert reason_of(data) is Reason.SCHEMA


@FUZZ
@given(st.data())
def test_a_changed_byte_is_refused_or_another_valid_frame(data: st.DataObject) -> None:
    good = bytearray(encode(frame(group(), group(index=4)), SMALL))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        assert isinstance(read(bytes(good)), Frame)


def test_writers_may_compress_as_they_like() -> None:
    """A stream that leaves the dictionary's early is longer, but right."""
    plain = dictionaries._FILTER | {"preset": 0}
    short = SMALL._words.shorten(CONTENT)
    stream = lzma.compress(SMALL._text + short, format=lzma.FORMAT_RAW, filters=[plain])
    assert SMALL.decompress(b"\0\0\0" + stream, len(short), 10_000) == CONTENT


EQUAL = {
    "integers": (pack_ints([7] * 300), b"=1\x07\x2c\x01"),
    "floats": (pack_floats([-0.5] * 3), b"=h\x00\xb8\x03"),
    "one value": (pack_ints([7]), pack_ints([7])),
    "none": (pack_ints([]), pack_ints([])),
    "bits": (pack_floats([1.0, 1.0]), b"b\x03"),
}


@pytest.mark.parametrize(("column", "short"), EQUAL.values(), ids=EQUAL.keys())
def test_equal_values_are_said_once(column: bytes, short: bytes) -> None:
    from ftis_protocol.packing import _lengthen, _shorten

    assert _shorten(column) == short
    assert _lengthen(short) == column


@pytest.mark.parametrize(
    ("short", "reason"),
    [
        (b"=", Reason.SCHEMA),
        (b"=1", Reason.SCHEMA),
        (b"=1\x07", Reason.SCHEMA),
        (b"=z\x07\x02", Reason.SCHEMA),
        (b"==1\x07\x02", Reason.SCHEMA),
        (b"=1\x07" + b"\xff" * 4, Reason.SIZE),
        (b"=1\x07" + b"\x01" * 5, Reason.SCHEMA),
        (b"=1\x07\x02", Reason.SCHEMA),  # two equal values where the frame has one
        (b"=1\x07\x01", Reason.SCHEMA),  # one value has another form
    ],
)
def test_a_column_of_equal_values_cannot_lie(short: bytes, reason: Reason) -> None:
    fields = list(decode_fields(CONTENT))
    fields[7] = short
    assert reason_of(body(pack(fields))) is reason


def decode_fields(content: bytes) -> tuple[object, ...]:
    import msgpack

    return tuple(msgpack.unpackb(content))


def test_rounded_evidence_is_near_and_takes_two_bytes() -> None:
    values = tuple(-0.001 * 1.37**step for step in range(28))
    near = half(values)
    assert all(abs(a - b) <= abs(a) / 2048 for a, b in zip(values, near, strict=True))
    assert all(abs(a - b) < 0.002 for a, b in zip(values, near, strict=True) if a > -8)
    assert pack_floats(near)[:1] == b"h"
    assert max(half((-0.0, -1e-9))) <= 0
    assert half((-2000.0, -0.1)) == (-2000.0, -0.1), "a broken model's values are not made up"
    assert half(()) == ()
    total = single(-123.456)
    assert abs(total + 123.456) < 1e-5
    assert pack_floats([total])[:1] == b"f"
    assert single(-1e300) == -1e300


@FUZZ
@given(st.binary(max_size=60), st.lists(st.sampled_from([b" the", b"answer", b" answer", b"is", b"\x80", b"\xfe"])))
def test_words_are_replaced_and_put_back(noise: bytes, pieces: list[bytes]) -> None:
    words = WordList([b" the", b" answer", b"is"])
    content = b"".join(pieces) + noise + b"".join(reversed(pieces))
    short = words.shorten(content)
    assert words.lengthen(short, 10_000) == content


def test_words_cannot_swell_beyond_the_limit() -> None:
    words = WordList([b" probability"])
    assert words.shorten(b"the probability 12\x80") == b"the\x80 12\xfe\x80"
    with pytest.raises(ProtocolError) as caught:
        words.lengthen(b"\x80" * 1000, 11_999)
    assert caught.value.reason is Reason.SIZE
    for cut in (b"\xfe", b"a\xfe\xfe\xfe"):
        with pytest.raises(ProtocolError) as caught:
            words.lengthen(cut, 100)
        assert caught.value.reason is Reason.SCHEMA


@pytest.mark.parametrize(
    "words", [[b"a"], [b" the", b" the"], [b"two words"], [b"x" * 17], [b"ab"] * 127, [b"\xc3\xa9"]]
)
def test_a_list_of_words_is_checked(words: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        WordList(words)


def test_what_is_no_dictionary_is_refused() -> None:
    for head in (b"", b"junk", SMALL.head[:-1], SMALL.head + b"x", dictionaries._encoded(b"no list")):
        with pytest.raises(ProtocolError):
            TextDictionary(head)
    with pytest.raises(ProtocolError) as caught:
        TextDictionary(dictionaries._encoded(b"\n\n" + bytes(dictionaries.MAX_DICTIONARY_BYTES)))
    assert caught.value.reason is Reason.SIZE
