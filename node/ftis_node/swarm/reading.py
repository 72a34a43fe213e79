"""Opening what a board returns. Everything here raises `ProtocolError` for a record that must not be believed."""

from __future__ import annotations

from dataclasses import dataclass

from ftis_node.swarm.shards import homes
from ftis_protocol.envelope import Kind, Opened, open_envelope
from ftis_protocol.errors import ManifestError, Reason, WireError
from ftis_protocol.limits import CARD_LIFETIME_SECONDS, MAX_CLOCK_SKEW_SECONDS, OFFER_LIFETIME_SECONDS
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.presence import Departure, NodeCard, Offer

# An envelope tells whole seconds, cut off.
ISSUED_AT_GRAIN = 1


@dataclass(frozen=True, slots=True)
class Presence:
    """A checked card or departure."""

    message: NodeCard | Departure
    sequence: int
    issued_at: int


def read_presence(data: bytes, manifest: SwarmManifest, node_id: str, shard: int, now: float) -> Presence:
    """Open the entry of `node_id` in a presence dictionary."""
    opened = open_envelope(data, swarm_id=manifest.swarm_id, kinds=frozenset({Kind.CARD, Kind.DEPARTURE}))
    _check_place(opened, manifest, node_id, shard)
    _check_age(opened, CARD_LIFETIME_SECONDS, now)
    assert isinstance(opened.message, NodeCard | Departure)
    return Presence(opened.message, opened.sequence, opened.issued_at)


def read_offer(data: bytes, manifest: SwarmManifest, node_id: str, shard: int, slot: int, now: float) -> Offer:
    """Open the entry of `node_id` in the offers dictionary of `slot`."""
    opened = open_envelope(data, swarm_id=manifest.swarm_id, kinds=frozenset({Kind.OFFER}))
    _check_place(opened, manifest, node_id, shard)
    _check_age(opened, OFFER_LIFETIME_SECONDS, now)
    assert isinstance(opened.message, Offer)
    if opened.message.slot != slot:
        raise WireError(Reason.SLOT, f"an offer of slot {opened.message.slot} filed under {slot}")
    return opened.message


def read_manifest(data: bytes, swarm_id: str | None) -> SwarmManifest:
    """Open a manifest; `swarm_id` None accepts whichever it names. Its content always hashes to its id."""
    opened = open_envelope(data, swarm_id=swarm_id, kinds=frozenset({Kind.MANIFEST}))
    if not isinstance(opened.message, SwarmManifest):
        raise ManifestError("not a manifest", "Ask for the invite again.")
    return opened.message


def _check_place(opened: Opened, manifest: SwarmManifest, node_id: str, shard: int) -> None:
    if opened.sender != node_id:
        raise WireError(Reason.SIGNATURE, f"filed under {node_id}, signed by {opened.sender}")
    if shard not in homes(node_id, manifest.shard_count):
        raise WireError(Reason.KIND, f"node {node_id} does not belong into shard {shard}")


def _check_age(opened: Opened, lifetime_seconds: int, now: float) -> None:
    if opened.issued_at > now + MAX_CLOCK_SKEW_SECONDS:
        raise WireError(Reason.FUTURE)
    if opened.issued_at + lifetime_seconds + MAX_CLOCK_SKEW_SECONDS + ISSUED_AT_GRAIN < now:
        raise WireError(Reason.EXPIRED)
