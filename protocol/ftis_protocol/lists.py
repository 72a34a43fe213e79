"""Flat msgpack arrays of known types: nested values are refused before they are built."""

from __future__ import annotations

from typing import Any

import msgpack

from ftis_protocol.errors import Reason, WireError


def unpack_flat(data: bytes, types: tuple[type, ...]) -> list[Any]:
    """A msgpack array whose items have exactly these scalar types. Raises WireError(SCHEMA)."""
    limit = len(data)
    reader = msgpack.Unpacker(
        max_buffer_size=max(limit, 1),
        raw=False,
        max_str_len=limit,
        max_bin_len=limit,
        max_array_len=0,
        max_map_len=0,
        max_ext_len=0,
    )
    try:
        reader.feed(data)
        if reader.read_array_header() != len(types):
            raise WireError(Reason.SCHEMA, f"not a list of {len(types)} fields")
        fields = [reader.unpack() for _ in types]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(Reason.SCHEMA, f"not a flat msgpack array ({type(error).__name__})") from error
    if reader.tell() != limit or any(type(field) is not wanted for field, wanted in zip(fields, types, strict=True)):
        raise WireError(Reason.SCHEMA, "a field of the wrong type, or bytes after the end")
    return fields


def peek_version(data: bytes) -> int:
    """The first field of an envelope of any version. Raises WireError(SCHEMA)."""
    reader = msgpack.Unpacker(max_array_len=0, max_map_len=0, max_str_len=0, max_bin_len=0, max_ext_len=0)
    try:
        reader.feed(data[:16])
        count = reader.read_array_header()
        version = reader.unpack() if count else None
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(Reason.SCHEMA, "not an envelope") from error
    if type(version) is not int:
        raise WireError(Reason.SCHEMA, "an envelope begins with its version")
    return version
