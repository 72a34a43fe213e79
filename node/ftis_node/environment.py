"""Variables that libraries read when they are loaded; set before any of them is. What the operator set stays."""

from __future__ import annotations

import os
import socket
from pathlib import Path

HUB_HOST, HUB_PORT, HUB_SECONDS = "huggingface.co", 443, 5.0


def cache_dir() -> Path:
    """Where things that can be made again are kept: $FTIS_CACHE, or ~/.cache/ftis."""
    return Path(os.environ.get("FTIS_CACHE", "~/.cache/ftis")).expanduser()


def prepare() -> None:
    """Call first thing in a process."""
    defaults = {
        # Rust threads of the tokenizers library warn after a fork, and our batches are small.
        "TOKENIZERS_PARALLELISM": "false",
        # torch's C++ side writes warnings straight to stderr, past every log.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # Kernels that vLLM compiles at its first start; torch's own default is a shared place in /tmp.
        "TORCHINDUCTOR_CACHE_DIR": str(cache_dir() / "inductor"),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def note_unreachable_hub() -> bool:
    """Where the model hub cannot be reached, say so to the libraries that would otherwise retry for minutes: what they
    have in their cache still loads, and what they lack fails at once. Call before transformers is loaded; returns
    whether the hub is out of reach. A mirror (HF_ENDPOINT) is left to its operator."""
    if "HF_HUB_OFFLINE" in os.environ or "HF_ENDPOINT" in os.environ:
        return False
    try:
        socket.create_connection((HUB_HOST, HUB_PORT), HUB_SECONDS).close()
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"
        return True
    return False
