"""A process with an engine in it: started, spoken to, and ended for certain."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ftis_node
import ftis_protocol
from ftis_node.errors import EngineError
from ftis_node.generate.jobs import Answer, Control, Reads, Ready, Refused
from ftis_node.generate.vllm_start import VllmSettings

#: the longest start that is waited for: imports, a compiled kernel, a large checkpoint on a slow disk
START_SECONDS = 600.0
_STATES = {"T": "stopped by a signal", "D": "waiting for a disk", "Z": "dead", "R": "computing", "S": "asleep"}


class EngineProcess:
    """One running child. Its pipe may be written by one thread at a time, and read by one.

    Started from a thread that lives as long as the engine shall: the kernel ends the child with that thread.
    """

    def __init__(self, settings: VllmSettings, policy_version: int, threads: int, log_path: Path | None) -> None:
        ours, theirs = socket.socketpair()
        with theirs, open(log_path or os.devnull, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ftis_node.generate.vllm_child", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(threads),
                start_new_session=True,  # the compilers that it starts end with it
            )
        self.pipe: Connection[Any, Any] = Connection(ours.detach())
        self.pipe.send((settings, policy_version))

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, tokenizer: str) -> None:
        """Until the engine stands. Raises EngineError when there is none to be had, or when it reads with another
        tokenizer than the one with that fingerprint."""
        reads = self._hear()
        assert isinstance(reads, Reads)
        if reads.tokenizer != tokenizer:
            raise EngineError(
                f"the engine reads with tokenizer {reads.tokenizer}, the learner with {tokenizer}",
                hint="the checkpoint that the engine was given is not the learner's: remove the engine's copy of it",
            )
        assert isinstance(self._hear(), Ready)

    def _hear(self) -> Ready | Reads:
        try:
            answer = self.pipe.recv() if self.pipe.poll(START_SECONDS) else None
        except (EOFError, OSError):
            raise EngineError(
                f"vLLM's process ended while it started ({self.end()})",
                hint="its log says more; free memory, or choose the transformers generator",
            ) from None
        if isinstance(answer, Refused):
            raise EngineError(answer.text, hint=answer.hint)
        if answer is None:
            raise EngineError(
                f"vLLM's process did not start within {START_SECONDS:g} s ({self.condition})",
                hint="look into its log, or choose the transformers generator",
            )
        heard: Ready | Reads = answer
        return heard

    def exchange(self, control: Control) -> Answer:
        """The answer to a question, while nothing else is under way. Raises EngineError when the engine refuses, and
        EOFError when it ends or hangs."""
        self.pipe.send(control)
        if not self.pipe.poll(START_SECONDS):
            raise EOFError
        answer: Answer = self.pipe.recv()
        if isinstance(answer, Refused):
            raise EngineError(answer.text, hint=answer.hint)
        return answer

    @property
    def condition(self) -> str:
        """What the process does, in words."""
        try:
            code = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "gone"
        return _STATES.get(code, code)

    def kill(self) -> None:
        """Signals only; `end` waits."""
        if self._process.returncode is None:  # not waited for yet, so the number is still its own
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> str:
        """End it and all that it started, at once; how it ended, in words."""
        self.kill()
        code = self._process.wait()
        self.pipe.close()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _environment(threads: int) -> dict[str, str]:
    """The node's own, with the engine's thread count, and the packages found where the node found them."""
    homes = [str(Path(str(package.__file__)).parents[1]) for package in (ftis_node, ftis_protocol)]
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*dict.fromkeys(homes), *([before] if before else [])])
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return {**os.environ, **counts, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
