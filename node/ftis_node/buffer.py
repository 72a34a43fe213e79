"""The two sides of a batch: own groups in the order they were sampled, foreign groups drawn at random.

Own groups are few and fresh: the rollout loop samples what the train loop asks for. Foreign groups wait in a pool that
is bounded in bytes, age and policy lag; which of them train is a random choice among all that are admissible, never
first come first served, and one peer cannot fill the foreign part of a batch.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from ftis_node.clock import Clock
from ftis_node.records import Origin, TrainGroup

#: what a pooled token costs here: its id, its text and the tuple slots around them
BYTES_PER_TOKEN = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much foreign data may wait, and for how long. `max_lag` counts the sender's own optimiser steps."""

    max_bytes: int
    max_age_seconds: float
    max_lag: int


def peer_cap(foreign_places: int, peers: int) -> int:
    """Groups one peer may give to the `foreign_places` of a batch: a share of max(1/8, 1/peers), never below one."""
    return max(1, math.floor(foreign_places * max(1 / 8, 1 / max(peers, 1)) + 1e-9))


def foreign_places(groups_per_step: int, own_share: float) -> int:
    """Foreign groups that may sit in a batch of `groups_per_step`, so that own ones are at least `own_share` of it."""
    return math.floor(groups_per_step * (1 - own_share) + 1e-9)


class OwnSide:
    """Groups sampled here, first in first out, sampled only on demand.

    The train loop asks for as many as its batch lacks after the foreign draw, so own text is as fresh as the weights
    allow; `ahead` lets the rollout loop work that many groups in advance of any demand.
    """

    def __init__(self, ahead: int = 0) -> None:
        self._wanted = asyncio.Semaphore(ahead)
        self._groups: asyncio.Queue[TrainGroup] = asyncio.Queue()

    def ask(self, count: int) -> None:
        """The train loop wants `count` more groups."""
        for _ in range(count):
            self._wanted.release()

    async def wanted(self) -> int:
        """Wait until at least one group is wanted; returns how many are, and counts them as promised."""
        await self._wanted.acquire()
        count = 1
        while not self._wanted.locked():
            await self._wanted.acquire()
            count += 1
        return count

    def put(self, group: TrainGroup) -> None:
        assert group.origin is Origin.OWN
        self._groups.put_nowait(group)

    async def take(self, count: int) -> tuple[TrainGroup, ...]:
        """The oldest `count` groups; waits until there are as many."""
        return tuple([await self._groups.get() for _ in range(count)])

    def __len__(self) -> int:
        return self._groups.qsize()


class ForeignSide:
    """Admitted groups of peers, each drawn at most once."""

    def __init__(self, bounds: Bounds, clock: Clock) -> None:
        self._bounds = bounds
        self._clock = clock
        self._groups: deque[TrainGroup] = deque()
        self._bytes = 0
        self.dropped: Counter[str] = Counter()

    def add(self, group: TrainGroup) -> None:
        """Take one group in; the oldest ones leave when the pool is over its bytes."""
        assert group.origin is Origin.FOREIGN
        self._groups.append(group)
        self._bytes += size_bytes(group)
        while self._bytes > self._bounds.max_bytes and self._groups:
            self._drop(self._groups[0], "over_bytes")

    def draw(
        self, places: int, rng: random.Random, wanted: Callable[[TrainGroup], bool] = lambda _: True
    ) -> tuple[TrainGroup, ...]:
        """Up to `places` of the `wanted` groups, chosen at random under the cap of each peer, and removed from the
        pool. The others wait on."""
        self.expire()
        candidates = [group for group in self._groups if wanted(group)]
        rng.shuffle(candidates)
        cap = peer_cap(places, len({g.author for g in candidates}))
        taken: list[TrainGroup] = []
        per_peer: Counter[str] = Counter()
        for group in candidates:
            if len(taken) == places:
                break
            if per_peer[group.author] < cap:
                per_peer[group.author] += 1
                taken.append(group)
        for group in taken:
            self._remove(group)
        return tuple(taken)

    def expire(self) -> None:
        """Drop what is too old or too many optimiser steps behind the newest of its author that waits here.

        Compared with the pool, not with all history: a peer that began again at version 0 is not locked out.
        """
        oldest = self._clock.now() - self._bounds.max_age_seconds
        newest: dict[str, int] = {}
        for group in self._groups:
            newest[group.author] = max(group.policy_version, newest.get(group.author, 0))
        for group in list(self._groups):
            if group.created_at < oldest:
                self._drop(group, "age")
            elif newest[group.author] - group.policy_version > self._bounds.max_lag:
                self._drop(group, "lag")

    def _drop(self, group: TrainGroup, why: str) -> None:
        self._remove(group)
        self.dropped[why] += 1

    def _remove(self, group: TrainGroup) -> None:
        self._groups.remove(group)
        self._bytes -= size_bytes(group)

    @property
    def waiting(self) -> tuple[TrainGroup, ...]:
        """All groups in the pool, in the order they came."""
        return tuple(self._groups)

    @property
    def authors(self) -> frozenset[str]:
        return frozenset(g.author for g in self._groups)

    @property
    def bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._groups)


def size_bytes(group: TrainGroup) -> int:
    """An upper estimate of the memory that a pooled group holds."""
    tokens = len(group.prompt_ids) + group.token_count
    return tokens * BYTES_PER_TOKEN + sum(len(c.text) for c in group.completions)
