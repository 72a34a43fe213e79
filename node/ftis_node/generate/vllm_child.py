"""The engine's own process: reads jobs from a pipe, grows them, writes finished groups back.

Started by `engine_process`, with its end of a socket pair and its parent's process id as arguments. It ends when the
pipe does, and the kernel ends it when its parent is gone, however that happened: also in the middle of a long step, and
also while it is stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ftis_node.errors import FtisError
from ftis_node.generate.jobs import (
    Answer,
    Asleep,
    Cancel,
    Cancelled,
    Close,
    Control,
    Job,
    Load,
    Loaded,
    Reads,
    Ready,
    Refused,
    Release,
    Score,
    Scored,
)
from ftis_node.generate.vllm_stepper import Stepper
from ftis_node.tokens import TextCodec

PR_SET_PDEATHSIG = 1


class ChildLoop:
    """Between the pipe and the engine. New weights come in three acts: running jobs end (or are put back), the weights
    are loaded and scored, and `Release` lets the jobs begin that have waited."""

    def __init__(self, pipe: Connection, engine: Stepper) -> None:
        self._pipe = pipe
        self._engine = engine
        self._waiting: deque[Job] = deque()
        self._controls: deque[Control] = deque()
        self._held = False

    def run(self) -> None:
        """Until the pipe ends or `Close` comes."""
        while True:
            idle = not (self._engine.busy or self._controls or (self._waiting and not self._held))
            while idle or self._pipe.poll():
                idle = False
                message = self._pipe.recv()
                if isinstance(message, Close):
                    return
                self._take(message)
            self._work()

    def _take(self, message: Any) -> None:
        match message:
            case Job():
                self._waiting.append(message)
            case Cancel(number):
                known = self._engine.cancel(number) is not None
                left = deque(job for job in self._waiting if job.number != number)
                if known or len(left) < len(self._waiting):
                    self._pipe.send(Cancelled(number))
                self._waiting = left
            case Release():
                self._held = False
            case _:
                self._controls.append(message)

    def _work(self) -> None:
        if self._controls:
            self._put_back_if_asked()
        elif not self._held:
            while self._waiting:
                self._engine.add(self._waiting.popleft())
        if self._engine.busy:
            for group in self._engine.step():
                self._pipe.send(group)
        if self._controls and not self._engine.busy:
            self._pipe.send(self._answer(self._controls.popleft()))

    def _put_back_if_asked(self) -> None:
        """Under `abort` running jobs begin anew, under the new weights; nobody loses a group."""
        first = self._controls[0]
        if isinstance(first, Load) and first.running == "abort":
            for number in reversed(self._engine.numbers):
                job = self._engine.cancel(number)
                assert job is not None
                self._waiting.appendleft(job)

    def _answer(self, control: Control) -> Answer:
        try:
            match control:
                case Load(path, version, _):
                    self._held = True
                    self._engine.load(Path(path), version)
                    return Loaded(version)
                case Score(prompt_ids, completion_ids):
                    return Scored(self._engine.score(prompt_ids, completion_ids))
                case _:
                    self._held = True
                    self._engine.sleep()
                    return Asleep()
        except FtisError as error:
            return Refused(str(error), error.hint)


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process with the thread that started it. Ends it if `parent` is gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Settings come as the first message. The answers to it: which tokenizer this is, then `Ready` or `Refused`."""
    pipe = Connection(int(sys.argv[1]))
    die_with_parent(int(sys.argv[2]))
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C is meant for the node, which ends its engine itself
        signal.signal(number, signal.SIG_IGN)
    try:
        settings, policy_version = pipe.recv()
        try:
            codec = TextCodec.load(settings.model_dir)
            pipe.send(Reads(codec.fingerprint))
            engine = Stepper(settings, codec, policy_version)
        except FtisError as error:
            pipe.send(Refused(str(error), error.hint))
            return
        pipe.send(Ready())
        try:
            ChildLoop(pipe, engine).run()
        finally:
            engine.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the node is gone
        return


if __name__ == "__main__":
    main()
