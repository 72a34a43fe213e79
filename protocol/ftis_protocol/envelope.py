"""The signed wrapper of every message: who says it, in which swarm, as his how-manieth, and when.

    [version, kind, swarm id, sender's public key, sequence, issued at, body, signature]

One flat msgpack array; the body is the compressed message. The signature covers a fixed prefix and the canonical form
of everything before it, so no field can be moved to another message, swarm or protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ftis_protocol import limits
from ftis_protocol.canonical import pack, raw_id, text_of_id
from ftis_protocol.codec import canonical_bytes, decode, encode
from ftis_protocol.dictionaries import TextDictionary
from ftis_protocol.errors import ManifestError, Reason, WireError
from ftis_protocol.identity import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, Identity, node_id_of, verify
from ftis_protocol.lists import peek_version, unpack_flat
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.presence import Departure, NodeCard, Offer
from ftis_protocol.rollout import Frame

Message = SwarmManifest | NodeCard | Departure | Offer | Frame

_SIGNED_PREFIX = b"ftis envelope\x00"
_FIELD_TYPES: tuple[type, ...] = (int, int, bytes, bytes, int, int, bytes, bytes)
_SWARM_ID_BYTES = 16


class Kind(IntEnum):
    """What an envelope carries; the number travels."""

    MANIFEST = 1
    CARD = 2
    DEPARTURE = 3
    OFFER = 4
    FRAME = 5


@dataclass(frozen=True, slots=True)
class KindRule:
    """The model of a kind of message and how large it may be, sealed and decompressed."""

    model: type[Message]
    max_bytes: int
    max_decompressed_bytes: int


KINDS: dict[Kind, KindRule] = {
    Kind.MANIFEST: KindRule(SwarmManifest, limits.MAX_MANIFEST_BYTES, limits.MAX_MANIFEST_DECOMPRESSED_BYTES),
    Kind.CARD: KindRule(NodeCard, limits.MAX_CARD_BYTES, limits.MAX_CARD_DECOMPRESSED_BYTES),
    Kind.DEPARTURE: KindRule(Departure, limits.MAX_DEPARTURE_BYTES, limits.MAX_DEPARTURE_DECOMPRESSED_BYTES),
    Kind.OFFER: KindRule(Offer, limits.MAX_OFFER_BYTES, limits.MAX_OFFER_DECOMPRESSED_BYTES),
    Kind.FRAME: KindRule(Frame, limits.MAX_FRAME_BYTES, limits.MAX_FRAME_DECOMPRESSED_BYTES),
}


@dataclass(frozen=True, slots=True)
class Opened:
    """An envelope whose signature holds. `sender` is the node id of `public_key`; `issued_at` Unix seconds by the
    sender's clock."""

    message: Message
    kind: Kind
    sender: str
    public_key: bytes
    sequence: int
    issued_at: int
    swarm_id: str


def seal(
    message: Message,
    identity: Identity,
    swarm_id: str,
    sequence: int,
    issued_at: float,
    dictionary: TextDictionary | None = None,
) -> bytes:
    """Sign a message. `issued_at` is cut to whole seconds; `dictionary` is the one that the swarm's manifest names.
    Raises WireError(SIZE) if others would refuse it."""
    kind = next(kind for kind, rule in KINDS.items() if rule.model is type(message))
    raw_swarm = raw_id(swarm_id)
    assert raw_swarm is not None, f"{swarm_id!r} is not a swarm id"
    assert not isinstance(message, SwarmManifest) or message.swarm_id == swarm_id, "a manifest under a foreign id"
    rule = KINDS[kind]
    raw = canonical_bytes(message)
    head: list[Any] = [limits.PROTOCOL_VERSION, int(kind), raw_swarm, identity.public_key, sequence, int(issued_at)]
    signed = [*head, encode(message, dictionary)]
    data = pack([*signed, identity.sign(signed_part(signed))])
    if len(data) > rule.max_bytes or len(raw) > rule.max_decompressed_bytes:
        raise WireError(
            Reason.SIZE,
            f"the {kind.name.lower()} is too large: {len(data)} bytes sealed (limit {rule.max_bytes}), "
            f"{len(raw)} before compression (limit {rule.max_decompressed_bytes})",
            "Say less in one message: split a frame, or shorten the completions of its largest group.",
        )
    return data


