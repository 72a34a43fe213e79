"""The machine and the versions that a measurement depends on, as one line under its numbers."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from ftis_node import __version__


def describe_machine() -> str:
    """Processor, cores, system and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    return (
        f"{processor}, {os.cpu_count()} cores, {platform.system()}; Python {platform.python_version()}, "
        f"torch {version('torch')}, transformers {version('transformers')}, ftis-node {__version__}"
    )
