"""The state directory: its layout, what the file system may refuse, and the lock that dies with its holder."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from ftis_node import logfile, state_lock
from ftis_node.errors import NotAllowed, UsageError
from ftis_node.state import StateDir


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(state_lock, "_PATIENCE_SECONDS", 0.01)


def test_opening_creates_a_private_directory(tmp_path):
    state = StateDir.open(tmp_path / "a" / "b")
    assert state.root.stat().st_mode & 0o777 == 0o700
    assert state.logs.is_dir()
    assert {path.name for path in state.root.iterdir()} == {"logs", "swarms"}
    assert StateDir.open(tmp_path / "a" / "b") == state
    assert StateDir.existing(state.root) == state


def test_home_is_resolved(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert StateDir.open(Path("~/.ftis")).root == tmp_path / ".ftis"


def test_looking_creates_nothing(tmp_path):
    with pytest.raises(UsageError, match="no node in"):
        StateDir.existing(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_every_swarm_has_its_own_directory_and_the_last_is_current(tmp_path):
    state = StateDir.open(tmp_path)
    assert state.current_swarm() is None
    first, second = state.swarm("aaa"), state.swarm("bbb")
    assert first.database != second.database
    assert second.checkpoints.is_dir()
    assert state.current_swarm() == ("bbb", second)
    state.swarm("aaa")
    assert state.current_swarm() == ("aaa", first)
    shutil.rmtree(first.path)
    assert state.current_swarm() is None


@pytest.mark.parametrize("content", [b"", b"../../etc", b"\xff\xff", b"a b"])
def test_a_damaged_note_of_the_current_swarm_is_none(tmp_path, content):
    state = StateDir.open(tmp_path)
    (tmp_path / "current").write_bytes(content)
    assert state.current_swarm() is None


def test_pins(tmp_path):
    state = StateDir.open(tmp_path)
    assert state.pinned("/ip4/1.2.3.4") is None
    state.pin("/ip4/1.2.3.4", "aaa")
    state.pin("/ip4/5.6.7.8", "bbb")
    assert state.pinned("/ip4/1.2.3.4") == "aaa"
    for damage in (b"", b"{", b"[1]"):
        (tmp_path / "pins.json").write_bytes(damage)
        with pytest.raises(UsageError, match="damaged"):
            state.pinned("/ip4/1.2.3.4")


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="a file, not a directory") as caught:
            StateDir.open(path)
        assert "--state" in caught.value.hint


def test_a_place_that_takes_no_files():
    with pytest.raises(UsageError, match="cannot use /proc/ftis"):
        StateDir.open(Path("/proc/ftis"))


def test_too_little_disk(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 10 * 1024**2))
    with pytest.raises(UsageError, match="needs 64 MiB of free disk, 10 MiB are left"):
        StateDir.open(tmp_path / "x")
    assert StateDir.open(tmp_path / "x", free_bytes=1024).root.is_dir()


def test_a_second_holder_is_refused_by_name(tmp_path):
    state = StateDir.open(tmp_path)
    assert state.holder() is None
    with state.lock("join") as lock:
        assert lock.previous is None
        with pytest.raises(NotAllowed, match=rf"process {os.getpid()} \(`join`\)") as caught:
            state.lock("seed")
        assert str(os.getpid()) in caught.value.hint
        holder = state.holder()
        assert holder is not None
        assert (holder.pid, holder.command) == (os.getpid(), "join")
    assert state.holder() is None
    with state.lock("seed") as lock:
        assert lock.previous is None
        lock.release()
        lock.release()


_HOLDER = """
import os, sys
from pathlib import Path
from ftis_node.state import StateDir
lock = StateDir.open(Path(sys.argv[1])).lock("join --swarm x")
with_child = len(sys.argv) > 2
if not with_child or os.fork() == 0:
    print("held", flush=True)
os.read(0, 1)  # a child outlives its parent until stdin closes
os._exit(0)
"""


@pytest.mark.parametrize("with_child", [False, True], ids=["alone", "with a forked child"])
def test_a_killed_holder_leaves_nothing_locked(tmp_path, with_child):
    state = StateDir.open(tmp_path)
    arguments = [sys.executable, "-c", _HOLDER, str(tmp_path), *(["fork"] if with_child else [])]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(NotAllowed, match=f"process {holder.pid} "):
            state.lock("join")
        found = state.holder()
        assert found is not None
        assert found.pid == holder.pid
        holder.kill()
        holder.wait(timeout=30)
        assert state.holder() is None
        with state.lock("join") as lock:
            assert lock.previous is not None
            assert (lock.previous.pid, lock.previous.command) == (holder.pid, "join --swarm x")


def test_a_damaged_lock_file_is_still_a_lock(tmp_path):
    state = StateDir.open(tmp_path)
    (tmp_path / "lock").write_bytes(b"\xff{")
    with state.lock("join") as lock:
        assert lock.previous is None
        (tmp_path / "lock").write_bytes(b"")
        with pytest.raises(NotAllowed, match="another process"):
            state.lock("join")
        assert state.holder() is not None


def test_one_log_per_start_and_a_link_to_the_latest(tmp_path):
    level = logging.getLogger().level
    try:
        path = logfile.begin(tmp_path, "info")
        logging.getLogger("ftis_node.x").info("hello")
        logging.getLogger("ftis_node.x").debug("not this")
        logging.getLogger("stranger").info("not this")
        assert logfile.current() == path
        assert (tmp_path / "latest").resolve() == path.resolve()
        assert "hello" in path.read_text()
        assert "not this" not in path.read_text()
    finally:
        logfile.end()
        logging.getLogger().setLevel(level)
    assert logfile.current() is None


def test_old_logs_go(tmp_path, monkeypatch):
    monkeypatch.setattr(logfile, "FILES_KEPT", 3)
    for number in range(5):
        file = tmp_path / f"2020010{number}T000000-1.log"
        file.touch()
        os.utime(file, (number, number))
    level = logging.getLogger().level
    path = logfile.begin(tmp_path)
    logfile.end()
    logging.getLogger().setLevel(level)
    kept = sorted(file.name for file in tmp_path.glob("*.log"))
    assert kept == ["20200103T000000-1.log", "20200104T000000-1.log", path.name]


def test_small_files_are_replaced_whole(tmp_path):
    state = StateDir.open(tmp_path)
    for number in range(3):
        state.pin("a", str(number))
    assert json.loads((tmp_path / "pins.json").read_text()) == {"a": "2"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
