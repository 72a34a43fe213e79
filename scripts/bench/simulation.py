"""A swarm of simulated nodes that decide as real ones do.

Imported from the node, not rewritten: where a node files itself, which dictionaries a reader opens, in which order it
takes offers, when it asks again, how much a slot may carry. Modelled: the network. A call takes a time drawn from a
log-normal distribution with the median and the 99th percentile of real calls; a search visits NEAR nodes, four at a
time, and one more round of four for each doubling of the network beyond the twenty that everybody knows; nodes estimate
the network's size with the error of an estimate from twenty neighbours; they leave for ever after an exponential time,
without a word, and others take their places.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from math import ceil, exp, log, log2, sqrt
from random import Random

from ftis_node.loops.pacing import Pace
from ftis_node.loops.retries import Retries
from ftis_node.loops.sampling import fair_order
from ftis_node.swarm.base import DEFAULT_OFFER_SLOTS, PeerOffer
from ftis_node.swarm.dht_board import NEAR, READERS, ROUTE_SECONDS
from ftis_node.swarm.member import MAX_OFFER_KEYS, MAX_PRESENCE_KEYS
from ftis_node.swarm.shards import places_to_read, shard_count_for, shards_to_read
from ftis_node.swarm.transport import NEIGHBOURS, REPLICAS
from ftis_protocol.keys import shard_of
from ftis_protocol.limits import MAX_SHARDS
from ftis_protocol.presence import OfferedFrame, OfferedGroup

SLOT_SECONDS = 30
WORKERS = 4
WARM_UP_STEPS = 2
GROUP = OfferedGroup(task="arithmetic", version=1, right=4, size=8, tokens=900)
# Bytes of protobuf messages, request and answer, as counted in real runs: what every call has, one neighbour in the
# answer to a search, and sealed records.
CALL_BYTES, NEIGHBOUR_BYTES, CARD_BYTES, OFFER_BYTES = 130, 58, 380, 340


@dataclass(frozen=True, slots=True)
class World:
    """`lifetime_seconds`: mean time from a node's arrival to its death. `call_*`: seconds of one call. `followed`: each
    frame has a reader who waits for it, as in the bench of real peers, and whose bytes count."""

    nodes: int
    steps: int = 6
    step_seconds: float = 20.0
    groups: int = 4
    appetite: int = 8
    lifetime_seconds: float = 3600.0
    call_p50: float = 0.005
    call_p99: float = 0.05
    seed: int = 0
    frame_bytes: float = 10_500
    followed: bool = False


@dataclass(slots=True)
class Member:
    name: str
    estimate: float
    retries: Retries = field(default_factory=Retries)
    pace: Pace = field(default_factory=lambda: Pace(SLOT_SECONDS, 256))
    taken: set[bytes] = field(default_factory=set)
    routes: dict[object, float] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    payload: float = 0.0
    control: float = 0.0
    steps: int = 0
    published: int = 0
    missing: int = 0
    lost: int = 0
    hungry: int = 0
    directed: list[float] = field(default_factory=list)
    sated: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)


class Simulation:
    def __init__(self, world: World) -> None:
        self.world, self.rng, self.tally = world, Random(world.seed), Tally()
        self.members = [self._member(n) for n in range(world.nodes)]
        self.born = world.nodes
        self.offers: dict[tuple[int, int], dict[str, list[tuple[float, PeerOffer]]]] = defaultdict(dict)
        self.bodies: dict[bytes, tuple[float, list[int], int]] = {}
        self.cards: Counter[int] = Counter()
        self.generation = [0] * world.nodes
        self._sigma = log(world.call_p99 / world.call_p50) / 2.326
        self._extra_rounds = max(0.0, log2(world.nodes / NEIGHBOURS))

    def _member(self, number: int) -> Member:
        count = self.world.nodes
        error = exp(self.rng.gauss(0, 1 / sqrt(NEIGHBOURS))) if count > NEIGHBOURS else 1.0
        return Member(f"node {number}", count * error)

    # -- the modelled network --
    def _call(self) -> float:
        return self.world.call_p50 * exp(self.rng.gauss(0, self._sigma))

    def _round(self, calls: int) -> float:
        return max(self._call() for _ in range(calls))

    def _call_bytes(self) -> float:
        return CALL_BYTES + NEIGHBOUR_BYTES * min(self.world.nodes - 1, NEIGHBOURS)

    def _search(self, member: Member, key: object, now: float) -> float:
        """Seconds to find the nodes near a key; nothing while the way is remembered."""
        if now - member.routes.get(key, -1e9) <= ROUTE_SECONDS:
            return 0.0
        member.routes[key] = now
        visits = min(NEAR, self.world.nodes - 1) + WORKERS * self._extra_rounds
        self.tally.control += visits * self._call_bytes()
        return sum(self._round(WORKERS) for _ in range(ceil(visits / WORKERS)))

    def _remote(self, copies: int) -> float:
        """How many of `copies` are at other nodes."""
        return copies * (1 - 1 / max(self.world.nodes, copies))

    def _store(self, size: float, *, payload: bool) -> float:
        copies = self._remote(min(REPLICAS, self.world.nodes))
        self.tally.control += copies * (CALL_BYTES + (0 if payload else size))
        self.tally.payload += copies * size if payload else 0.0
        return self._round(REPLICAS)

    def _read(self, member: Member, key: object, entries: int, entry_bytes: float, now: float) -> float:
        seconds = self._search(member, key, now)
        self.tally.control += min(READERS, self.world.nodes - 1) * (self._call_bytes() + entries * entry_bytes)
        return seconds + self._round(READERS)

    # -- one node's step, with the node's own functions --
    def step(self, place: int, now: float) -> None:
        member, world = self.members[place], self.world
        self.tally.steps += 1
        now = self._announce(member, now)
        now = self._publish(place, member, now)
        slot = int(now // SLOT_SECONDS)
        shards = shards_to_read(member.estimate, MAX_SHARDS)
        began, reads, got, found = now, [], 0, []
        for key in places_to_read(slot, DEFAULT_OFFER_SLOTS, shards, MAX_OFFER_KEYS, self.rng):
            entries = self.offers.get(key, {})
            reads.append(self._read(member, key, len(entries), OFFER_BYTES, now))
            found += [offer for author in entries.values() for at, offer in author if at <= now]
        now += max(reads)

        def wanted(offer: PeerOffer) -> bool:
            digest = offer.frame.digest
            return offer.node_id != member.name and digest not in member.taken and member.retries.due(digest, now)

        for offer in fair_order(found, wanted, self.rng):
            if got >= world.appetite:
                break
            now += self._fetch(member, offer, now)
            got += len(offer.frame.groups) * (offer.frame.digest in member.taken)
        self.tally.hungry += got < world.appetite
        if got >= world.appetite:
            self.tally.sated.append(now - began)

    def _announce(self, member: Member, now: float) -> float:
        shard = shard_of(member.name, shard_count_for(member.estimate, MAX_SHARDS))
        now += self._search(member, ("presence", shard), now) + self._store(CARD_BYTES, payload=False)
        shards = shards_to_read(member.estimate, MAX_SHARDS)
        chosen = self.rng.sample(shards, min(len(shards), MAX_PRESENCE_KEYS))
        there = self.world.nodes / shard_count_for(self.world.nodes, MAX_SHARDS)
        return now + max(self._read(member, ("presence", s), round(there), CARD_BYTES, now) for s in chosen)

    def _publish(self, place: int, member: Member, now: float) -> float:
        began, slot = now, int(now // SLOT_SECONDS)
        if member.pace.groups_allowed(now) < self.world.groups or member.pace.wait_seconds(now):
            return now
        member.pace.sent(now, self.world.groups, 1)
        digest = blake2b(f"{member.name}/{now}".encode(), digest_size=32).digest()
        now += self._search(member, digest, now) + self._store(self.world.frame_bytes, payload=True)
        shard = shard_of(member.name, shard_count_for(member.estimate, MAX_SHARDS))
        now += self._search(member, (shard, slot), now) + self._store(OFFER_BYTES, payload=False)
        frame = OfferedFrame(
            digest=digest, size_bytes=int(self.world.frame_bytes), policy_version=0, groups=(GROUP,) * self.world.groups
        )
        self.offers[shard, slot].setdefault(member.name, []).append((now, PeerOffer(member.name, slot, frame)))
        holders = [self.rng.randrange(self.world.nodes) for _ in range(REPLICAS)]
        self.bodies[digest] = (began, [h * 1_000_000 + self.generation[h] for h in holders], place)
        self.tally.published += 1
        reader = Member("reader", member.estimate)
        look = self._peek(reader, (shard, slot), now) + self._peek(reader, digest, now)
        self.tally.directed.append(now - began + look)
        return now

    def _peek(self, reader: Member, key: object, now: float) -> float:
        """How long a search and an answer take. The bytes count only where the reader is part of the load."""
        control, payload = self.tally.control, self.tally.payload
        seconds = self._search(reader, key, now) + self._round(READERS)
        if not self.world.followed:
            self.tally.control, self.tally.payload = control, payload
        elif isinstance(key, bytes):
            self.tally.payload += self.world.frame_bytes * (1 - min(1.0, REPLICAS / self.world.nodes))
        return seconds

    def _fetch(self, member: Member, offer: PeerOffer, now: float) -> float:
        digest = offer.frame.digest
        began, holders, author = self.bodies[digest]
        living = [h for h in holders if self.generation[h // 1_000_000] == h % 1_000_000]
        seconds = self._call() * (1 + self._extra_rounds)
        self.tally.control += (1 + self._extra_rounds) * self._call_bytes()
        if not living and self.members[author].name == offer.node_id and now - began > 60:
            living = [author * 1_000_000 + self.generation[author]]  # its author stored it again
        if not living:
            self.tally.missing += 1
            self.tally.lost += member.retries.missed(digest, now)
            return seconds
        self.tally.payload += self.world.frame_bytes * (1 - min(1.0, REPLICAS / self.world.nodes))
        member.taken.add(digest)
        self.tally.sources[offer.node_id] += 1
        self.tally.ages.append(now - began)
        return seconds

    def _die(self, place: int) -> None:
        """A node is gone and another begins in its place, knowing nothing."""
        self.generation[place] += 1
        self.members[place], self.born = self._member(self.born), self.born + 1

    def run(self) -> dict:
        world, began = self.world, time.monotonic()
        events = [(SLOT_SECONDS + self.rng.uniform(0, world.step_seconds), 0, n) for n in range(world.nodes)]
        events += [(SLOT_SECONDS + self.rng.expovariate(1 / world.lifetime_seconds), 1, n) for n in range(world.nodes)]
        heapq.heapify(events)
        warm = SLOT_SECONDS + WARM_UP_STEPS * world.step_seconds
        end = warm + world.steps * world.step_seconds
        while events and events[0][0] < end:
            now, death, place = heapq.heappop(events)
            if now >= warm and warm > 0:
                self.tally, warm = Tally(), 0.0
            if death:
                self._die(place)
                heapq.heappush(events, (now + self.rng.expovariate(1 / world.lifetime_seconds), 1, place))
            else:
                self.step(place, now)
                heapq.heappush(events, (now + world.step_seconds, 0, place))
        return {**self._summary(), "wall_seconds": round(time.monotonic() - began, 1)}

    def _summary(self) -> dict:
        tally = self.tally
        counts = list(tally.sources.values()) + [0] * max(0, self.world.nodes - len(tally.sources))
        return {
            "world": asdict(self.world),
            "payload_bytes_per_node_step": tally.payload / tally.steps,
            "control_bytes_per_node_step": tally.control / tally.steps,
            "directed_p50": _percentile(tally.directed, 0.5),
            "directed_p99": _percentile(tally.directed, 0.99),
            "sated_p50": _percentile(tally.sated, 0.5),
            "age_p50": _percentile(tally.ages, 0.5),
            "hungry_share": tally.hungry / tally.steps,
            "missing_share": tally.missing / max(1, tally.missing + len(tally.ages)),
            "jain_fairness": sum(counts) ** 2 / (len(counts) * sum(c * c for c in counts)),
        }


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else float("nan")
