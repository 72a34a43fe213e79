"""Envelopes with a field replaced and an honest signature over the result."""

from __future__ import annotations

from typing import Any

from ftis_protocol.canonical import pack, unpack
from ftis_protocol.envelope import signed_part
from ftis_protocol.identity import Identity

FIELDS = ("version", "kind", "swarm", "key", "sequence", "issued_at", "body")


def resigned(sealed: bytes, identity: Identity, **changes: Any) -> bytes:
    """`changes` by the names in FIELDS; the key becomes the signer's unless it is among them."""
    fields = dict(zip(FIELDS, unpack(sealed), strict=False)) | {"key": identity.public_key} | changes
    head = [fields[name] for name in FIELDS]
    return pack([*head, identity.sign(signed_part(head))])
