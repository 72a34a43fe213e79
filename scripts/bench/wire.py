"""Bytes per completion token, all-in, of what a node publishes.

Real completions of SmolLM2-135M become groups, groups become frames, frames are sealed as a node seals them. Counted
are the sealed frame (texts, rewards, prompt references, policy, signature, compression), the key it is stored under,
and the offer that announces it with that offer's own key and subkey. One frame per slot: the offer is never shared.
Not counted: what the DHT adds around a record, and its copies.

Compared with 8 bytes per token (a 4-byte token id and a 4-byte log-probability, the paper's format, without prompt,
reward or signature) and with the same groups as JSON text.

Rewards are 0 or 1 by a fair coin, the costliest case for binary rewards.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from samples import QUESTIONS, RealCompletion, Recipe, load_or_sample

from ftis_protocol.envelope import open_envelope, seal
from ftis_protocol.identity import Identity
from ftis_protocol.keys import body_digest, body_key, offers_key, shard_of
from ftis_protocol.manifest import Sampling, SwarmManifest, TaskSpec
from ftis_protocol.presence import Offer, OfferedFrame, OfferedGroup
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, PolicyRef, PromptRef

PAPER_BYTES_PER_TOKEN = 8.0
TARGET_BYTES_PER_TOKEN = 1.7  # tier `none`
GROUPS_PER_FRAME = (1, 4, 8)
CREATED_AT = 1_790_000_000
SLOT = CREATED_AT // 30
TASK = "arithmetic"


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the frames of one layout; all `*_per_token` are bytes per completion token."""

    evidence: str
    groups_per_frame: int
    frames: int
    tokens: float
    frame_per_token: float
    overhead_per_token: float
    total_per_token: float
    json_per_token: float

    @property
    def times_smaller_than_paper(self) -> float:
        return PAPER_BYTES_PER_TOKEN / self.total_per_token


class Publisher:
    """A node that seals frames and the offers that announce them."""

    def __init__(self) -> None:
        self.identity = Identity.create()
        self.manifest = SwarmManifest(
            name="wire bench",
            tasks=(TaskSpec(name=TASK, version=1),),
            sampling=Sampling(max_completion_tokens=512),
            evidence=tuple(Evidence),
            creator=self.identity.public_key,
            created_at=CREATED_AT,
        )
        self.swarm_id = self.manifest.swarm_id
        self.sequence = 0

    def seal(self, message: Frame | Offer) -> bytes:
        self.sequence += 1
        data = seal(message, self.identity, self.swarm_id, self.sequence, CREATED_AT)
        assert open_envelope(data, swarm_id=self.swarm_id).message == message
        return data

    def publish(self, frame: Frame, tokens: list[int]) -> tuple[int, int]:
        """Bytes of the sealed frame, and of everything that goes with it. `tokens`: per group."""
        sealed = self.seal(frame)
        digest = body_digest(sealed)
        groups = tuple(
            OfferedGroup(task=TASK, version=1, right=_right(group), size=len(group.completions), tokens=count)
            for group, count in zip(frame.groups, tokens, strict=True)
        )
        offered = OfferedFrame(digest=digest, size_bytes=len(sealed), policy_version=120, groups=groups)
        offer = self.seal(Offer(slot=frame.slot, frames=(offered,)))
        node_id = self.identity.node_id
        keys = len(body_key(digest)) + len(offers_key(self.swarm_id, shard_of(node_id, 16), frame.slot)) + len(node_id)
        return len(sealed), len(offer) + keys


def _right(group: Group) -> int:
    return sum(completion.reward > 0 for completion in group.completions)


def completion_of(real: RealCompletion, evidence: Evidence, reward: float) -> Completion:
    """The completion as it travels under that tier; log-probs in float32, as the generator gives them."""
    finish = Finish.STOP if real.stopped else Finish.LENGTH
    logprobs = np.asarray(real.logprobs, dtype=np.float32)
    if evidence is Evidence.SEQUENCE:
        return Completion(text=real.text, finish=finish, reward=reward, logprob_sum=float(np.float32(logprobs.sum())))
    if evidence is Evidence.TOKEN:
        values = tuple(min(float(value), 0.0) for value in logprobs)
        return Completion(
            text=real.text, finish=finish, reward=reward, token_ids=tuple(real.token_ids), logprobs=values
        )
    return Completion(text=real.text, finish=finish, reward=reward)


