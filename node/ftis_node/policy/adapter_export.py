"""A trained adapter alone, as a directory that peft loads beside its base model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from safetensors.torch import save_file

from ftis_node.errors import UsageError
from ftis_node.policy.export import disk_errors
from ftis_node.policy.model import Policy

#: how peft names the layers of the model inside its wrapper, and the one adapter that we have
_WRAPPER, _ADAPTER = "base_model.model.", ".default"


def export_adapter(policy: Policy, directory: Path, base_model: str) -> None:
    """Write the adapter and its configuration. UsageError for a policy without one, for a directory that holds
    something, and when the disk refuses."""
    if policy.lora is None:
        raise UsageError("all weights were trained: there is no adapter", hint="Export the merged model instead.")
    with disk_errors(directory):
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError(f"{directory} exists and is not empty", hint="Name a new directory for the export.")
        aside = directory.with_name(f".{directory.name}.{os.getpid()}.part")
        try:
            aside.mkdir(parents=True)
            weights = {
                _WRAPPER + name.replace(_ADAPTER, ""): parameter.detach().cpu().contiguous()
                for name, parameter in policy.trainable_parameters.items()
            }
            save_file(weights, aside / "adapter_model.safetensors", metadata={"format": "pt"})
            layers = sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in policy.trainable_parameters})
            config = {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": base_model,
                "r": policy.lora.rank,
                "lora_alpha": policy.lora.alpha,
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": layers,
                "inference_mode": True,
            }
            (aside / "adapter_config.json").write_text(json.dumps(config, indent=1))
            policy.codec.tokenizer.save_pretrained(aside)
            os.replace(aside, directory)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
