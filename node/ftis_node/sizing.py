"""Does it fit? A node's memory, estimated from the model's files before anything is loaded.

Every share is an upper estimate; what it rests on is written beside it. Nothing here looks at the machine: free memory
is an argument, so that a doctor, a test and a node ask the same question.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from ftis_node.errors import UsageError

GIB = 1 << 30
#: where the samples come from: vLLM in a process of its own, vLLM in the node's, or the learner's own module
Engine = Literal["own", "node", "transformers"]
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1, "int8": 1}
#: libraries, tokenizer, buffers and DHT of a node without its model; measured on a CPU
NODE_BYTES = 900 << 20
#: vLLM's libraries and work space beside a learner in the same process, and in a process of its own
ENGINE_BYTES: dict[tuple[str, Engine], int] = {
    ("cpu", "node"): 1 << 30,
    ("cpu", "own"): (3 << 30) // 2,
    ("cuda", "node"): 2 << 30,
    ("cuda", "own"): 2 << 30,
}
#: float32 numbers that a training pass keeps per token and layer, in multiples of the model's width
WIDTHS_PER_LAYER = 24
#: copies of the logits of one pass that are alive at once: values, log-softmax, gradient
LOGIT_COPIES = 3
#: tokens of a prompt in the estimate; a task's real ones are known later
PROMPT_TOKENS = 256
SAFETY_RATIO = 1.1


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a checkpoint's files say. `head_size` is None where the configuration does not tell."""

    parameters: int
    layers: int
    width: int
    vocabulary: int
    head_size: int | None


@dataclass(frozen=True, slots=True)
class Workload:
    """What the node shall do with the model. `rows` completions of `tokens` tokens go through one training pass."""

    trainable: Literal["full", "lora"]
    lora_rank: int
    half_passes: bool
    rows: int
    tokens: int
    pass_tokens: int
    device: str
    engine_dtype: str
    kv_cache_bytes: int


