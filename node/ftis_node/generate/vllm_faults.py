"""What can be said about a vLLM that failed: it has no error class of its own, and its messages are for its authors."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from ftis_node.errors import UsageError

# What vLLM raises for models, settings and machines that it cannot serve.
ENGINE_FAILURES = (
    RuntimeError, ValueError, TypeError, AttributeError, KeyError, AssertionError, ImportError, OSError, MemoryError
)  # fmt: skip


def check_file(path: Path) -> None:
    try:
        with safe_open(path, framework="pt"):
            return
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"no usable weights at {path}: {first_line(error)}",
            hint="export the policy's weights again; is a disk full?",
        ) from error


def first_line(error: BaseException) -> str:
    """The first line that says something: one that only announces the next ("... raised:") takes that along."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def hint_for(error: BaseException) -> str:
    text = str(error).lower()
    if "head" in text:
        return "this model's attention heads have a size that vLLM cannot compute: choose the transformers generator"
    if "memory" in text or isinstance(error, MemoryError):
        return "lower kv_cache_mebibytes, free memory, or choose the transformers generator"
    if "compil" in text or "g++" in text:
        return "vLLM compiles a kernel at its start: install a C++ compiler (g++), or choose the transformers generator"
    return "choose the transformers generator, or run the doctor command"