def open_envelope(
    data: bytes,
    *,
    swarm_id: str | None,
    kinds: frozenset[Kind] | None = None,
    dictionary: TextDictionary | None = None,
) -> Opened:
    """Check and read an envelope, cheapest test first: size, form, version, kind, swarm, signature, body.

    `swarm_id` None accepts any swarm, `kinds` None any kind; `dictionary` is the one that the swarm's manifest names.
    Age and sequence are for the caller, who has a clock and a memory. Raises ProtocolError and nothing else, whatever
    `data` is.
    """
    fields = _fields(data)
    _, number, raw_swarm, public_key, sequence, issued_at, body, signature = fields
    kind = _kind(number, kinds)
    if len(data) > KINDS[kind].max_bytes:
        raise WireError(Reason.SIZE, f"{len(data)} bytes, a {kind.name.lower()} has at most {KINDS[kind].max_bytes}")
    swarm = text_of_id(raw_swarm)
    if swarm_id is not None and swarm != swarm_id:
        raise WireError(Reason.WRONG_SWARM, f"made for swarm {swarm}")
    if not verify(public_key, signed_part(fields[:-1]), signature):
        raise WireError(Reason.SIGNATURE)
    rule = KINDS[kind]
    message = decode(body, rule.model, rule.max_bytes, rule.max_decompressed_bytes, dictionary)
    if isinstance(message, SwarmManifest) and message.swarm_id != swarm:
        raise ManifestError("the manifest is not the one its swarm id names", "Ask for the invite again.")
    return Opened(message, kind, node_id_of(public_key), public_key, sequence, issued_at, swarm)


def _fields(data: bytes) -> list[Any]:
    """Size, form and version."""
    if not isinstance(data, bytes):
        raise WireError(Reason.SCHEMA, "not bytes")
    if len(data) > limits.MAX_FRAME_BYTES:
        raise WireError(Reason.SIZE, f"{len(data)} bytes, no message has more than {limits.MAX_FRAME_BYTES}")
    version = peek_version(data)
    if version != limits.PROTOCOL_VERSION:
        raise WireError(Reason.VERSION, f"protocol {version}, this node speaks {limits.PROTOCOL_VERSION}")
    fields = unpack_flat(data, _FIELD_TYPES)
    _, _, swarm, public_key, sequence, issued_at, _, signature = fields
    lengths = (len(swarm), len(public_key), len(signature))
    if lengths != (_SWARM_ID_BYTES, PUBLIC_KEY_BYTES, SIGNATURE_BYTES):
        raise WireError(Reason.SCHEMA, "an id, key or signature of the wrong length")
    if not (0 <= sequence <= limits.MAX_COUNT and 0 <= issued_at <= limits.MAX_COUNT):
        raise WireError(Reason.SCHEMA, "a sequence number or time out of range")
    if pack(fields) != data:
        raise WireError(Reason.SCHEMA, "the envelope is not in its canonical form")
    return fields


def _kind(number: int, kinds: frozenset[Kind] | None) -> Kind:
    try:
        kind = Kind(number)
    except ValueError as error:
        raise WireError(Reason.KIND, f"unknown kind {number}") from error
    if kinds is not None and kind not in kinds:
        raise WireError(Reason.KIND, f"a {kind.name.lower()} does not belong here")
    return kind


def signed_part(fields: Sequence[Any]) -> bytes:
    """What a signature covers, of the seven fields before it."""
    return _SIGNED_PREFIX + pack(fields)
