"""Child processes of a local swarm: `ftis-node` commands that never outlive whoever started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftis_node.errors import FtisError

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec only what is ready may be used
STOP_SECONDS = 15.0
TAIL_LINES = 12


class ChildFailed(FtisError):
    """A process of the local swarm ended before its work was done."""


@dataclass(slots=True)
class Child:
    """One running command; what it prints goes to `log_path`."""

    name: str
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def check(self) -> None:
        """Raise ChildFailed with the end of its log when it ended with an error."""
        code = self.process.poll()
        if code not in (None, 0):
            raise ChildFailed(
                f"{self.name} ended with exit code {code}:\n{self.tail()}", hint=f"The whole log is {self.log_path}."
            )

    def tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"  | {line}" for line in lines)

    def ended(self, seconds: float) -> bool:
        """Wait for its end at most `seconds`; whether it came."""
        try:
            self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to the whole group of the child."""
        if self.running:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def start_child(name: str, arguments: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> Child:
    """Run `ftis-node ARGUMENTS` in a process group of its own, tied to the life of this process."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ftis_node", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    return Child(name, process, log_path)


def stop_all(children: Sequence[Child]) -> None:
    """One SIGTERM to each, since a second would cut its orderly stop short; SIGKILL for those that take too long."""
    for child in children:
        if child.running:
            child.process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for child in children:
        if not child.ended(deadline - time.monotonic()):
            child.kill()


def _die_with_parent() -> None:
    """Linux: SIGTERM reaches the child when the starting thread is gone, however it went."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
