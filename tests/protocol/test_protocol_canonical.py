"""The two forms everything is built from: canonical msgpack and columns of numbers."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from protocol_samples import FUZZ, plain_values

from ftis_protocol.canonical import pack, raw_id, short_id, unpack
from ftis_protocol.columns import pack_floats, pack_ints, unpack_floats, unpack_ints
from ftis_protocol.errors import ProtocolError


@FUZZ
@given(plain_values)
def test_canonical_form_is_stable(value: Any) -> None:
    data = pack(value)
    with contextlib.suppress(ProtocolError):  # deeper than any message
        assert pack(unpack(data)) == data


def test_the_order_of_a_map_does_not_matter() -> None:
    assert pack({"b": 1, "a": {"d": 2, "c": 3}}) == pack({"a": {"c": 3, "d": 2}, "b": 1})


@FUZZ
@given(st.lists(st.integers(0, 2**64 - 1)))
def test_integer_columns_are_exact(values: list[int]) -> None:
    assert unpack_ints(pack_ints(values), len(values)) == tuple(values)


@FUZZ
@given(
    st.lists(st.one_of(st.floats(allow_nan=False), st.floats(width=16, allow_nan=False), st.sampled_from([0.0, 1.0])))
)
def test_float_columns_are_exact(values: list[float]) -> None:
    assert unpack_floats(pack_floats(values), len(values)) == tuple(values)


def test_columns_take_the_narrowest_type() -> None:
    assert pack_floats([1.0, 0.0, 1.0]) == b"b\x05"
    assert pack_floats([-0.5, -2.0]) == b"h" + struct.pack("<2e", -0.5, -2.0)
    assert pack_floats([struct.unpack("<f", struct.pack("<f", -0.1))[0]])[:1] == b"f"
    assert pack_floats([-0.1])[:1] == b"d"
    assert [pack_ints([value])[:1] for value in (255, 256, 65_536, 2**32)] == [b"1", b"2", b"4", b"8"]


def test_ids_are_written_in_one_way_only() -> None:
    name = short_id(b"x")
    assert len(name) == 26
    assert raw_id(name) is not None
    for wrong in (name.upper(), name[:-1], name + "a", "1" * 26, "é" * 26, name[:-1] + "b", ""):
        assert raw_id(wrong) is None
