"""Who plays in the demonstration: unlike models with unlike tokenizers, on a task that each of them half knows."""

from __future__ import annotations

from pathlib import Path

from ftis_node.console import Console
from ftis_node.lab.local_swarm import NodePlan
from ftis_node.lab.smollm2 import ensure_smollm2
from ftis_node.lab.teach import TeachProgress, ensure_taught
from ftis_node.lab.tiny import TinyConfig
from ftis_node.tasks.registry import describe

TASK = "arithmetic:operations=+-,digits=1"

#: one batch is half own, half foreign: 8 groups of 8 completions
_TRAIN = {"groups_per_step": 8, "group_size": 8, "checkpoint_every_steps": 20, "probe_items": 64}
#: learning rates by kind of node: full weights, an adapter on the same weights, a small model from scratch
_LEARNING_RATES = {"full": 1e-5, "lora": 2e-4, "small": 5e-5}
#: the small model would be done before the others have started; this keeps the three in step
_SMALL_PACE_SECONDS = 4.0


def cast(nodes: int, steps: int, seed: int, exchange: bool, cache: Path, console: Console) -> list[NodePlan]:
    """Plans for `nodes` learners: SmolLM2 whole, SmolLM2 with an adapter, a small stranger, and so on in turn."""
    with console.step("SmolLM2-135M as a checkpoint"):
        smollm2 = ensure_smollm2(cache, console.say)
    plans = []
    for number in range(nodes):
        kind = ("full", "lora", "small")[number % 3]
        model = _small(cache, seed + number // 3, console) if kind == "small" else smollm2
        train: dict[str, object] = {
            **_TRAIN,
            "learning_rate": _LEARNING_RATES[kind],
            "max_steps": steps,
            "probe_every_steps": max(1, steps),  # at the start and at the end
            "seed": seed + number,
            "pace_seconds": _SMALL_PACE_SECONDS if kind == "small" else 0.0,
        }
        settings: dict[str, dict[str, object]] = {
            "train": train,
            # Several nodes share this machine's cores: more processes would only take turns.
            "model": {"trainable": "lora" if kind == "lora" else "full", "generator_process": "node"},
            "receive": {"exchange": exchange, "groups_per_step": 4},
        }
        plans.append(NodePlan(f"{kind}-{number + 1}", model, settings))
    return plans


def _small(cache: Path, seed: int, console: Console) -> Path:
    """A three-layer model with one token per character, taught the task half-way."""

    def show(now: TeachProgress) -> None:
        console.progress(int(100 * min(1.0, now.success / now.goal)), 100, "teaching a small model the basics")

    with console.step("a small model with a tokenizer of its own"):
        config = TinyConfig(layers=3, hidden=128, alphabet="ascii", seed=seed)
        spec = describe("arithmetic", operations="+-", digits=1)
        return ensure_taught(config, spec, cache, goal=0.5, progress=show)
