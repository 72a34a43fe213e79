"""Sockets of dead daemons go, those of living ones stay."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ftis_node.swarm.leftovers import clear_dead_sockets


def made(path: Path, *, old: bool = True) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    if old:
        os.utime(path, (0, 0))
    return listener


def test_only_the_dead_go(tmp_path: Path) -> None:
    dead, alive, young = (tmp_path / f"hivemind-p2pd-{name}.sock" for name in ("dead", "alive", "young"))
    made(dead).close()
    made(young, old=False).close()
    other = tmp_path / "something.sock"
    made(other).close()
    with made(alive):
        assert clear_dead_sockets(tmp_path) == 1
    assert sorted(tmp_path.iterdir()) == sorted((alive, young, other))
