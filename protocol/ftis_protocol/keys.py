"""Every key under which nodes store something for each other, who may write there, and for how long.

The table is the law: each storing node enforces it on what arrives, each reader checks it again.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

from ftis_protocol import limits
from ftis_protocol.canonical import pack
from ftis_protocol.envelope import Kind

DIGEST_BYTES = 32
_ROOT = f"ftis/{limits.PROTOCOL_VERSION}"


class Subkey(StrEnum):
    """What the entries of a dictionary are filed under. NONE: the key holds one value, not a dictionary."""

    NONE = "none"
    SENDER = "sender"
    SWARM_ID = "swarm_id"


class Writer(StrEnum):
    """Who may write. SENDER: the node whose id is the subkey, under its signature. CONTENT: anybody, because the
    content is checked against the key or subkey and can only be right."""

    SENDER = "sender"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class KeyRule:
    """One row of the table. `lifetime_seconds` caps how far ahead a value may expire, `max_bytes` one sealed value."""

    name: str
    kinds: frozenset[Kind]
    lifetime_seconds: int
    max_bytes: int
    subkey: Subkey
    writer: Writer
    pattern: str
    meaning: str


_ID = "(?P<swarm_id>[a-z2-7]{26})"
_NUMBER = "0|[1-9][0-9]{0,15}"

KEY_RULES: tuple[KeyRule, ...] = (
    KeyRule(
        "discovery",
        frozenset({Kind.MANIFEST}),
        limits.MANIFEST_LIFETIME_SECONDS,
        limits.MAX_MANIFEST_BYTES,
        Subkey.SWARM_ID,
        Writer.CONTENT,
        f"{_ROOT}/discovery",
        "Which swarms exist on this network: the manifest of each under its id.",
    ),
    KeyRule(
        "manifest",
        frozenset({Kind.MANIFEST}),
        limits.MANIFEST_LIFETIME_SECONDS,
        limits.MAX_MANIFEST_BYTES,
        Subkey.NONE,
        Writer.CONTENT,
        f"{_ROOT}/{_ID}/manifest",
        "The rules of one swarm; they hash to the swarm id in the key.",
    ),
    KeyRule(
        "presence",
        frozenset({Kind.CARD, Kind.DEPARTURE}),
        limits.CARD_LIFETIME_SECONDS,
        limits.MAX_CARD_BYTES,
        Subkey.SENDER,
        Writer.SENDER,
        f"{_ROOT}/{_ID}/presence/(?P<shard>{_NUMBER})",
        "Who is there: each node's newest card, or its departure.",
    ),
    KeyRule(
        "offers",
        frozenset({Kind.OFFER}),
        limits.OFFER_LIFETIME_SECONDS,
        limits.MAX_OFFER_BYTES,
        Subkey.SENDER,
        Writer.SENDER,
        f"{_ROOT}/{_ID}/offers/(?P<shard>{_NUMBER})/(?P<slot>{_NUMBER})",
        "What the nodes of one shard published in one slot.",
    ),
    KeyRule(
        "body",
        frozenset({Kind.FRAME}),
        limits.BODY_LIFETIME_SECONDS,
        limits.MAX_FRAME_BYTES,
        Subkey.NONE,
        Writer.CONTENT,
        f"{_ROOT}/body/(?P<digest>[0-9a-f]{{{2 * DIGEST_BYTES}}})",
        "One frame, filed under the hash of its sealed bytes.",
    ),
)


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A key taken apart; fields that the key does not have are None."""

    rule: KeyRule
    swarm_id: str | None = None
    shard: int | None = None
    slot: int | None = None
    digest: bytes | None = None


def discovery_key() -> str:
    """Where the swarms of a network are listed."""
    return f"{_ROOT}/discovery"


def manifest_key(swarm_id: str) -> str:
    """Where the rules of a swarm are."""
    return f"{_ROOT}/{swarm_id}/manifest"


def presence_key(swarm_id: str, shard: int) -> str:
    """Where the nodes of one shard show themselves."""
    return f"{_ROOT}/{swarm_id}/presence/{shard}"


def offers_key(swarm_id: str, shard: int, slot: int) -> str:
    """Where the nodes of one shard list what they published in one slot."""
    return f"{_ROOT}/{swarm_id}/offers/{shard}/{slot}"


def body_key(digest: bytes) -> str:
    """Where the frame with that digest is."""
    return f"{_ROOT}/body/{digest.hex()}"


def parse_key(key: str) -> ParsedKey | None:
    """The rule and the parts of a key, or None if no node of this protocol would use it."""
    for rule in KEY_RULES:
        if match := re.fullmatch(rule.pattern, key, flags=re.ASCII):
            parts = match.groupdict()
            shard, slot, digest = parts.get("shard"), parts.get("slot"), parts.get("digest")
            return ParsedKey(
                rule,
                swarm_id=parts.get("swarm_id"),
                shard=None if shard is None else int(shard),
                slot=None if slot is None else int(slot),
                digest=None if digest is None else bytes.fromhex(digest),
            )
    return None


def shard_of(node_id: str, shard_count: int) -> int:
    """The shard of a node among `shard_count`; the same for everybody, evenly spread."""
    digest = hashlib.blake2b(pack(node_id), digest_size=8, person=b"ftis-shard").digest()
    return int.from_bytes(digest, "little") % shard_count


def body_digest(data: bytes) -> bytes:
    """The 32 bytes under which a sealed frame is announced and stored."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
