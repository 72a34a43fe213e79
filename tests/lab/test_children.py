"""Ending the processes of a local swarm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ftis_node.lab import children
from ftis_node.lab.children import Child, ChildFailed, stop_all

#: says that it is ready; ends with the number of SIGTERMs it got, or not at all
SCRIPT = """
import signal, sys, time
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
print("ready", flush=True)
while {keeps_on} or not got:
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(len(got))
"""


def child(tmp_path: Path, *, keeps_on: bool = False) -> Child:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(keeps_on=keeps_on)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    log = tmp_path / "log"
    log.write_text("the last words\n")
    return Child("the node", process, log)


def test_one_signal_for_each(tmp_path: Path):
    several = [child(tmp_path) for _ in range(3)]
    stop_all(several)
    assert [each.process.returncode for each in several] == [1, 1, 1]
    stop_all(several)  # nothing is left to be stopped


def test_who_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(children, "STOP_SECONDS", 0.2)
    stubborn = child(tmp_path, keeps_on=True)
    stop_all([stubborn])
    assert stubborn.process.returncode == -9


def test_an_early_end_comes_with_the_last_words(tmp_path: Path):
    ended = child(tmp_path)
    ended.check()
    ended.process.terminate()
    ended.process.wait()
    with pytest.raises(ChildFailed, match="the last words"):
        ended.check()
