"""Before anything is loaded: which engine will sample, where it lives, and whether learner and engine fit."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from ftis_node.config import ModelSection, NodeConfig
from ftis_node.errors import UsageError
from ftis_node.generate.choose import choose_generator, free_memory, inspect_machine, inspect_model
from ftis_node.policy.model import resolve_compute, resolve_device
from ftis_node.policy.update_records import UpdateSettings
from ftis_node.sizing import Engine, MemoryPlan, ModelShape, Workload, plan_memory, read_shape, refuse
from ftis_node.tokenizer_files import checkpoint_directory

MEBIBYTE = 1 << 20
#: bounds of a training pass, the one that is wanted first; smaller passes take longer and less memory
PASS_TOKENS = (UpdateSettings().micro_tokens, 4096, 2048, 1024, 512)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Where samples will come from and why; `pass_tokens` bounds a training pass. `memory` is None for a model whose
    files are not here, or damaged."""

    engine: Engine
    reason: str
    memory: MemoryPlan | None = None
    pass_tokens: int = PASS_TOKENS[0]

    @property
    def text(self) -> str:
        """What a person reads before the loading begins."""
        if self.memory is None:
            return "memory: not planned, because the model's files cannot be read on this machine yet"
        return self.memory.text


def plan_engine(config: NodeConfig, completion_tokens: int) -> EnginePlan:
    """The best place for the engine that fits. Raises UsageError for what cannot work here, and for a model that does
    not fit anywhere unless model.check_memory is off."""
    model = config.model
    check_quantization(model)
    candidates = _candidates(config)
    directory = checkpoint_directory(model.model or "")
    if directory is None:
        return EnginePlan(*candidates[0])
    try:
        shape = read_shape(directory)
    except UsageError:  # who loads it knows better what to say
        return EnginePlan(*candidates[0])
    work = _workload(config, shape, completion_tokens)
    free = free_memory(work.device)
    if candidates[0][0] != "transformers":
        needs = inspect_model(directory, _dtype(model, half=work.half_passes), 0)
        choice = choose_generator(model.generator, work.device, inspect_machine(work.device), needs)
        if choice.name == "transformers":
            candidates = [("transformers", choice.reason)]
    plans = [_fitted(engine, reason, shape, work, free) for engine, reason in candidates]
    for place, plan in enumerate(plans):
        assert plan.memory is not None
        if plan.memory.fits:
            if place == 0:
                return plan
            return replace(plan, reason=f"{plan.reason}, because what comes before it does not fit")
    last = plans[-1]
    assert last.memory is not None
    if model.check_memory:
        raise refuse(last.memory, shape, work)
    return plans[0]


def _fitted(engine: Engine, reason: str, shape: ModelShape, work: Workload, free: int) -> EnginePlan:
    """With the largest passes that fit, or the smallest if none do."""
    for tokens in PASS_TOKENS:
        memory = plan_memory(shape, replace(work, pass_tokens=tokens), engine, free)
        if memory.fits:
            break
    return EnginePlan(engine, reason, memory, tokens)


def _candidates(config: NodeConfig) -> list[tuple[Engine, str]]:
    """Engines in the order in which they are wanted, each with its reason."""
    model = config.model
    if model.generator == "transformers":
        return [("transformers", "asked for")]
    places: list[tuple[Engine, str]]
    if model.generator_process == "own":
        places = [("own", "a process of its own was asked for")]
    elif model.generator_process == "node":
        places = [("node", "the node's process was asked for")]
    elif config.train.lock_step:
        places = [("node", "in lock step nothing is sampled while the learner computes")]
    elif cores() < 2:
        places = [("node", "a single core cannot sample and learn at once")]
    else:
        places = [
            ("own", "it samples in a process of its own while the learner computes"),
            ("node", "in the node's process"),
        ]
    if model.generator == "auto":
        places.append(("transformers", "with transformers"))
    return places


def check_quantization(model: ModelSection) -> None:
    """Raises UsageError where vLLM cannot quantise weights as they come."""
    if model.generator_quantization == "none":
        return
    if resolve_device(model.device).type == "cpu":
        raise UsageError(
            f"model.generator_quantization = {model.generator_quantization} needs a GPU: on a CPU vLLM has no kernels "
            "for weights that are quantised while they are loaded",
            hint='Set it to "none"; model.generator_dtype = "bfloat16" is what halves the memory on a CPU.',
        )
    if model.generator == "transformers":
        raise UsageError(
            "the transformers generator samples from the learner's own weights, which are never quantised",
            hint="Set model.generator_quantization to none, or choose vLLM.",
        )


def _workload(config: NodeConfig, shape: ModelShape, completion_tokens: int) -> Workload:
    model, train = config.model, config.train
    device = resolve_device(model.device)
    half = resolve_compute(model.compute_dtype, device, shape.parameters) is not None
    dtype = _dtype(model, half=half)
    return Workload(
        trainable=model.trainable,
        lora_rank=model.lora_rank,
        half_passes=half,
        rows=train.groups_per_step * train.group_size,
        tokens=completion_tokens,
        pass_tokens=PASS_TOKENS[0],
        device=device.type,
        engine_dtype=dtype if model.generator_quantization == "none" else model.generator_quantization,
        kv_cache_bytes=model.kv_cache_mebibytes * MEBIBYTE,
    )


def _dtype(model: ModelSection, *, half: bool) -> str:
    if model.generator_dtype != "auto":
        return model.generator_dtype
    return "bfloat16" if half else "float32"


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def engine_threads(model: ModelSection, trainer_threads: int) -> int:
    """CPU threads of an engine beside a learner with `trainer_threads`. Both on all cores would stand still most of
    the time, so what was asked for in excess raises UsageError."""
    left = max(1, cores() - trainer_threads)
    wanted = model.generator_threads or left
    if wanted > left and cores() > 1:
        raise UsageError(
            f"{trainer_threads} threads of the learner and {wanted} of vLLM are more than the {cores()} cores here",
            hint="Lower node.threads or model.generator_threads: more busy threads than cores cost a factor of eight.",
        )
    return wanted
