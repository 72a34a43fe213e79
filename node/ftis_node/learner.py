"""From the configuration to a model that learns and an engine that samples from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ftis_node.config import ModelSection, NodeConfig
from ftis_node.errors import UsageError
from ftis_node.generate.base import Generator, Notify, silent
from ftis_node.generate.choose import (
    Choice,
    OwnProcess,
    build_generator,
    choose_generator,
    inspect_machine,
    inspect_model,
    sampling_overrides,
)  # fmt: skip
from ftis_node.generate.jobs import Care
from ftis_node.generate.vllm_start import VllmSettings
from ftis_node.loops.handover import check_first_weights, hand_over
from ftis_node.planning import EnginePlan, engine_threads
from ftis_node.policy.ftis_records import FtisSettings
from ftis_node.policy.lora import LoraSettings
from ftis_node.policy.model import Policy, learner_threads, load_policy
from ftis_node.policy.update_records import UpdateSettings
from ftis_node.tokenizer_files import checkpoint_directory

Say = Callable[[str], None]
MEBIBYTE = 1024 * 1024
#: tokens of prompt and completion that the engine makes room for, where the model can do more
LONGEST_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Places:
    """Where a node keeps its files."""

    checkpoints: Path
    weights: Path
    engine: Path
    cache: Path


def open_policy(model: ModelSection, seed: int) -> Policy:
    """Load the model that the configuration names."""
    if not model.model:
        raise UsageError("no model given", hint="Name one with --model: a directory, or a name on the hub.")
    return load_policy(
        model.model,
        trainable=model.trainable,
        device=model.device,
        compute_dtype=model.compute_dtype,
        lora=LoraSettings(model.lora_rank, model.lora_alpha, seed=seed),
    )


def update_settings(config: NodeConfig) -> UpdateSettings:
    """The loss and the optimiser steps that the configuration asks for."""
    train, receive = config.train, config.receive
    constants = FtisSettings.paper() if receive.constants == "paper" else FtisSettings()
    return UpdateSettings(
        learning_rate=train.learning_rate,
        optimiser_steps=train.optimiser_steps,
        epochs=train.epochs,
        ftis=replace(constants, estimator=receive.estimator, positives=receive.positives, negatives=receive.negatives),
    )


def start_generator(
    model: ModelSection,
    policy: Policy,
    places: Places,
    say: Say,
    plan: EnginePlan | None = None,
    notify: Notify = silent,
) -> Generator:
    """Look at the machine, choose the engine, say why, and start it with the policy's present weights, checked.

    Without a `plan` vLLM lives in this process. `notify` hears what happens to an engine in a process of its own.
    """
    device, dtype = policy.device.type, model.generator_dtype
    if dtype == "auto":
        dtype = "float32" if policy.autocast is None else "bfloat16"
    directory = checkpoint_directory(model.model or "")
    if directory is None:
        directory = places.engine
        if not directory.exists():
            policy.export_hf(directory)
    kv_cache_bytes = model.kv_cache_mebibytes * MEBIBYTE
    if plan is not None and plan.engine == "transformers":
        choice = Choice("transformers", plan.reason)
    else:
        needs = inspect_model(directory, dtype, kv_cache_bytes)
        choice = choose_generator(model.generator, device, inspect_machine(device), needs)
    own_process = choice.name == "vllm" and plan is not None and plan.engine == "own"
    generator = build_generator(
        choice if plan is None or choice.name != "vllm" else replace(choice, reason=f"{choice.reason}; {plan.reason}"),
        module=policy.module,
        codec=policy.codec,
        settings=VllmSettings(
            directory,
            places.cache,
            device,
            dtype,
            context=min(policy.codec.max_length, LONGEST_CONTEXT),
            kv_cache_bytes=kv_cache_bytes,
            quantization=model.generator_quantization,
            sleeps=plan is not None and plan.memory is not None and plan.memory.taking_turns,
        ),
        policy_version=policy.version,
        autocast=policy.autocast,
        own=_own_process(model, policy, places, notify) if own_process else None,
    )
    say(f"generator {generator.name}: {generator.reason}")
    if overridden := sampling_overrides(directory):
        say(f"the model's own sampling settings ({overridden}) are not used: groups need the whole distribution")
    if policy.version:
        hand_over(policy, generator, places.weights)
    elif generator.weights_alarm is not None:
        check_first_weights(policy, generator)
    return generator


def _own_process(model: ModelSection, policy: Policy, places: Places, notify: Notify) -> OwnProcess:
    care = Care(
        tokenizer=policy.codec.fingerprint,
        threads=engine_threads(model, learner_threads()),
        request_seconds=model.request_seconds,
        log_path=places.engine.with_name("engine.log"),
    )
    return OwnProcess(care, model.running_requests, notify)
