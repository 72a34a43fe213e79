"""Low-rank adapters through peft: layers of the model are replaced in place, so its names and its class stay."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ftis_node.errors import UsageError


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """`alpha / rank` scales the adapter's output. `target_modules` is "all-linear" (all but the output head) or names
    of linear layers. `seed` fixes the adapter's first weights; torch's global random state is left alone."""

    rank: int = 16
    alpha: float = 32.0
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    seed: int = 0


def require_peft() -> None:
    """Raises UsageError where peft is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise UsageError(
            "training an adapter needs the package peft", hint="pip install 'ftis-node[lora]', or train all weights."
        )


def add_adapter(module: Any, settings: LoraSettings) -> None:
    """Put a fresh adapter into `module` and freeze everything else; the model computes what it did before. Raises
    UsageError for a missing peft and for target modules that do not exist or are embeddings."""
    require_peft()
    from peft import LoraConfig, inject_adapter_in_model

    targets = settings.target_modules
    hint = 'Use "all-linear", or names of linear layers such as q_proj.'
    ends = (module.get_input_embeddings(), module.get_output_embeddings())
    for name in (name for name, part in module.named_modules() if any(part is end for end in ends)):
        if name.rpartition(".")[2] in targets or name in targets:
            raise UsageError(f"{name}: embeddings and the output head cannot carry an adapter", hint=hint)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,  # dropout would make two passes with equal weights disagree
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        try:
            inject_adapter_in_model(config, module)
        except ValueError as error:
            raise UsageError(f"no adapter for the layers {targets}: {error}", hint=hint) from error
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(".lora_" in name)


def is_adapted(layer: Any) -> bool:
    """True for a layer that wraps a base layer with an adapter."""
    return hasattr(layer, "base_layer") and hasattr(layer, "get_delta_weight")
