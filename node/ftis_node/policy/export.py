"""The policy's weights for others: one safetensors file for the generator, or a whole checkpoint directory.

Adapters are added to copies of the weights they change, so training goes on undisturbed. A tied output head is written
once, under the name of the embedding, as Hugging Face checkpoints do.
"""

from __future__ import annotations

import copy
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ftis_node.errors import UsageError
from ftis_node.policy.lora import is_adapted

if TYPE_CHECKING:
    from ftis_node.policy.model import Policy

BASE_LAYER = ".base_layer."


@torch.no_grad()
def merged_weights(module: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """All weights under their Hugging Face names, on the CPU, as `dtype`; adapters merged, tied heads left out.

    Tensors that already are what was asked for are the live ones, not copies: write them before the next step.
    """
    from transformers.core_model_loading import revert_weight_conversion

    adapted = {name: layer for name, layer in module.named_modules() if is_adapted(layer)}
    state = module.state_dict()
    tied = getattr(module, "all_tied_weights_keys", None) or {}
    merged = {}
    for key, tensor in state.items():
        source = state.get(tied.get(key, ""))
        if source is not None and source.data_ptr() == tensor.data_ptr():
            continue
        layer_name, found, rest = key.rpartition(BASE_LAYER)
        if found and layer_name in adapted:
            if rest == "weight":
                layer = adapted[layer_name]
                for adapter in layer.active_adapters:
                    tensor = tensor + layer.get_delta_weight(adapter)
            key = f"{layer_name}.{rest}"
        elif ".lora_" in key:
            continue
        merged[key] = tensor.to("cpu", dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
    reverted: dict[str, Tensor] = revert_weight_conversion(module, merged)
    return reverted


def export_weights(policy: Policy, path: Path, dtype: torch.dtype) -> None:
    """Write the merged weights to the file `path`, whole or not at all. Raises UsageError when the disk refuses."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with disk_errors(path):
        try:
            metadata = {"format": "pt", "policy_version": str(policy.version)}
            save_file(merged_weights(policy.module, dtype), aside, metadata=metadata)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


def export_checkpoint(policy: Policy, directory: Path, dtype: torch.dtype) -> None:
    """Write a checkpoint that transformers, vLLM and this program load: configuration, weights and tokenizer.

    Raises UsageError where `directory` exists and holds something, and when the disk refuses.
    """
    with disk_errors(directory):
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError(f"{directory} exists and is not empty", hint="Name a new directory for the export.")
        aside = directory.with_name(f".{directory.name}.{os.getpid()}.part")
        try:
            aside.mkdir(parents=True)
            config = copy.deepcopy(policy.module.config)
            config.architectures, config.dtype = [type(policy.module).__name__], dtype
            config.save_pretrained(aside)
            if getattr(policy.module, "generation_config", None) is not None:
                policy.module.generation_config.save_pretrained(aside)
            policy.codec.tokenizer.save_pretrained(aside)
            export_weights(policy, aside / "model.safetensors", dtype)
            os.replace(aside, directory)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def export_type(name: str) -> torch.dtype:
    """The number format that a name stands for."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn what a disk can refuse (space, permission, a missing folder) into a UsageError that names the remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        hint = "Free some space, or choose another directory." if full else "Check the path and its permissions."
        raise UsageError(f"cannot write {place}: {error}", hint=hint) from error
