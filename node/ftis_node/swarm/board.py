"""The board under a swarm: expiring values under string keys, some of them dictionaries with one entry per node.

Two boards exist: one in memory (`memory`) and one on a distributed hash table (`dht`). Both promise the same: a value
is found until `expires_at` at most, an entry is replaced only by one that expires later, and every storing node
applies `rules.RecordRules` before it accepts anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


class BoardSilent(Exception):
    """The board did not answer within the deadline, or its transport is dead. Counted by the swarm, never a user's."""


@dataclass(frozen=True, slots=True)
class Write:
    """One value to store. `subkey` names the entry of a dictionary, None for a plain value; `expires_at` Unix time."""

    key: str
    value: bytes
    expires_at: float
    subkey: str | None = None


class Board(ABC):
    """Storage shared by the nodes of one or more swarms. Every method raises `BoardSilent` and nothing else."""

    @property
    @abstractmethod
    def addresses(self) -> tuple[str, ...]:
        """Where this node's part of the board can be reached."""

    @property
    @abstractmethod
    def connections(self) -> int:
        """Other nodes in reach."""

    @property
    @abstractmethod
    def size(self) -> float:
        """Nodes on the board, this one included; an estimate where nobody can count them. Costs nothing."""

    @abstractmethod
    async def put(self, write: Write) -> bool:
        """Store one value; True when at least one node holds it now."""

    @abstractmethod
    async def dictionaries(self, keys: Sequence[str]) -> dict[str, dict[str, bytes]]:
        """The unexpired entries under each key that has any, by subkey."""

    @abstractmethod
    async def value(self, key: str) -> bytes | None:
        """The plain value under `key`."""

    @abstractmethod
    async def vanished(self, write: Write) -> bool:
        """True when other nodes are in reach and the one responsible for what was written does not have it."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything; safe to call twice."""
