"""How a node shows itself: a card while it is there, a departure when it leaves, and offers of what it sampled."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ftis_protocol import limits
from ftis_protocol.errors import Reason
from ftis_protocol.fields import Address, Count, Fingerprint, Label, ModelName, NodeId, Record, TaskName, refusal


class PeerTally(Record):
    """How many groups of one peer this node accepted, and how many broke a promise."""

    accepted: Count
    refused: Count


class NodeCard(Record):
    """Who a node is and how it is doing. Everything here is its own claim; nobody else depends on it.

    `parameters` counts weights, `tokens_per_second` is generation speed, `pass_at_1` the share of held-out items
    answered right greedily (None before the first probe), `peers` its own tally of others by node id. A seed or an
    observer has no model and leaves those fields at their defaults.
    """

    name: Annotated[Label, Field(min_length=1, max_length=limits.MAX_NODE_NAME)]
    role: Literal["node", "seed", "observer"] = "node"
    state: Annotated[Label, Field(max_length=limits.MAX_STATE)]
    model: ModelName = ""
    parameters: Count = 0
    tokenizer: Fingerprint = ""
    trainable: Literal["full", "lora"] = "full"
    policy_version: Count = 0
    tokens_per_second: Annotated[float, Field(ge=0)] = 0.0
    groups_published: Count = 0
    groups_used: Count = 0
    pass_at_1: Annotated[float, Field(ge=0, le=1)] | None = None
    peers: dict[NodeId, PeerTally] = Field(default_factory=dict, max_length=limits.MAX_CARD_PEERS)
    addresses: Annotated[tuple[Address, ...], Field(max_length=limits.MAX_CARD_ADDRESSES)] = ()
    software: Annotated[Label, Field(max_length=limits.MAX_SOFTWARE)] = ""


class Departure(Record):
    """A clean leave: takes the place of the node's card until that would have expired."""

    reason: Annotated[Label, Field(max_length=limits.MAX_REASON_TEXT)] = ""


class OfferedGroup(Record):
    """One group inside an offered frame: `right` of its `size` completions were right; `tokens` is their total length
    in the author's tokens."""

    task: TaskName
    version: Count
    right: Count
    size: Annotated[int, Field(ge=limits.MIN_GROUP_SIZE, le=limits.MAX_GROUP_SIZE)]
    tokens: Count

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.right > self.size:
            raise refusal(Reason.SCHEMA, f"{self.right} right completions in a group of {self.size}")
        return self


class OfferedFrame(Record):
    """A frame that can be fetched under `digest`, the BLAKE2b-32 hash of its `size_bytes` sealed bytes."""

    digest: Annotated[bytes, Field(min_length=32, max_length=32)]
    size_bytes: Annotated[int, Field(ge=1, le=limits.MAX_FRAME_BYTES)]
    policy_version: Count
    groups: Annotated[tuple[OfferedGroup, ...], Field(min_length=1, max_length=limits.MAX_FRAME_GROUPS)]


class Offer(Record):
    """All frames that one node published in one slot."""

    slot: Count
    frames: Annotated[tuple[OfferedFrame, ...], Field(max_length=limits.MAX_OFFER_FRAMES)]
