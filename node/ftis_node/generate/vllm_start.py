"""Starting vLLM inside this process without disturbing the learner that lives here too.

vLLM reads its settings from the environment when it is imported, and its start changes things of the whole process: it
replaces torch.set_num_threads on a CPU, reseeds every random generator, and adds to LD_PRELOAD, which child processes
would inherit. All of that is put back once the engine stands.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from ftis_node.imports import guard_broken_extras

MEBIBYTE = 1 << 20

# vLLM's names for quantising full-precision weights as they are loaded.
QUANTIZATION = {"fp8": "fp8_per_tensor", "int8": "int8_per_channel_weight_only"}

# Process-wide variables that vLLM's start may set and that others here, or their children, would trip over.
_RESTORED_VARIABLES = ("LD_PRELOAD", "LOCAL_WORLD_SIZE", "NUMEXPR_MAX_THREADS")


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """How to start vLLM.

    `model_dir`: a Hugging Face checkpoint. `cache_dir`: kept between runs, because the kernel that vLLM compiles for
    log-probs takes 15-20 seconds. `context`: longest prompt and completion together, in tokens. `kv_cache_bytes`:
    memory for keys and values; always explicit, since vLLM otherwise takes a fraction of the whole machine.
    `max_rows`: completions that grow at once. `eager`: no CUDA graphs (a CPU never has them). `quantization`: vLLM
    quantises the weights that it gets, at the start and at every hand-over; GPUs only. `sleeps`: the engine shall be
    able to give its memory to the learner; GPUs only.
    """

    model_dir: Path
    cache_dir: Path
    device: str = "cpu"
    dtype: str = "float32"
    context: int = 1024
    kv_cache_bytes: int = 256 * MEBIBYTE
    max_rows: int = 64
    eager: bool = False
    quantization: Literal["none", "fp8", "int8"] = "none"
    sleeps: bool = False

    def __post_init__(self) -> None:
        assert self.device in ("cpu", "cuda"), self.device
        assert self.dtype in ("float32", "bfloat16"), self.dtype
        assert self.device == "cuda" or (self.quantization == "none" and not self.sleeps)

    @property
    def precision(self) -> str:
        """The coarsest number type that the engine computes with."""
        return self.dtype if self.quantization == "none" else self.quantization


def prepare_environment(settings: VllmSettings) -> None:
    """Sets what vLLM and its compiler read from the environment. A value that the operator set stays.

    Threads are not among it: OMP_NUM_THREADS counts only before torch is imported, so it belongs to the start of the
    process. It matters: two busy threads on one core cost a factor of eight.
    """
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CONFIGURE_LOGGING": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(settings.cache_dir / "torchinductor"),
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    # The engine's state must live here, or a seed and the restored weights would concern another process.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    guard_broken_extras()
    logging.getLogger("vllm").setLevel(logging.ERROR)


def start_engine(settings: VllmSettings) -> Any:
    """A started `vllm.LLM` with the file transfer engine. Raises whatever vLLM raises."""
    prepare_environment(settings)
    with undisturbed():
        from vllm import LLM
        from vllm.config import WeightTransferConfig

        from ftis_node.generate import vllm_weights

        worker = vllm_weights.FileTransferWorker
        return LLM(
            model=str(settings.model_dir),
            skip_tokenizer_init=True,
            dtype=settings.dtype,
            # A checkpoint's generation_config.json may carry top_k or penalties; "vllm" means none of them.
            generation_config="vllm",
            max_model_len=settings.context,
            max_num_seqs=settings.max_rows,
            kv_cache_memory_bytes=settings.kv_cache_bytes,
            enable_prefix_caching=True,
            logprobs_mode="raw_logprobs",
            seed=0,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            trust_remote_code=False,
            weight_transfer_config=WeightTransferConfig(backend=vllm_weights.BACKEND),
            worker_extension_cls=f"{worker.__module__}.{worker.__qualname__}",
            **(_cpu_arguments() if settings.device == "cpu" else _cuda_arguments(settings)),
        )


def _cpu_arguments() -> dict[str, Any]:
    # Blocks of 32 tokens, the smallest the CPU kernel takes, let members of a group share short prompts as well.
    return {"enforce_eager": True, "block_size": 32}


def _cuda_arguments(settings: VllmSettings) -> dict[str, Any]:
    """Next to a learner on the same card vLLM must not claim its usual nine tenths: what it needs, and no more."""
    total = torch.cuda.get_device_properties(0).total_memory
    weights = sum(file.stat().st_size for file in settings.model_dir.glob("*.safetensors"))
    needed = weights + settings.kv_cache_bytes + 2048 * MEBIBYTE
    share = min(0.95, max(0.01, needed / total))
    arguments: dict[str, Any] = {"enforce_eager": settings.eager, "gpu_memory_utilization": share}
    if settings.quantization != "none":
        arguments["quantization"] = QUANTIZATION[settings.quantization]
    return arguments | {"enable_sleep_mode": settings.sleeps}


def stop_engines(engines: Sequence[Any]) -> None:
    """Shuts down all of this process's engines, and vLLM's process groups with them; also what a failed start left."""
    for llm in engines:
        llm.llm_engine.engine_core.shutdown()
    if "vllm.distributed" in sys.modules:
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Puts back what an engine start changes for the whole process: thread control and count, random states,
    inherited variables. Third parties' deprecation warnings of the start are not shown."""
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    python_state, numpy_state, torch_state = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    cuda_ready = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda_states = torch.cuda.get_rng_state_all() if cuda_ready else []
    variables = {name: os.environ.get(name) for name in _RESTORED_VARIABLES}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
