"""What the store gives back: one frozen record per kind of row. Times are Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Fact(StrEnum):
    """Keys of the facts that other programs (`status`, the page) read; see `Store.set_facts`.

    STATE is a word of the node's life cycle, STEP the optimiser step, PEERS the valid cards of others, ALONE_SINCE the
    Unix time at which the last of them was lost, or None. STARTED_AT is the start of the process that wrote them: while
    another one holds the lock, they are those of its predecessor. STATE_SINCE and STATE_WHY belong to STATE. BEAT_AT is
    the last sign of life of the process, PARTS what `supervision.Parts.snapshot` says, ACCEPTED_AT the Unix time at
    which the last group of another node was accepted, USED_AT at which one moved weights. SAVED_STEP is the step of the
    newest checkpoint, PAUSED who paused the node (None: nobody), OPINIONS node id -> "trust" or "block".
    """

    STATE = "state"
    STATE_SINCE = "state_since"
    STATE_WHY = "state_why"
    BEAT_AT = "beat_at"
    PARTS = "parts"
    ACCEPTED_AT = "accepted_at"
    USED_AT = "used_at"
    SAVED_STEP = "saved_step"
    PAUSED = "paused"
    OPINIONS = "opinions"
    STEP = "step"
    POLICY_VERSION = "policy_version"
    NODE_ID = "node_id"
    NODE_NAME = "name"
    MODEL = "model"
    SWARM_NAME = "swarm_name"
    PEERS = "peers"
    ALONE_SINCE = "alone_since"
    STARTED_AT = "started_at"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened; `level` is debug, info, warning or error."""

    ts: float
    level: str
    kind: str
    text: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric series."""

    ts: float
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """A judgement on one group; `used_step` is the optimiser step it trained in, or None."""

    ts: float
    digest: bytes
    author: str
    task: str
    verdict: str
    reason: str
    used_step: int | None


@dataclass(frozen=True, slots=True)
class PeerRow:
    """What this node knows of a peer; `accepted`, `refused` and `used` count groups."""

    node_id: str
    name: str
    model: str
    addresses: tuple[str, ...]
    accepted: int
    refused: int
    used: int
    first_seen: float
    last_seen: float
