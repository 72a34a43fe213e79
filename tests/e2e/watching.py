"""Looking at running nodes from outside: their processes, their databases, and waiting for something to happen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ftis_node.errors import FtisError
from ftis_node.state import StateDir
from ftis_node.store import Store

#: an event may take this long on a machine that is busy with other things
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.1
T = TypeVar("T")


def until(ask: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """The first true answer of `ask`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def processes(session: int) -> dict[int, str]:
    """Pid -> name of the living processes of a session; a node that was started as a child leads its own."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(") ")
            except OSError:
                continue
            state, _parent, _group, owner = rest.split()[:4]
            if int(owner) == session and state != "Z":
                found[int(entry.name)] = name
    return found


def daemons(session: int) -> list[int]:
    """Pids of the transport daemons of a node."""
    return [pid for pid, name in processes(session).items() if name.startswith("p2pd")]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


class Window:
    """What a node's own database says at this moment; None or empty before there is one."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def read(self, question: Callable[[Store], T], otherwise: T) -> T:
        """Ask the database; `otherwise` while it does not exist or is just being made."""
        if not (self.state / "swarms").is_dir():
            return otherwise
        current = StateDir.existing(self.state).current_swarm()
        if current is None or not current[1].database.exists():
            return otherwise
        try:
            store = Store.view(current[1].database)
        except FtisError:
            return otherwise
        try:
            return question(store)
        except FtisError:
            return otherwise
        finally:
            store.close()

    def fact(self, key: str) -> object:
        return self.read(lambda store: store.fact(key), None)

    @property
    def step(self) -> int:
        return int(str(self.fact("step") or 0))

    def total(self, name: str) -> int:
        return int(self.read(lambda store: store.totals().get(name, 0), 0))

    def refused(self) -> dict[str, int]:
        """Refusals by reason."""
        counts = self.read(lambda store: store.counts(), {})
        return {reason: count for (verdict, reason), count in counts.items() if verdict == "refused"}

    def checkpoints(self) -> list[Path]:
        return sorted(self.state.glob("swarms/*/checkpoints/checkpoint-*"))
