"""Messages to bytes and back: canonical msgpack inside one zstd frame.

A reader decides from sizes alone before it spends memory: the compressed size first, then the size that the zstd header
announces, which must be there. What comes out must be byte for byte what this module would have written, so a message
has exactly one form.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
import zstandard
from pydantic import ValidationError

from ftis_protocol.canonical import pack, unpack
from ftis_protocol.errors import Reason, WireError
from ftis_protocol.fields import Record
from ftis_protocol.frame_layout import FIELD_TYPES, flatten, restore
from ftis_protocol.rollout import Frame

MessageT = TypeVar("MessageT", bound=Record)

_LEVEL = 19
_REASONS = frozenset(reason.value for reason in Reason)


def canonical_bytes(message: Record) -> bytes:
    """The one uncompressed form of a message."""
    return pack(flatten(message) if isinstance(message, Frame) else message.model_dump(mode="python"))


def encode(message: Record) -> bytes:
    """Message -> compressed bytes, with the uncompressed size in the header."""
    return compress(canonical_bytes(message))


def decode(data: bytes, model_type: type[MessageT], max_bytes: int, max_decompressed_bytes: int) -> MessageT:
    """Compressed bytes -> message of `model_type`. Raises ProtocolError and nothing else."""
    raw = decompress(data, max_bytes, max_decompressed_bytes)
    plain = restore(unpack_flat(raw, FIELD_TYPES)) if model_type is Frame else unpack(raw)
    try:
        message = model_type.model_validate(plain)
    except ValidationError as error:
        raise _refused(error) from error
    if canonical_bytes(message) != raw:
        raise WireError(Reason.SCHEMA, "the message is not in its canonical form")
    return message


def compress(raw: bytes) -> bytes:
    """Bytes -> one zstd frame that states its content size."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(raw)


def decompress(data: bytes, max_bytes: int, max_decompressed_bytes: int) -> bytes:
    """One zstd frame -> bytes, both sizes checked before the content is produced. Raises WireError."""
    if len(data) > max_bytes:
        raise WireError(Reason.SIZE, f"{len(data)} bytes, at most {max_bytes} are allowed")
    try:
        announced = zstandard.get_frame_parameters(data).content_size
        if announced in (0, zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
            raise WireError(Reason.SCHEMA, "the compressed frame does not state its content size")
        if announced > max_decompressed_bytes:
            raise WireError(
                Reason.SIZE, f"{announced} bytes decompressed, at most {max_decompressed_bytes} are allowed"
            )
        raw = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(Reason.SCHEMA, "not one whole zstd frame") from error
    if len(raw) != announced:
        raise WireError(Reason.SCHEMA, "the content is not as long as the header says")
    return raw


def unpack_flat(data: bytes, types: tuple[type, ...]) -> list[Any]:
    """A msgpack array whose items have exactly these scalar types. Nested values are refused before they are built."""
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


def _refused(error: ValidationError) -> WireError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    code = first["type"]
    place = ".".join(str(part) for part in first["loc"])
    return WireError(Reason(code) if code in _REASONS else Reason.SCHEMA, f"{place or 'message'}: {first['msg']}")


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
