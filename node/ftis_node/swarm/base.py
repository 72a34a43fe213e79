"""What the rest of a node sees of the swarm: a few frozen records and the `Swarm` interface.

A swarm is an eventually consistent board: what a node published is found by others a moment later, or not at all when
too many storing nodes vanish. Nothing that a peer does raises here. Records that break the rules are left out and
counted by reason in `Swarm.refused`, what a limit on the flow held back in `Swarm.limited`; a silent network shows in
`Swarm.health`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ftis_node.swarm.flow import Limit
from ftis_protocol.errors import Reason
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.presence import NodeCard, OfferedFrame, OfferedGroup
from ftis_protocol.rollout import Frame

DEFAULT_OFFER_SLOTS = 4
DEFAULT_OFFER_LIMIT = 256


@dataclass(frozen=True, slots=True)
class PeerCard:
    """The newest card of one living peer. `issued_at` and `age` in seconds, `issued_at` by the peer's own clock."""

    node_id: str
    card: NodeCard
    issued_at: float
    sequence: int
    age: float


@dataclass(frozen=True, slots=True)
class PeerOffer:
    """One frame that a peer offers in `slot`; its digest is the argument of `Swarm.fetch`."""

    node_id: str
    slot: int
    frame: OfferedFrame


@dataclass(frozen=True, slots=True)
class Published:
    """What one `Swarm.publish` put out. `stored` is False while no storing node has confirmed the body or the offer;
    the frame is then tried again by `Swarm.renew`."""

    digest: bytes
    body_bytes: int
    offer_bytes: int
    groups: tuple[OfferedGroup, ...]
    stored: bool = True


@dataclass(slots=True)
class Traffic:
    """Bytes of record payload this node read and wrote, by kind ("card", "offer", "body", "manifest"). A record counts
    once, however many nodes store it."""

    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)

    @property
    def total_read(self) -> int:
        return self.read.total()

    @property
    def total_written(self) -> int:
        return self.written.total()


class Reach(StrEnum):
    """How strangers get to this node: they dial it; only nodes of its private network can dial it; nobody can, it opens
    every connection itself and publishes through the nodes at the other end."""

    LISTENING = "listening"
    PRIVATE = "private"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Health:
    """How well connected the node is right now; times in seconds.

    `known_peers` counts living peers by their cards, `connections` the nodes of the routing table. `alone_for` is None
    while somebody is there. `restarts` counts rebuilt transports, `failures` calls that the network did not answer.
    """

    known_peers: int
    connections: int
    last_success_age: float | None
    alone_for: float | None
    restarts: int = 0
    failures: int = 0
    reach: Reach = Reach.LISTENING


class Swarm(ABC):
    """One node's membership in one swarm. All methods belong to one asyncio loop.

    Errors: `SwarmUnreachable` and `UsageError` from `start` only; `ProtocolError` from `publish` and `announce` when
    the caller's own message breaks a limit. Everything else is counted, not raised.
    """

    refused: Counter[Reason]
    limited: Counter[Limit]
    traffic: Traffic

    @property
    @abstractmethod
    def manifest(self) -> SwarmManifest:
        """The agreement of this swarm."""

    @property
    def swarm_id(self) -> str:
        return self.manifest.swarm_id

    @property
    @abstractmethod
    def node_id(self) -> str:
        """This node's own id."""

    @property
    @abstractmethod
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs under which others may reach this node, best first; empty while unknown."""

    @property
    @abstractmethod
    def health(self) -> Health:
        """A snapshot; costs nothing."""

    @abstractmethod
    async def start(self) -> None:
        """Join. Raises `SwarmUnreachable` when addresses were given and none answered, `UsageError` when the node's
        own set-up cannot work (port taken, identity in use, clock wrong)."""

    @abstractmethod
    async def announce(self, card: NodeCard) -> bool:
        """Tell the swarm that this node is alive; to be repeated every CARD_RENEW_SECONDS. A card without addresses
        gets this node's. Also keeps the manifest findable. True when at least one node stored it."""

    @abstractmethod
    async def depart(self, reason: str) -> None:
        """Say good-bye: others drop this node at once instead of after the card's lifetime."""

    @abstractmethod
    async def peers(self) -> tuple[PeerCard, ...]:
        """The living peers met in the last minute, this node excluded, ordered by node id. Each call looks into a
        bounded number of dictionaries; in a swarm of more than about thirty nodes that is a random sample."""

    @abstractmethod
    async def publish(self, frame: Frame, *, tokens: Sequence[int] | None = None) -> Published:
        """Seal and store a frame, then offer it together with the slot's earlier frames. `tokens` are the completion
        tokens of each group, for the offer; left out, they are counted or estimated from the texts. Raises
        `ProtocolError` (SIZE) for a frame above the limit, before anything left this node: split it."""

    @abstractmethod
    async def offers(
        self, slots: int = DEFAULT_OFFER_SLOTS, *, limit: int = DEFAULT_OFFER_LIMIT
    ) -> tuple[PeerOffer, ...]:
        """A random sample, at most `limit`, of what peers offer in the newest `slots` slots (the running one included);
        the newer slots come first in a swarm too large to look everywhere. The same offer returns in later calls until
        it expires."""

    @abstractmethod
    async def fetch(self, digest: bytes) -> bytes | None:
        """The sealed bytes of a frame, their hash checked and nothing else; None when nobody has them."""

    @abstractmethod
    async def renew(self) -> int:
        """Store again what this node published and others lost, frames and offers, within their lifetime. Returns how
        many records."""

    async def restart(self) -> None:
        """Rebuild the transport with every address ever seen; a swarm without a transport has nothing to do."""
        return

    async def watch(self) -> None:
        """Guard the transport until cancelled: restart it when it died, look for peers while alone."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Release everything; safe to call twice and on a swarm that never started."""
