"""Small valid messages for the swarm's tests."""

from __future__ import annotations

from ftis_protocol.identity import Identity
from ftis_protocol.manifest import Sampling, SwarmManifest, TaskSpec
from ftis_protocol.presence import NodeCard
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, PolicyRef, PromptRef

POLICY = PolicyRef(model="tiny", revision="r1", tokenizer="t" * 16, trainable="full")


def manifest(name: str = "test", *, shards: int = 1, slot_seconds: int = 30) -> SwarmManifest:
    return SwarmManifest(
        name=name,
        tasks=(TaskSpec(name="arithmetic", version=1),),
        sampling=Sampling(max_completion_tokens=8),
        slot_seconds=slot_seconds,
        shard_count=shards,
        creator=Identity.create().public_key,
        created_at=1_700_000_000,
    )


def card(name: str = "otter", version: int = 0) -> NodeCard:
    return NodeCard(name=name, state="training", model="tiny", policy_version=version)


def group(slot: int, index: int = 0, text: str = "12") -> Group:
    return Group(
        prompt=PromptRef(task="arithmetic", version=1, slot=slot, index=index),
        policy_version=3,
        evidence=Evidence.NONE,
        completions=(
            Completion(text=text, finish=Finish.STOP, reward=1.0),
            Completion(text="13", finish=Finish.STOP, reward=0.0),
        ),
    )


def frame(slot: int, index: int = 0, text: str = "12") -> Frame:
    return Frame(slot=slot, policy=POLICY, groups=(group(slot, index, text),))
