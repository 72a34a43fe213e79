"""Canonical msgpack: one sequence of bytes for one value, so that hashes and signatures agree everywhere.

Map keys are sorted, integers take their shortest form, floats are always 64 bit. Reading is bounded in depth and
length and refuses a key that appears twice.
"""

from __future__ import annotations

import hashlib
from base64 import b32decode, b32encode
from typing import Any

import msgpack

from ftis_protocol.errors import Reason, WireError

MAX_DEPTH = 6
MAX_ITEMS = 4096
ID_CHARS = 26


def pack(value: Any) -> bytes:
    """Value made of None, bool, int, float, str, bytes, lists, tuples and dicts with str keys -> bytes."""
    packed: bytes = msgpack.packb(_sorted(value), use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    """Bytes -> value; arrays come as tuples. Raises WireError(SCHEMA) for anything but one whole value."""
    limit = len(data)
    try:
        value = msgpack.unpackb(
            data,
            use_list=False,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=_unique,
            max_str_len=limit,
            max_bin_len=limit,
            max_array_len=min(limit, MAX_ITEMS),
            max_map_len=min(limit, MAX_ITEMS),
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(Reason.SCHEMA, f"not one msgpack value ({type(error).__name__})") from error
    _check_depth(value, MAX_DEPTH)
    return value


def short_id(data: bytes) -> str:
    """26 lower-case base32 characters of the 16-byte BLAKE2b hash of `data`."""
    return text_of_id(hashlib.blake2b(data, digest_size=16).digest())


def text_of_id(raw: bytes) -> str:
    """16 bytes -> 26 characters."""
    return b32encode(raw).decode("ascii").rstrip("=").lower()


def raw_id(text: str) -> bytes | None:
    """26 characters -> 16 bytes, or None when `text` is not a well-formed id."""
    if len(text) != ID_CHARS or not text.isascii() or text != text.lower():
        return None
    try:
        raw = b32decode(text.upper() + "======")
    except ValueError:
        return None
    return raw if text_of_id(raw) == text else None


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _check_depth(value: Any, allowed: int) -> None:
    if not isinstance(value, dict | tuple):
        return
    if allowed == 0:
        raise WireError(Reason.SCHEMA, "nested too deeply")
    for item in value.values() if isinstance(value, dict) else value:
        _check_depth(item, allowed - 1)
