"""A swarm without a network: nodes of one process that share a board. For the lab and for tests.

It applies the same rules, limits and expiry as the distributed one, under a clock of the caller's choice, and it can
lose things on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ftis_node.clock import Clock, WallClock
from ftis_node.swarm.board import Board, BoardSilent, Write
from ftis_node.swarm.member import BoardSwarm
from ftis_node.swarm.rules import RecordRules
from ftis_protocol.errors import Reason
from ftis_protocol.identity import Identity
from ftis_protocol.keys import body_key
from ftis_protocol.manifest import SwarmManifest


@dataclass(frozen=True, slots=True)
class _Held:
    value: bytes
    expires_at: float


class MemoryNetwork:
    """The board itself. Any number of swarms may live on it; nodes join by being given it.

    Faults: `cut` makes the network silent for one node, `forget` loses a stored frame, `place` puts a record down
    without asking the rules, as a lying storing node would.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or WallClock()
        self.rules = RecordRules(str.encode, None, self.clock)
        self._held: dict[tuple[str, str | None], _Held] = {}
        self._members: dict[str, int] = {}
        self._cut: set[str] = set()

    @property
    def refused(self) -> Counter[Reason]:
        """What the rules kept out, by reason."""
        return self.rules.refused

    def cut(self, node_id: str) -> None:
        """From now on nothing reaches this node and nothing leaves it."""
        self._cut.add(node_id)

    def heal(self, node_id: str) -> None:
        """Undo `cut`."""
        self._cut.discard(node_id)

    def forget(self, digest: bytes) -> bool:
        """Lose the body of a frame; True when it was there."""
        return self._held.pop((body_key(digest), None), None) is not None

    def forget_entry(self, key: str, subkey: str) -> bool:
        """Lose one entry of a dictionary; True when it was there."""
        return self._held.pop((key, subkey), None) is not None

    def place(self, write: Write) -> None:
        """Store a record unchecked."""
        self._held[write.key, write.subkey] = _Held(write.value, write.expires_at)

    def store(self, write: Write) -> bool:
        """Store a record as a storing node does: by the rules, and only with a later expiry than the present one."""
        self._expire()
        if write.expires_at <= self.clock.now():
            return False
        if not self.rules.accepts(write.key.encode(), write.subkey, write.value, write.expires_at):
            return False
        present = self._held.get((write.key, write.subkey))
        if present is not None and present.expires_at >= write.expires_at:
            return False
        self.place(write)
        return True

    def entries(self, key: str) -> dict[str, bytes]:
        """The dictionary under `key`."""
        self._expire()
        return {sub: held.value for (k, sub), held in self._held.items() if k == key and sub is not None}

    def value(self, key: str) -> bytes | None:
        """The plain value under `key`."""
        self._expire()
        held = self._held.get((key, None))
        return held.value if held is not None else None

    def join(self, node_id: str) -> None:
        self._members[node_id] = self._members.get(node_id, 0) + 1

    def leave(self, node_id: str) -> None:
        self._members[node_id] -= 1
        if not self._members[node_id]:
            del self._members[node_id]

    def neighbours(self, node_id: str) -> int:
        """Other nodes that `node_id` can reach."""
        if node_id in self._cut:
            return 0
        return len(self._members.keys() - self._cut - {node_id})

    def reachable(self, node_id: str) -> bool:
        return node_id not in self._cut

    def _expire(self) -> None:
        now = self.clock.now()
        self._held = {place: held for place, held in self._held.items() if held.expires_at > now}


class MemoryBoard(Board):
    """One node's access to a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, node_id: str) -> None:
        self._network = network
        self._node_id = node_id
        self._joined = False

    def join(self) -> None:
        """Become a member; a second call changes nothing."""
        if not self._joined:
            self._network.join(self._node_id)
            self._joined = True

    @property
    def addresses(self) -> tuple[str, ...]:
        return (f"/memory/{self._node_id}",)

    @property
    def connections(self) -> int:
        return self._network.neighbours(self._node_id)

    @property
    def size(self) -> float:
        return self.connections + 1

    def _answer(self) -> MemoryNetwork:
        if not self._network.reachable(self._node_id):
            raise BoardSilent("cut off")
        return self._network

    async def put(self, write: Write) -> bool:
        return self._answer().store(write)

    async def dictionaries(self, keys: Sequence[str]) -> dict[str, dict[str, bytes]]:
        network = self._answer()
        found = {key: network.entries(key) for key in keys}
        return {key: entries for key, entries in found.items() if entries}

    async def value(self, key: str) -> bytes | None:
        return self._answer().value(key)

    async def vanished(self, write: Write) -> bool:
        network = self._answer()
        if write.subkey is None:
            return network.value(write.key) is None
        return network.entries(write.key).get(write.subkey) != write.value

    async def close(self) -> None:
        if self._joined:
            self._network.leave(self._node_id)
            self._joined = False


class MemorySwarm(BoardSwarm):
    """`Swarm` on a shared `MemoryNetwork`; `identity` and `manifest` as in a real one."""

    def __init__(
        self, network: MemoryNetwork, identity: Identity, manifest: SwarmManifest, *, rng: Random | None = None
    ) -> None:
        self._member = MemoryBoard(network, identity.node_id)
        super().__init__(self._member, identity, manifest, clock=network.clock, rng=rng)

    async def start(self) -> None:
        self._member.join()
        await super().start()
