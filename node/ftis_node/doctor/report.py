"""A bundle for a bug report: what was found, the configuration and the end of the logs, without secrets and paths."""

from __future__ import annotations

import json
import os
import re
import tarfile
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ftis_node import __version__
from ftis_node.health import Gate
from ftis_node.state import StateDir

LOG_FILES, LOG_BYTES = 3, 256 * 1024

#: what could name a person or open a door, and what stands in its place
_REDACTIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(hf_|sk-|ghp_|github_pat_)[A-Za-z0-9_\-]{8,}"), "<secret>"),
    (
        re.compile(r"(?i)((?:[a-z_]*token|password|secret|api_?key)\"?\s*[=:]\s*)\"?[^\s\",;}]+"),
        r"\1<secret>",
    ),
    (re.compile(r"/p2p/[A-Za-z0-9]+"), "/p2p/<peer>"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "<ip>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}\b"), "<ip>"),
    (re.compile(r"(/dns[46]?/)[^/\s]+"), r"\1<host>"),
    (re.compile(r"\b[0-9a-fA-F]{64}\b"), "<hex>"),
    (re.compile(r"(?<![\w<./])/(?!ip[46]\b|dns|tcp\b|p2p\b|udp\b)(?:[\w.+@~-]+/)+([\w.+@~-]*)"), r"<path>/\1"),
)


def redacted(text: str) -> str:
    """`text` without keys, tokens, addresses, host and user names, and without the folders of paths."""
    for name in filter(None, (os.environ.get("USER"), os.environ.get("HOSTNAME"), Path.home().name)):
        if len(name) > 2 and name != "root":
            text = re.sub(rf"\b{re.escape(name)}\b", "<name>", text)
    for pattern, instead in _REDACTIONS:
        text = pattern.sub(instead, text)
    return text


def write_report(path: Path, gates: Sequence[Gate], settings: dict[str, Any], state: StateDir | None) -> Path:
    """Write the bundle to `path` (tar.gz) and return it; every text in it went through `redacted`."""
    parts = {
        "gates.json": json.dumps([gate.as_json() for gate in gates], indent=1),
        "config.json": json.dumps(settings, indent=1, default=str),
        "about.json": json.dumps(
            {"ftis-node": __version__, "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        ),
    }
    for log in _logs(state) if state else ():
        parts[f"logs/{log.name}"] = log.read_bytes()[-LOG_BYTES:].decode(errors="replace")
    with tarfile.open(path, "w:gz") as bundle:
        for name, text in parts.items():
            data = redacted(text).encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), int(time.time())
            bundle.addfile(entry, BytesIO(data))
    return path


def _logs(state: StateDir) -> list[Path]:
    files = [file for file in state.logs.glob("*.log") if not file.is_symlink()] + list(state.logs.glob("crash.txt"))
    return sorted(files, key=lambda file: file.stat().st_mtime)[-LOG_FILES:]
