"""Variables that libraries read when they are loaded; set before any of them is. What the operator set stays."""

from __future__ import annotations

import os

DEFAULTS = {
    # Rust threads of the tokenizers library warn after a fork, and our batches are small.
    "TOKENIZERS_PARALLELISM": "false",
    # torch's C++ side writes warnings straight to stderr, past every log.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def prepare() -> None:
    """Call first thing in a process."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
