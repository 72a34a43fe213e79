"""What the kernel tells about processes and memory, read from /proc; a system without it knows nothing."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def children_of(pid: int) -> tuple[int, ...]:
    """Every living descendant of a process."""
    by_parent: dict[int, list[int]] = defaultdict(list)
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            by_parent[int(fields[1])].append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = by_parent.get(waiting.pop(), [])
        found += below
        waiting += below
    return tuple(found)


def is_stopped(pid: int) -> bool:
    """Whether a signal (or a debugger) holds the process."""
    fields = _stat(pid)
    return fields is not None and fields[0] in ("T", "t")


def resident_bytes(pid: int) -> int:
    """Memory of one process that is in RAM; 0 for one that is gone."""
    try:
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def tree_bytes(pid: int) -> int:
    """Resident memory of a process and all that it started."""
    return sum(map(resident_bytes, (pid, *children_of(pid))))


def boot_id() -> str:
    """Names this run of the machine; empty where it is not told."""
    return _text(PROC / "sys/kernel/random/boot_id")


def oom_kills() -> int | None:
    """Processes that the kernel has killed for memory since the machine started; None where it is not told."""
    for line in _text(PROC / "vmstat").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None


def _stat(pid: int) -> list[str] | None:
    """State, parent and the following fields of a process; its name may hold blanks and brackets."""
    text = _text(PROC / str(pid) / "stat")
    return text.rpartition(") ")[2].split() if text else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
