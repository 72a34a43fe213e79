"""Columns of numbers as raw little-endian bytes behind one tag byte that names their type.

The narrowest type that holds every value exactly is used, so a column has one form only and nothing is rounded. A
column of only 0.0 and 1.0, which is what binary rewards are, takes one bit a value.

    tag 1, 2, 4, 8   unsigned integers of that many bytes
    tag h, f, d      floats of 2, 4, 8 bytes
    tag b            bits, first value lowest
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from ftis_protocol.errors import Reason, WireError

_INTEGERS = {b"1": "B", b"2": "H", b"4": "I", b"8": "Q"}
_FLOATS = {b"h": "e", b"f": "f", b"d": "d"}
_BITS = b"b"


def width_of(column: bytes) -> int:
    """Bytes of one value of a column; 0 for bits and for what is no column."""
    code = _INTEGERS.get(column[:1]) or _FLOATS.get(column[:1])
    return struct.calcsize(f"<{code}") if code else 0


def half(values: Sequence[float]) -> tuple[float, ...]:
    """Values as 2-byte floats carry them: off by at most one part in 2048, so a log-probability above -8 by less than
    .002 nats. Values beyond 1024 either way, which only broken models give, make all of them stay as they are."""
    if any(not -1024.0 <= value <= 1024.0 for value in values):
        return tuple(values)
    layout = f"<{len(values)}e"
    return struct.unpack(layout, struct.pack(layout, *values))


def single(value: float) -> float:
    """The value as a 4-byte float carries it, off by at most one part in 16 million; out of its range it stays."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return value
    return rounded


def pack_ints(values: Sequence[int]) -> bytes:
    """Non-negative integers below 2**64 -> column."""
    largest = max(values, default=0)
    tag = next(tag for tag in _INTEGERS if largest < 256 ** int(tag))
    return tag + struct.pack(f"<{len(values)}{_INTEGERS[tag]}", *values)


def unpack_ints(column: bytes, count: int) -> tuple[int, ...]:
    """Column of exactly `count` integers. Raises WireError(SCHEMA)."""
    return _unpack(column, count, _INTEGERS)


def pack_floats(values: Sequence[float]) -> bytes:
    """Finite floats -> column."""
    if all(value in (0.0, 1.0) for value in values):
        number = sum(1 << place for place, value in enumerate(values) if value)
        return _BITS + number.to_bytes((len(values) + 7) // 8, "little")
    tag, code = next((tag, code) for tag, code in _FLOATS.items() if _exact(values, code))
    return tag + struct.pack(f"<{len(values)}{code}", *values)


def unpack_floats(column: bytes, count: int) -> tuple[float, ...]:
    """Column of exactly `count` floats, which may be anything a float can be. Raises WireError(SCHEMA)."""
    if column[:1] != _BITS:
        return _unpack(column, count, _FLOATS)
    if len(column) - 1 != (count + 7) // 8:
        raise WireError(Reason.SCHEMA, f"a column of {count} bits has {len(column) - 1} bytes")
    number = int.from_bytes(column[1:], "little")
    return tuple(float(number >> place & 1) for place in range(count))


def _exact(values: Sequence[float], code: str) -> bool:
    layout = f"<{len(values)}{code}"
    try:
        return struct.unpack(layout, struct.pack(layout, *values)) == tuple(values)
    except OverflowError:
        return False


def _unpack(column: bytes, count: int, codes: dict[bytes, str]) -> tuple[Any, ...]:
    code = codes.get(column[:1])
    if code is None:
        raise WireError(Reason.SCHEMA, "a column of unknown type")
    if len(column) - 1 != count * struct.calcsize(f"<{code}"):
        raise WireError(Reason.SCHEMA, f"a column of {count} values has {len(column) - 1} bytes")
    return struct.unpack(f"<{count}{code}", column[1:])
