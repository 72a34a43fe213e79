"""New weights for a running vLLM, from a safetensors file. Imports vLLM; loaded only inside an engine's process.

vLLM calls start, update and finish on the engine registered here. Three things go wrong without it:

* the transfer engines that ship with vLLM move tensors between GPUs only;
* on a CPU the output head multiplies by a packed copy of its weight. A head tied to the input embedding gets no weight
  of its own from the file, so vLLM's reload does not pack it again and the old policy keeps choosing the tokens;
* a tensor that is missing in the file only costs a log line, and the old one stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "ftis_file"


@dataclass
class FileInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on beforehand: each update names its file."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """`path` of a safetensors file with the whole model under its Hugging Face names."""

    path: str


class FileTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):  # type: ignore[misc]
    """Loads a file layer by layer into the running model; the same code on CPU and GPU."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Needs no connection."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As in the base class, but the accelerator is only waited for where there is one, and a failure leaves a model
        that can at least take another file: some of its layers are shared with other engines of the process."""
        with ExitStack() as on_failure:
            on_failure.callback(self.finish_weight_update)
            self.receive_weights(self.parse_update_info(update_info))
            on_failure.pop_all()
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Raises ValueError when the file leaves a parameter of the model without a new value."""
        expected = {name for name, _ in self.model.named_parameters()}
        loaded = self.model.load_weights(_tensors(update_info.path))
        # Some architectures do not report what they loaded; a tied head never appears in the file.
        missing = expected - loaded - tied_heads(self.model, expected) if loaded is not None else None
        if missing:
            raise ValueError(f"no tensor in the file fills {', '.join(sorted(missing)[:3])} ({len(missing)} in all)")

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        pack_heads(self.model)

    def shutdown(self) -> None:
        """Holds nothing between updates."""


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
            yield name, file.get_tensor(name)


def tied_heads(model: torch.nn.Module, names: set[str]) -> set[str]:
    """Those of `names` that belong to an output head which shares the input embedding."""
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return set()
    heads = tuple(f"{name}." for name, part in model.named_modules() if isinstance(part, ParallelLMHead))
    return {name for name in names if name.startswith(heads)} if heads else set()


def pack_heads(model: torch.nn.Module) -> None:
    """Packs the weight of every output head again where a CPU kernel multiplies by a packed copy."""
    for part in model.modules():
        if isinstance(part, ParallelLMHead) and hasattr(part, "cpu_linear"):
            part.quant_method.process_weights_after_loading(part)


class FileTransferWorker:
    """vLLM imports this class in each worker, by name; the import registers the engine there, and that is all."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FileTransferEngine)
