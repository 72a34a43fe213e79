"""Real nodes of one swarm inside this process, each with its own daemon, and what passes between them.

A peer works in steps: it publishes one frame of realistic size, then looks at offers and fetches until its appetite is
met, with the functions that a running node uses. Text comes from a generator of words; no model is involved.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ftis_node.loops.sampling import fair_order
from ftis_node.swarm.dht import DhtSwarm
from ftis_node.swarm.settings import DhtOptions
from ftis_protocol.identity import Identity
from ftis_protocol.limits import MAX_SHARDS
from ftis_protocol.manifest import Sampling, SwarmManifest, TaskSpec
from ftis_protocol.presence import NodeCard
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, PolicyRef, PromptRef

POLICY = PolicyRef(model="bench", revision="", tokenizer="bench", trainable="full")
GROUP_SIZE = 8
WORDS_PER_COMPLETION = 80
SLOTS = 2


def manifest(seed: int) -> SwarmManifest:
    return SwarmManifest(
        name=f"bench {seed}",
        tasks=(TaskSpec(name="arithmetic", version=1),),
        sampling=Sampling(max_completion_tokens=256),
        shard_count=MAX_SHARDS,
        creator=bytes(32),
        created_at=1_700_000_000 + seed,
    )


def vocabulary(rng: Random, count: int = 4000) -> list[str]:
    return ["".join(rng.choices("etaoinshrdlucmfwypvbgk", k=rng.randint(2, 8))) for _ in range(count)]


@dataclass(slots=True)
class Wire:
    """Protobuf bytes of the calls one peer made, both ways. Payload is what lies under plain keys (frames, and now and
    then the manifest); control is all the rest: offers, cards, keys, neighbour lists."""

    payload: int = 0
    control: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def clear(self) -> None:
        self.payload = self.control = 0
        self.calls.clear()
        self.seconds.clear()

    def watch(self, swarm: DhtSwarm) -> None:
        p2p = swarm._dht.transport._p2p
        call = p2p.call_protobuf_handler

        async def counted(peer, name, request, output_type):
            began = time.monotonic()
            response = await call(peer, name, request, output_type)
            self.seconds.append(time.monotonic() - began)
            total = request.ByteSize() + response.ByteSize()
            carried = _payload(name, request, response)
            self.payload += carried
            self.control += total - carried
            self.calls[name.rpartition(".")[2]] += 1
            return response

        p2p.call_protobuf_handler = counted


def _payload(name, request, response) -> int:
    if name.endswith("rpc_store"):
        plain = zip(request.subkeys, request.values, strict=True)
        return sum(len(value) for subkey, value in plain if subkey == b"\xc0")
    if name.endswith("rpc_find"):
        return sum(len(result.value) for result in response.results if result.type == 1)
    return 0


@dataclass(slots=True)
class Fetched:
    """One frame on its way, seconds after `publish` was called; None where it never got there."""

    stored: float
    visible: float | None
    fetched: float | None


class Peer:
    """One member. `groups` per frame and step, `appetite` foreign groups a step."""

    def __init__(self, rules: SwarmManifest, entrances: tuple[str, ...], rng: Random, words: list[str], groups: int,
                 appetite: int, state_dir: Path | None = None) -> None:  # fmt: skip
        self.rules = rules
        options = DhtOptions(host="127.0.0.1", connect_seconds=30.0, state_dir=state_dir)
        self.swarm = DhtSwarm(Identity.create(), rules, options, entrances, rng=Random(rng.random()))
        self.wire = Wire()
        self.rng = rng
        self.published: list[bytes] = []
        self.sources: Counter[str] = Counter()
        self.missing = 0
        self.alive = True
        self._words, self._groups, self._appetite = words, groups, appetite
        self._index = 0
        self._taken: set[bytes] = set()

    async def start(self) -> None:
        await self.swarm.start()
        self.wire.watch(self.swarm)

    def slot(self) -> int:
        return int(time.time() // self.rules.slot_seconds)

    def frame(self) -> Frame:
        slot = self.slot()
        return Frame(slot=slot, policy=POLICY, groups=tuple(self._group(slot) for _ in range(self._groups)))

    def _group(self, slot: int) -> Group:
        self._index = (self._index + 1) % self.rules.slice_size
        texts = [" ".join(self.rng.choices(self._words, k=WORDS_PER_COMPLETION)) for _ in range(GROUP_SIZE)]
        completions = tuple(
            Completion(text=text, finish=Finish.STOP, reward=float(place % 2)) for place, text in enumerate(texts)
        )
        ref = PromptRef(task="arithmetic", version=1, slot=slot, index=self._index)
        return Group(prompt=ref, policy_version=0, evidence=Evidence.NONE, completions=completions)

    async def publish(self) -> tuple[bytes, bool]:
        """One frame; its digest, and whether others hold it."""
        record = await self.swarm.publish(self.frame(), tokens=[900] * self._groups)
        self.published.append(record.digest)
        return record.digest, record.stored

    async def gather(self) -> None:
        """Read offers as the exchange loop does, and fetch until the appetite is met."""
        offers = await self.swarm.offers()
        got = 0
        for offer in fair_order(offers, lambda o: o.frame.digest not in self._taken, self.rng):
            if got >= self._appetite:
                return
            if await self.swarm.fetch(offer.frame.digest) is None:
                self.missing += 1
                continue
            self._taken.add(offer.frame.digest)
            self.sources[offer.node_id] += 1
            got += len(offer.frame.groups)

    async def announce(self) -> None:
        await self.swarm.announce(NodeCard(name="bench", state="working", model="bench-model"))
        await self.swarm.peers()

    def kill(self) -> None:
        """SIGKILL to the daemon: for the others this node is gone without a word."""
        self.alive = False
        os.kill(self.swarm._dht.transport._p2p._child.pid, signal.SIGKILL)

    def daemon_kilobytes(self) -> int:
        """Resident memory of the daemon."""
        return resident_kilobytes(self.swarm._dht.transport._p2p._child.pid)

    async def close(self) -> None:
        await self.swarm.close()


def resident_kilobytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


async def follow(author: Peer, reader: Peer, patience: float) -> Fetched:
    """Publish, and let `reader` look until it has the frame."""
    began = time.monotonic()
    digest, _ = await author.publish()
    stored = time.monotonic() - began
    visible = None
    while time.monotonic() - began < patience:
        if visible is None:
            offers = await reader.swarm.offers(SLOTS, limit=10_000)
            if any(offer.frame.digest == digest for offer in offers):
                visible = time.monotonic() - began
        if visible is not None and await reader.swarm.fetch(digest) is not None:
            return Fetched(stored, visible, time.monotonic() - began)
        await asyncio.sleep(0.05)
    return Fetched(stored, visible, None)
