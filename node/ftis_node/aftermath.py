"""What is known about the end of a process that did not say good-bye.

Its lock tells who it was and what the kernel had counted when it began (see `state_lock.Holder`); a crash inside a
library leaves a trace that the interpreter wrote with its last breath. What leaves no trace is called that.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ftis_node import processes
from ftis_node.state_lock import Holder

CRASH_FILE = "crash.txt"
_FRAMES_SHOWN = 3


def cause_of_death(previous: Holder, logs: Path) -> str:
    """One sentence about why the process `previous` ended without releasing its lock."""
    boot = processes.boot_id()
    if previous.boot_id and boot and previous.boot_id != boot:
        return "the machine was restarted, or lost its power"
    if crash := _crash(logs, previous.pid):
        return f"it crashed: {crash}"
    before, now = previous.oom_kills, processes.oom_kills()
    if before is not None and now is not None and now > before:
        killed = now - before
        return (
            f"probably memory: since it began the kernel has killed {killed} process{'es' if killed > 1 else ''} "
            "for memory (see the kernel's log)"
        )
    return "it was killed (SIGKILL), or ended in a way that leaves no trace"


@contextmanager
def crash_trace(logs: Path) -> Iterator[None]:
    """While inside, a crash of this process (a bad memory access, an abort) writes its trace to a file in `logs`."""
    path = logs / CRASH_FILE
    with path.open("w", encoding="utf-8") as file:
        file.write(f"pid {os.getpid()}\n")
        file.flush()
        faulthandler.enable(file, all_threads=True)
        # asked for by hand (kill -USR1), it shows what a process that hangs is doing
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        try:
            yield
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            faulthandler.disable()
    path.unlink(missing_ok=True)


def _crash(logs: Path, pid: int) -> str:
    """The first lines of the trace that process `pid` left; empty when it left none."""
    try:
        lines = (logs / CRASH_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    if not lines or lines[0] != f"pid {pid}" or not any(line.startswith("Fatal") for line in lines):
        return ""
    start = next(place for place, line in enumerate(lines) if line.startswith("Fatal"))
    frames = [line.strip() for line in lines[start + 1 :] if line.strip().startswith("File")]
    return "; ".join([lines[start].removeprefix("Fatal Python error: "), *frames[:_FRAMES_SHOWN]])