def frames_of(
    reals: list[list[RealCompletion]], evidence: Evidence, per_frame: int
) -> Iterator[tuple[Frame, list[int]]]:
    """Whole frames of `per_frame` groups, each with its groups' numbers of tokens."""
    coin = random.Random(7)
    policy = PolicyRef(model="SmolLM2-135M-Instruct", revision="q4_1", tokenizer="9f3a1c20b7d4e856", trainable="full")
    for first in range(0, len(reals) - per_frame + 1, per_frame):
        groups = tuple(
            Group(
                prompt=PromptRef(task=TASK, version=1, slot=SLOT, index=index),
                policy_version=120,
                evidence=evidence,
                completions=tuple(completion_of(real, evidence, float(coin.random() < 0.5)) for real in reals[index]),
            )
            for index in range(first, first + per_frame)
        )
        tokens = [sum(len(real.token_ids) for real in reals[index]) for index in range(first, first + per_frame)]
        yield Frame(slot=SLOT, policy=policy, groups=groups), tokens


def measure(reals: list[list[RealCompletion]], evidence: Evidence, per_frame: int) -> Row:
    """Seals every frame of that layout."""
    publisher = Publisher()
    frame_bytes, overhead, plain, counts = [], [], [], []
    for frame, tokens in frames_of(reals, evidence, per_frame):
        count = sum(tokens)
        sealed, around = publisher.publish(frame, tokens)
        frame_bytes.append(sealed / count)
        overhead.append(around / count)
        plain.append(len(frame.model_dump_json(exclude_none=True).encode()) / count)
        counts.append(count)
    return Row(
        evidence=evidence.value,
        groups_per_frame=per_frame,
        frames=len(counts),
        tokens=statistics.median(counts),
        frame_per_token=statistics.median(frame_bytes),
        overhead_per_token=statistics.median(overhead),
        total_per_token=statistics.median(a + b for a, b in zip(frame_bytes, overhead, strict=True)),
        json_per_token=statistics.median(plain),
    )


def machine() -> str:
    """Processor, cores and versions that decide the numbers."""
    names = [line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    return (
        f"{processor}, {os.cpu_count()} cores, {platform.system()}; "
        f"Python {platform.python_version()}, zstandard {version('zstandard')}"
    )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def show(rows: list[Row], reals: list[list[RealCompletion]]) -> None:
    """The table for people."""
    lengths = [len(real.token_ids) for group in reals for real in group]
    characters = sum(len(real.text) for group in reals for real in group)
    print(f"machine: {machine()}")
    print(
        f"text: {len(reals)} prompts x {len(reals[0])} completions of SmolLM2-135M at temperature 1, "
        f"{statistics.fmean(lengths):.0f} tokens each on average, {characters / sum(lengths):.2f} characters a token"
    )
    print("bytes per completion token, median over frames; paper's format: 8.00\n")
    print("evidence   groups/frame  frames  tokens/frame   frame + keys and offer = all-in   JSON   paper/all-in")
    for row in rows:
        print(
            f"{row.evidence:<10} {row.groups_per_frame:>12}  {row.frames:>6}  {row.tokens:>12.0f}   "
            f"{row.frame_per_token:>5.2f}   {row.overhead_per_token:>14.2f}   {row.total_per_token:>6.2f}   "
            f"{row.json_per_token:>5.2f}   {row.times_smaller_than_paper:>11.1f}x"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8, help="8 (default) to 16; sampling takes minutes, once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    arguments = parser.parse_args()
    if not max(GROUPS_PER_FRAME) <= arguments.prompts <= len(QUESTIONS):
        parser.error(f"--prompts takes {max(GROUPS_PER_FRAME)} to {len(QUESTIONS)}")
    cache = Path(os.environ.get("FTIS_CACHE") or Path.home() / ".cache" / "ftis")
    recipe = Recipe(prompts=arguments.prompts)
    reals = load_or_sample(cache, recipe)
    rows = [measure(reals, evidence, count) for evidence in Evidence for count in GROUPS_PER_FRAME]
    show(rows, reals)
    best = next(row.total_per_token for row in rows if row.groups_per_frame == max(GROUPS_PER_FRAME))
    met = best < TARGET_BYTES_PER_TOKEN
    print(f"\ntarget for text alone, {max(GROUPS_PER_FRAME)} groups a frame: below {TARGET_BYTES_PER_TOKEN}; ", end="")
    print(f"measured {best:.2f}, {'met' if met else 'MISSED'}")
    if arguments.json:
        document = {
            "machine": machine(),
            "recipe": asdict(recipe),
            "paper_bytes_per_token": PAPER_BYTES_PER_TOKEN,
            "target_bytes_per_token": TARGET_BYTES_PER_TOKEN,
            "target_met": met,
            "rows": [asdict(row) for row in rows],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
