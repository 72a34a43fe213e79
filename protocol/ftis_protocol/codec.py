"""Messages to bytes and back: canonical msgpack, compressed.

    any message   one zstd frame that states its content size
    a frame       that, or where the swarm names a text dictionary:  1  tag (4)  size (4, little-endian)  coded

A reader decides from sizes alone before it spends memory: the compressed size first, then the announced one, which must
be there. What comes out must be byte for byte what this module would have written, so a message has exactly one form
of each kind.
"""

from __future__ import annotations

from typing import TypeVar

import zstandard
from pydantic import ValidationError

from ftis_protocol import limits
from ftis_protocol.canonical import pack, unpack
from ftis_protocol.dictionaries import TAG_BYTES, TextDictionary
from ftis_protocol.errors import Reason, WireError
from ftis_protocol.fields import Record, refused
from ftis_protocol.frame_layout import FIELD_TYPES, flatten, restore
from ftis_protocol.lists import unpack_flat
from ftis_protocol.packing import pack_frame, unpack_frame
from ftis_protocol.rollout import Frame

MessageT = TypeVar("MessageT", bound=Record)

_LEVEL = 19
_PACKED = b"\x01"  # zstd frames, skippable ones too, begin with other bytes
_SIZE_BYTES = 4
_HEADER_BYTES = len(_PACKED) + TAG_BYTES + _SIZE_BYTES


def canonical_bytes(message: Record) -> bytes:
    """The one uncompressed form of a message."""
    return pack(flatten(message) if isinstance(message, Frame) else message.model_dump(mode="python"))


def encode(message: Record, dictionary: TextDictionary | None = None) -> bytes:
    """Message -> compressed bytes, with the uncompressed size in the header."""
    if dictionary is not None and isinstance(message, Frame):
        packed = pack_frame(flatten(message))
        if len(packed) <= limits.MAX_PACKED_FRAME_BYTES:
            size, coded = dictionary.compress(packed)
            return _PACKED + dictionary.tag + size.to_bytes(_SIZE_BYTES, "little") + coded
    return compress(canonical_bytes(message))


def decode(
    data: bytes,
    model_type: type[MessageT],
    max_bytes: int,
    max_decompressed_bytes: int,
    dictionary: TextDictionary | None = None,
) -> MessageT:
    """Compressed bytes -> message of `model_type`; `dictionary` is the one that the swarm names. Raises ProtocolError
    and nothing else."""
    if model_type is Frame and data[:1] == _PACKED:
        raw = _unpacked(data, max_bytes, dictionary)
        plain = restore(unpack_frame(raw))
    else:
        raw = decompress(data, max_bytes, max_decompressed_bytes)
        plain = restore(unpack_flat(raw, FIELD_TYPES)) if model_type is Frame else unpack(raw)
    try:
        message = model_type.model_validate(plain)
    except ValidationError as error:
        raise refused(error) from error
    again = pack_frame(flatten(message)) if isinstance(message, Frame) and data[:1] == _PACKED else None
    if (canonical_bytes(message) if again is None else again) != raw:
        raise WireError(Reason.SCHEMA, "the message is not in its canonical form")
    return message


def _unpacked(data: bytes, max_bytes: int, dictionary: TextDictionary | None) -> bytes:
    if len(data) > max_bytes:
        raise WireError(Reason.SIZE, f"{len(data)} bytes, at most {max_bytes} are allowed")
    if len(data) < _HEADER_BYTES:
        raise WireError(Reason.SCHEMA, "the header of a packed frame is cut")
    tag = data[1 : 1 + TAG_BYTES]
    if dictionary is None or tag != dictionary.tag:
        wanted = "none" if dictionary is None else dictionary.tag.hex()
        raise WireError(Reason.DICTIONARY, f"compressed with dictionary {tag.hex()}, the swarm names {wanted}")
    size = int.from_bytes(data[1 + TAG_BYTES : _HEADER_BYTES], "little")
    if not 0 < size <= limits.MAX_PACKED_FRAME_BYTES:
        raise WireError(Reason.SIZE, f"{size} bytes unpacked, at most {limits.MAX_PACKED_FRAME_BYTES} are allowed")
    return dictionary.decompress(data[_HEADER_BYTES:], size, limits.MAX_PACKED_FRAME_BYTES)


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
