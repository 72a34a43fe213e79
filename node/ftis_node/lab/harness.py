"""Several nodes in one process, in lock step over the memory swarm: real models, real tasks, no network, no waiting.

What comes out of a run depends on its seeds alone, so tests, the ablation and the benches build on it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftis_node.app import Node, build
from ftis_node.clock import StepClock
from ftis_node.config import NodeConfig
from ftis_node.learner import Places
from ftis_node.store import Store
from ftis_node.swarm.memory import MemoryNetwork, MemorySwarm
from ftis_protocol.identity import Identity
from ftis_protocol.manifest import Sampling, SwarmManifest, TaskSpec
from ftis_protocol.rollout import Evidence

#: simulated seconds of one round; with 30-second slots, a slot lasts a few rounds
ROUND_SECONDS = 10.0


def manifest_for(
    tasks: Sequence[TaskSpec], *, max_completion_tokens: int, evidence: tuple[Evidence, ...] = (Evidence.NONE,)
) -> SwarmManifest:
    """The rules of a laboratory swarm."""
    return SwarmManifest(
        name="lab",
        tasks=tuple(tasks),
        sampling=Sampling(max_completion_tokens=max_completion_tokens),
        evidence=evidence,
        slice_size=1024,
        creator=bytes(32),
        created_at=0,
    )


@dataclass(frozen=True, slots=True)
class LabPlan:
    """One node of the laboratory: a name, a checkpoint, and configuration sections that differ from the defaults."""

    name: str
    model: Path
    settings: Mapping[str, Mapping[str, object]]


@dataclass(slots=True)
class Lab:
    """The nodes and the clock they share. `async with Lab(root, manifest) as lab: await lab.add(plan)`."""

    root: Path
    manifest: SwarmManifest
    clock: StepClock = field(default_factory=StepClock)
    nodes: list[Node] = field(default_factory=list)
    network: MemoryNetwork = field(init=False)

    def __post_init__(self) -> None:
        self.network = MemoryNetwork(self.clock)

    async def __aenter__(self) -> Lab:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for node in tuple(self.nodes):
            await self.remove(node)

    async def remove(self, node: Node) -> None:
        """End one node without saving, as a crash would; what it stored in the swarm stays there."""
        self.nodes.remove(node)
        await node.close()
        await node.rooms.swarm.close()
        node.rooms.store.close()

    async def add(self, plan: LabPlan) -> Node:
        """Build one node and announce it. The same root and name again resumes from its checkpoint."""
        directory = self.root / plan.name
        directory.mkdir(parents=True, exist_ok=True)
        config = _config(plan)
        seed = f"{plan.name}/{config.train.seed}"
        swarm = MemorySwarm(self.network, _identity(plan.name, config.train.seed), self.manifest, rng=Random(seed))
        await swarm.start()
        node = await build(
            config,
            swarm,
            Store.open(directory / "node.db"),
            Places(
                checkpoints=directory / "checkpoints",
                weights=directory / "weights.safetensors",
                engine=directory / "engine",
                cache=self.root / "cache",
            ),
            self.clock,
            lambda _: None,
        )
        node.rooms.states.begin_work()
        await node.exchange.announce()
        self.nodes.append(node)
        return node

    async def rounds(self, count: int) -> float:
        """Let every node take `count` steps, in the order they were added; returns wall seconds."""
        began = time.monotonic()
        for _ in range(count):
            for node in self.nodes:
                await node.step()
            self.clock.advance(ROUND_SECONDS)
        return time.monotonic() - began


def lab_node_id(name: str, seed: int) -> str:
    """The id that a node with this name and `train.seed` has in every laboratory."""
    return _identity(name, seed).node_id


def _identity(name: str, seed: int) -> Identity:
    """The same key for the same seed: a node's prompts follow from its id. No secret, so for the laboratory only."""
    digest = blake2b(f"{name}/{seed}".encode(), digest_size=32).digest()
    return Identity(Ed25519PrivateKey.from_private_bytes(digest))


def _config(plan: LabPlan) -> NodeConfig:
    sections: dict[str, dict[str, object]] = {name: dict(keys) for name, keys in plan.settings.items()}
    sections.setdefault("model", {}).setdefault("generator", "transformers")
    sections["model"]["model"] = str(plan.model)
    sections.setdefault("node", {})["name"] = plan.name
    sections.setdefault("train", {}).setdefault("lock_step", True)
    return NodeConfig.model_validate(sections)
