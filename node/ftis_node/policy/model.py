"""The model that learns: loading, precision, adapters, and what the rest of the node may ask of it.

Weights that train are float32; passes run in bfloat16 under autocast where that pays. The module stays in evaluation
mode: dropout would make two passes with equal weights disagree, and every importance ratio with them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor

from ftis_node.errors import UsageError
from ftis_node.imports import guard_broken_extras
from ftis_node.policy.attention import use_float32_attention
from ftis_node.policy.export import export_checkpoint, export_weights
from ftis_node.policy.logprobs import ForwardPlan, PromptAndCompletions, group_logprobs
from ftis_node.policy.lora import LoraSettings, add_adapter, require_peft
from ftis_node.policy.plan import choose_plan
from ftis_node.tokenizer_files import checkpoint_directory
from ftis_node.tokens import TextCodec

Trainable = Literal["full", "lora"]
Device = Literal["auto", "cpu", "cuda"]
ComputeDtype = Literal["auto", "float32", "bfloat16"]

#: Below this size the passes are dominated by overhead, and bfloat16 would only cost precision.
BFLOAT16_MIN_PARAMETERS = 20_000_000
#: Configuration keys that say where a model came from or how it was stored, not what it is.
VOLATILE_CONFIG_KEYS = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"})
FINGERPRINT_SAMPLE = 256  # values read from each end of every weight


@dataclass(slots=True, eq=False)
class Policy:
    """A causal language model under training, its tokenizer and how many optimiser steps it has taken.

    `autocast` is the compute type of its passes (None: float32); a generator that shares `module` must use the same.
    `fingerprint` names architecture, starting weights, tokenizer and adapter shape: only checkpoints with an equal one
    fit. `revision` names the starting weights alone.
    """

    module: Any
    codec: TextCodec
    name: str
    trainable: Trainable
    device: torch.device
    autocast: torch.dtype | None
    revision: str
    fingerprint: str
    lora: LoraSettings | None = None
    version: int = 0
    _plan: ForwardPlan | None = field(default=None, repr=False)

    @property
    def parameter_count(self) -> int:
        """All weights of the model, an adapter's included; a tied head counts once."""
        return sum(p.numel() for p in self.module.parameters())

    @property
    def trainable_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The weights that the optimiser changes, by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    @property
    def plan(self) -> ForwardPlan:
        """Which short cuts are exact for this architecture; found out at the first use."""
        if self._plan is None:
            self._plan = choose_plan(self.module)
        return self._plan

    def logprobs(self, prompt_ids: Sequence[int], completions: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """(logprobs [G, C], mask [G, C]) of one group, in this policy's precision; see `completion_logprobs`."""
        (result,) = self.group_logprobs([(prompt_ids, completions)])
        return result

    def group_logprobs(self, groups: Sequence[PromptAndCompletions]) -> list[tuple[Tensor, Tensor]]:
        """The same for several groups in one pass."""
        return group_logprobs(self.module, groups, plan=self.plan, autocast=self.autocast)

    @torch.no_grad()
    def score(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> tuple[float, ...]:
        """The log-probs of one completion's tokens, without gradient."""
        return tuple(self.logprobs(prompt_ids, [completion_ids])[0][0].tolist())

    def export_weights(self, path: Path, dtype: torch.dtype | str = torch.float32) -> None:
        """Merged weights under Hugging Face names in one safetensors file, as `dtype` (or what it is called);
        UsageError when the disk refuses."""
        export_weights(self, path, getattr(torch, dtype) if isinstance(dtype, str) else dtype)

    def export_hf(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        """A whole checkpoint with its tokenizer; UsageError if `directory` holds something or the disk refuses."""
        export_checkpoint(self, directory, dtype)


def load_policy(
    model: str | Path,
    *,
    trainable: Trainable = "full",
    device: Device = "auto",
    compute_dtype: ComputeDtype = "auto",
    lora: LoraSettings | None = None,
) -> Policy:
    """Load a checkpoint directory or hub model for training, at version 0.

    Raises UsageError for a model that is missing, damaged, incomplete or too large, a tokenizer that does not fit it,
    a device that is not there, and an adapter without peft.
    """
    guard_broken_extras()
    if trainable == "lora":
        require_peft()
    place = resolve_device(device)
    codec = TextCodec.load(model)
    module = _load_module(model, place)
    rows = module.get_input_embeddings().weight.shape[0]
    if codec.vocabulary_size > rows:
        raise UsageError(
            f"{model}: its tokenizer has {codec.vocabulary_size} tokens, its weights only {rows}",
            hint="Use the tokenizer that the model was trained with.",
        )
    revision = _weights_digest(module)
    adapter = (lora or LoraSettings()) if trainable == "lora" else None
    if adapter is not None:
        add_adapter(module, adapter)
    module.eval()
    autocast = resolve_compute(compute_dtype, place, sum(p.numel() for p in module.parameters()))
    if autocast is not None and place.type == "cpu":
        use_float32_attention(module)
    return Policy(
        module=module,
        codec=codec,
        name=checkpoint_name(model),
        trainable=trainable,
        device=place,
        autocast=autocast,
        revision=revision,
        fingerprint=_fingerprint(module, revision, codec.fingerprint, adapter),
        lora=adapter,
    )


def use_threads(count: int | None) -> int:
    """Compute with `count` threads from now on, by default one fewer than there are cores: another busy thread beside
    a full set makes every pass wait for the slowest, many times over. Returns the number. OMP_NUM_THREADS wins."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(count or max(1, len(os.sched_getaffinity(0)) - 1))
    return torch.get_num_threads()


def learner_threads() -> int:
    """Threads that the learner computes with."""
    return torch.get_num_threads()


def checkpoint_name(model: str | Path) -> str:
    """What others see as the model's name: the hub name, or the last part of a local path (never the whole path)."""
    directory = checkpoint_directory(model)
    return str(model) if directory is None else directory.resolve().name


def resolve_device(device: Device) -> torch.device:
    """The device to compute on; "auto" takes a GPU where there is one. Raises UsageError for a GPU that is missing."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device is usable here", hint='Set device to "auto" or "cpu", or check the driver.')
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def resolve_compute(wanted: ComputeDtype, device: torch.device, parameters: int) -> torch.dtype | None:
    """The autocast type. "auto" is bfloat16 where the device has matrix units for it and the model is big enough."""
    if wanted != "auto":
        return torch.bfloat16 if wanted == "bfloat16" else None
    has_units = torch.cuda.is_bf16_supported() if device.type == "cuda" else torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has_units and parameters >= BFLOAT16_MIN_PARAMETERS else None


def _load_module(model: str | Path, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    directory = checkpoint_directory(model)
    try:
        with _quiet() if directory else nullcontext():
            module, report = AutoModelForCausalLM.from_pretrained(
                str(directory or model), dtype=torch.float32, use_safetensors=True, output_loading_info=True
            )
        module = module.to(device)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, ImportError) as error:
        raise _unusable(model, error) from error
    if report["missing_keys"]:
        lacking = sorted(report["missing_keys"])
        raise UsageError(
            f"{model} lacks {len(lacking)} of its weights, {lacking[0]} among them",
            hint="Fetch or copy the model again; a base model without a language-model head cannot be trained.",
        )
    return module


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar and no remarks for a local directory: what is wrong with it comes as one error."""
    from transformers.utils import logging as transformers_logging

    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()


def _unusable(model: str | Path, error: BaseException) -> UsageError:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "ignore_mismatched_sizes" in text:
        text = "its weights do not have the shapes that its config.json says"
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
        hint = "Free some space, or point HF_HOME at a larger disk."
    elif isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
        hint = "Take a smaller model, or train an adapter: a full model needs 16 bytes per parameter."
    elif checkpoint_directory(model) is not None:
        hint = "Name a directory with config.json and model.safetensors, as save_pretrained writes it."
    else:
        hint = "Check the name and the network, or give the path of a checkpoint directory."
    return UsageError(f"cannot load the model {model}: {text}", hint=hint)


@torch.no_grad()
def _weights_digest(module: Any) -> str:
    """12 hex digits over the ends of every weight: tells models of one architecture apart at little cost."""
    digest = hashlib.blake2b(digest_size=6)
    for name, parameter in module.named_parameters():
        flat = parameter.reshape(-1)
        ends = torch.cat([flat[:FINGERPRINT_SAMPLE], flat[-FINGERPRINT_SAMPLE:]])
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(ends.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _fingerprint(module: Any, revision: str, tokenizer: str, lora: LoraSettings | None) -> str:
    config = {k: v for k, v in module.config.to_dict().items() if k not in VOLATILE_CONFIG_KEYS}
    shapes = {name: list(p.shape) for name, p in module.named_parameters() if p.requires_grad}
    parts = [config, revision, tokenizer, shapes, [lora.rank, lora.alpha] if lora else None]
    canonical = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()
