"""A frame as the text that a dictionary works on: its flat list with the savings that a model of text cannot find.

Against the list of `frame_layout` the texts are parted by a byte that UTF-8 never uses, instead of by a column of their
lengths; and a column of two and more equal values says so:

    =  tag  value  count        count: little-endian, in as few bytes as it takes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftis_protocol import limits
from ftis_protocol.canonical import pack
from ftis_protocol.columns import pack_ints, unpack_ints, width_of
from ftis_protocol.errors import Reason, WireError
from ftis_protocol.frame_layout import FIELD_TYPES, FIRST_COLUMN, LENGTHS, TEXTS, runs
from ftis_protocol.lists import unpack_flat

_PARTING = b"\xff"
_EQUAL = b"="
_MAX_COUNT_BYTES = 4
_PACKED_TYPES = FIELD_TYPES[:-1]


def pack_frame(fields: Sequence[Any]) -> bytes:
    """A frame's flat list -> packed bytes."""
    head, columns = list(fields[:FIRST_COLUMN]), list(fields[FIRST_COLUMN:])
    texts = columns.pop(TEXTS - FIRST_COLUMN)
    lengths = columns.pop(LENGTHS - FIRST_COLUMN)
    return pack([*head, *map(_shorten, columns), _PARTING.join(runs(texts, _lengths(lengths)))])


def unpack_frame(packed: bytes) -> list[Any]:
    """Packed bytes -> the flat list, whose columns are still to be checked. Raises WireError."""
    *fields, joined = unpack_flat(packed, _PACKED_TYPES)
    head, columns = fields[:FIRST_COLUMN], [_lengthen(column) for column in fields[FIRST_COLUMN:]]
    texts = joined.split(_PARTING)
    columns[LENGTHS - FIRST_COLUMN : LENGTHS - FIRST_COLUMN] = [pack_ints([len(text) for text in texts])]
    columns.insert(TEXTS - FIRST_COLUMN, b"".join(texts))
    return [*head, *columns]


def _lengths(column: bytes) -> tuple[int, ...]:
    return unpack_ints(column, (len(column) - 1) // width_of(column))


def _shorten(column: bytes) -> bytes:
    width = width_of(column)
    first, count = column[1 : 1 + width], (len(column) - 1) // width if width else 0
    if count < 2 or first * count != column[1:]:
        return column
    return _EQUAL + column[:1] + first + count.to_bytes((count.bit_length() + 7) // 8, "little")


def _lengthen(column: bytes) -> bytes:
    if column[:1] != _EQUAL:
        return column
    width = width_of(column[1:])
    first, counted = column[2 : 2 + width], column[2 + width :]
    if not width or len(first) != width or not 1 <= len(counted) <= _MAX_COUNT_BYTES:
        raise WireError(Reason.SCHEMA, "a column of equal values is malformed")
    count = int.from_bytes(counted, "little")
    if count > limits.MAX_FRAME_TOKENS:
        raise WireError(Reason.SIZE, f"a column has at most {limits.MAX_FRAME_TOKENS} values, this one {count}")
    return column[1:2] + first * count
