"""What the next start knows about an end without a word."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ftis_node import processes
from ftis_node.aftermath import cause_of_death
from ftis_node.state_lock import Holder, StateLock

DYING = """
import sys
from pathlib import Path
from ftis_node.aftermath import crash_trace
from ftis_node.state_lock import StateLock
with StateLock.acquire(Path(sys.argv[1]) / "lock", "join"), crash_trace(Path(sys.argv[1])):
    exec(sys.argv[2])
"""


def die(folder: Path, how: str) -> tuple[int, Holder | None]:
    """Let a process take the lock and end in its own way; its exit code and what the next one finds."""
    done = subprocess.run([sys.executable, "-c", DYING, str(folder), how], capture_output=True)
    with StateLock.acquire(folder / "lock", "next") as lock:
        return done.returncode, lock.previous


def test_a_good_end_leaves_nothing_to_tell(tmp_path: Path) -> None:
    assert die(tmp_path, "pass") == (0, None)
    assert not (tmp_path / "crash.txt").exists()


def test_a_crash_in_a_library_is_named(tmp_path: Path) -> None:
    code, previous = die(tmp_path, "import ctypes; ctypes.string_at(0)")
    assert previous is not None
    assert code == -signal.SIGSEGV
    cause = cause_of_death(previous, tmp_path)
    assert cause.startswith("it crashed: Segmentation fault")
    assert "string_at" in cause


def test_a_kill_leaves_no_trace(tmp_path: Path) -> None:
    code, previous = die(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert previous is not None
    assert code == -signal.SIGKILL
    assert cause_of_death(previous, tmp_path).startswith("it was killed (SIGKILL)")


def test_memory_and_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(1, 0.0, "join", boot_id=processes.boot_id(), oom_kills=3)
    monkeypatch.setattr(processes, "oom_kills", lambda: 4)
    assert "has killed 1 process for memory" in cause_of_death(holder, tmp_path)
    assert "restarted" in cause_of_death(replace(holder, boot_id="another"), tmp_path)
    assert "SIGKILL" in cause_of_death(replace(holder, oom_kills=4), tmp_path)
    assert "SIGKILL" in cause_of_death(Holder(1, 0.0, "join"), tmp_path), "a lock of an earlier version"


def test_processes_and_their_memory() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        import os

        assert child.pid in processes.children_of(os.getpid())
        assert processes.tree_bytes(os.getpid()) > processes.resident_bytes(os.getpid()) > 0
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert processes.is_stopped(child.pid)
    finally:
        child.kill()
        child.communicate()
    assert processes.resident_bytes(child.pid) == 0