@dataclass(frozen=True, slots=True)
class Share:
    """One tenant of the memory. `needed` False: the system takes it back when others want it."""

    name: str
    size_bytes: int
    rests_on: str
    needed: bool = True


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All shares of one device, for one place of the engine. With `taking_turns` the engine sleeps while the learner
    computes, so that only the larger of the two counts."""

    engine: Engine
    shares: tuple[Share, ...]
    free_bytes: int
    taking_turns: bool = False

    @property
    def needed_bytes(self) -> int:
        needed = [share for share in self.shares if share.needed]
        total = sum(share.size_bytes for share in needed)
        if self.taking_turns:
            vllm = sum(share.size_bytes for share in needed if share.name in _SLEEPING)
            passes = sum(share.size_bytes for share in needed if share.name in _RESTING)
            total -= min(vllm, passes)
        return int(total * SAFETY_RATIO)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.free_bytes

    @property
    def text(self) -> str:
        """The plan for a person, one share a line."""
        where = {"own": "vLLM in its own process", "node": "vLLM in the node's process", "transformers": "no vLLM"}
        head = (
            f"memory: {self.needed_bytes / GIB:.1f} GiB of {self.free_bytes / GIB:.1f} GiB free ({where[self.engine]}"
            f"{', taking turns with the learner' if self.taking_turns else ''})"
        )
        lines = [f"  {share.name:<18} {share.size_bytes / GIB:6.2f} GiB  {share.rests_on}" for share in self.shares]
        return "\n".join([head, *lines])


_SLEEPING = ("vLLM's weights", "key-value cache")
_RESTING = ("gradients", "activations")


def read_shape(directory: Path) -> ModelShape:
    """From config.json and the headers of the weights; no weight is read. Raises UsageError for damaged files."""
    from safetensors import SafetensorError, safe_open

    parameters = 0
    try:
        config = json.loads((directory / "config.json").read_text())
        for path in directory.glob("*.safetensors"):
            with safe_open(path, framework="np") as file:
                parameters += sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f"cannot read {directory}: {error}", hint="Fetch or copy the model again.") from error
    config = config.get("text_config", config)
    width, heads = int(config.get("hidden_size") or 0), config.get("num_attention_heads")
    return ModelShape(
        parameters=parameters,
        layers=int(config.get("num_hidden_layers") or 0),
        width=width,
        vocabulary=int(config.get("vocab_size") or 0),
        head_size=config.get("head_dim") or (width // heads if heads and width else None),
    )


def plan_memory(shape: ModelShape, work: Workload, engine: Engine, free_bytes: int) -> MemoryPlan:
    """What this engine beside this learner takes."""
    shares = [*_learner(shape, work), *([] if engine == "transformers" else _vllm(shape, work, engine))]
    if work.device == "cpu":
        shares.insert(0, Share("the node itself", NODE_BYTES, "libraries, tokenizer, buffers"))
        shares.append(Share("page cache", 4 * shape.parameters, "of the model's files; gives way", needed=False))
    plan = MemoryPlan(engine, tuple(shares), free_bytes)
    if not plan.fits and engine == "own" and work.device == "cuda":
        return MemoryPlan(engine, plan.shares, free_bytes, taking_turns=True)
    return plan


def _learner(shape: ModelShape, work: Workload) -> list[Share]:
    trained = shape.parameters
    if work.trainable == "lora":
        trained = min(trained, 14 * shape.layers * shape.width * work.lora_rank)
    rows = max(1, min(work.rows, work.pass_tokens // max(1, work.tokens)))
    tokens = PROMPT_TOKENS + rows * work.tokens
    kept = 4 * tokens * (shape.layers * shape.width * WIDTHS_PER_LAYER + LOGIT_COPIES * shape.vocabulary)
    shares = [
        Share("learner's weights", 4 * shape.parameters, f"{shape.parameters:,} parameters, 4 bytes each"),
        Share("gradients", 4 * trained, f"{trained:,} trained parameters, 4 bytes each"),
        Share("optimiser", 8 * trained, "AdamW, 8 bytes each"),
        Share("activations", kept, f"a pass of {tokens:,} tokens through {shape.layers} layers, and its logits"),
    ]
    if work.half_passes:
        shares.append(Share("half-size weights", 2 * shape.parameters, "copies for bfloat16 passes"))
    return shares


def _vllm(shape: ModelShape, work: Workload, engine: Engine) -> list[Share]:
    item = ITEM_BYTES[work.engine_dtype]
    shares = [
        Share("vLLM's weights", item * shape.parameters, f"{work.engine_dtype}, {item} bytes each"),
        Share("key-value cache", work.kv_cache_bytes, "model.kv_cache_mebibytes"),
        Share("vLLM itself", ENGINE_BYTES[work.device, engine], "libraries and work space"),
    ]
    if work.device == "cpu":
        shares.append(Share("hand-over", 2 * max(2, item) * shape.parameters, "old and new file in shared memory"))
    return shares


def refuse(plan: MemoryPlan, shape: ModelShape, work: Workload) -> UsageError:
    """The error for a plan that does not fit, with the three things that would help most."""
    sizes = {share.name: share.size_bytes for share in plan.shares}
    helps = [
        (sizes.get("gradients", 0) + sizes.get("optimiser", 0), "--trainable lora", work.trainable == "full"),
        (
            sum(sizes.get(name, 0) for name in ("vLLM's weights", "key-value cache", "vLLM itself", "hand-over")),
            "--generator transformers",
            plan.engine != "transformers",
        ),
        (sizes["activations"] // 2, "half of train.group_size or of the swarm's max_completion_tokens", True),
        (sizes.get("key-value cache", 0) // 2, "half of model.kv_cache_mebibytes", plan.engine != "transformers"),
        (plan.needed_bytes // 2, "a model of half the size", True),
    ]
    best = sorted((entry for entry in helps if entry[2]), reverse=True)[:3]
    named = "; ".join(f"{what} saves {size / GIB:.1f} GiB" for size, what, _ in best)
    return UsageError(
        f"this node needs about {plan.needed_bytes / GIB:.1f} GiB on the {work.device} and "
        f"{plan.free_bytes / GIB:.1f} GiB are free",
        hint=f"What would help: {named}. model.check_memory = false loads it all the same.",
    )
