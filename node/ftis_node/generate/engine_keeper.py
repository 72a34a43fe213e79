"""Keeps an engine process alive and its work together.

One thread owns the process: it starts it, reads what it writes, watches the time limit of each job, and when the
process dies or hangs it starts another one, gives it the weights that the dead one had, checks them, and hands it the
jobs that were under way. The kernel ends the process with this thread, so no engine outlives its node.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftis_node.errors import EngineError
from ftis_node.generate.base import Notify, mean_gap
from ftis_node.generate.engine_process import EngineProcess
from ftis_node.generate.jobs import (
    Answer,
    Cancel,
    Cancelled,
    Care,
    Close,
    Control,
    Finished,
    Job,
    Load,
    Proof,
    Refused,
    Release,
    Running,
    Score,
    Scored,
)  # fmt: skip
from ftis_node.generate.pending_jobs import PendingJobs
from ftis_node.generate.vllm_start import VllmSettings

#: how often time limits are looked at; news from the process are read at once
WATCH_SECONDS = 0.25
#: deaths within this time that are more than bad luck
DEATHS_SECONDS, DEATHS_ALLOWED = 900.0, 3


class EngineGone(EngineError):
    """The process ended while it was asked something; another one is on its way."""


class EngineKeeper:
    """The engine process of one generator. Public calls may come from any thread.

    Raises EngineError when there is no engine to be had at the start.
    """

    def __init__(self, settings: VllmSettings, policy_version: int, care: Care, alarm: float, notify: Notify) -> None:
        self._settings, self._first_version, self._care, self._notify = settings, policy_version, care, notify
        self._alarm = alarm
        self._process: EngineProcess | None = None
        self._jobs = PendingJobs(care.request_seconds)
        self._lock = threading.RLock()  # of the pipe's writing end, and of which process that is
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._deaths: deque[float] = deque()
        self._load: Load | None = None
        self._proof: Proof | None = None
        self._serving = threading.Event()
        self._closing_since: float | None = None
        self._failure: EngineError | None = None
        self._thread = threading.Thread(target=self._keep, name="engine-keeper", daemon=True)
        self._thread.start()
        self._await_engine()

    @property
    def pid(self) -> int | None:
        """The engine's process, None while there is none."""
        process = self._process
        return process.pid if process else None

    def submit(self, job: Job) -> Future[Finished]:
        """The job's group, sooner or later. The future fails with EngineError; cancelling it gives the job up."""
        with self._lock:
            self._check()
            future = self._jobs.add(job, lambda number: self._send(Cancel(number)))
            if self._serving.is_set():
                self._send(job)
        return future

    def load(self, path: Path, policy_version: int, running: Running) -> None:
        """New weights, for this process and for those that may have to follow it. Jobs wait until `release`."""
        before = self._load, self._proof
        self._load, self._proof = Load(str(path), policy_version, running), None
        try:
            self._ask(self._load)
        except EngineGone:
            self._await_engine()  # it came with these weights, on its way up
        except EngineError:
            self._load, self._proof = before
            raise

    def score(self, proof: Proof) -> float:
        """How far the engine is from the learner, in nats per token. What passes is asked of later processes too."""
        for _ in range(DEATHS_ALLOWED + 1):
            with suppress(EngineGone):
                answer = self._ask(Score(proof.prompt_ids, proof.completion_ids))
                assert isinstance(answer, Scored)
                gap = mean_gap(answer.logprobs, proof.logprobs)
                self._proof = proof if gap <= self._alarm else self._proof
                return gap
        raise EngineError("the engine died again and again while it was checked", hint="its log says more")

    def rest(self, control: Control) -> None:
        """Send it to sleep."""
        self._ask(control)

    def release(self) -> None:
        """Jobs that waited for the new weights may begin."""
        self._send(Release())

    def close(self) -> None:
        """End the process and wait for that. Twice is harmless."""
        with self._lock:
            self._closing_since = self._closing_since or time.monotonic()
            if self._serving.is_set():
                self._send(Close())
            elif self._process is not None:
                self._process.kill()
        self._thread.join()

    # ---- the keeper's thread -------------------------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            while self._closing_since is None:
                try:
                    self._serve(self._start())
                except (EOFError, OSError):
                    self._bury()
                except EngineError as error:
                    if not self._deaths:  # it never worked
                        raise
                    self._bury(str(error))
        except EngineError as error:
            self._failure = error
            self._notify("engine-failed", str(error))
        finally:
            self._let_go()

    def _start(self) -> EngineProcess:
        """A process with the right tokenizer and, if there were any since the first start, the right weights."""
        with self._lock:
            care = self._care
            process = EngineProcess(self._settings, self._first_version, care.threads, care.log_path)
            self._process = process
        process.wait_until_ready(care.tokenizer)
        self._bring_weights(process)
        with self._lock:
            taken_over = self._jobs.begin_again()
            for job in taken_over:
                process.pipe.send(job)
            self._serving.set()
        if self._deaths:
            self._notify("engine-restarted", f"process {process.pid} samples now; groups taken over: {len(taken_over)}")
        return process

    def _bring_weights(self, process: EngineProcess) -> None:
        """What the last process had, and the same check. Weights that nobody had checked yet are left to their owner,
        who is about to, and jobs wait."""
        load, proof = self._load, self._proof
        for _ in range(2):
            if load is not None:
                process.exchange(load)
            if proof is None:
                return
            answer = process.exchange(Score(proof.prompt_ids, proof.completion_ids))
            assert isinstance(answer, Scored)
            gap = mean_gap(answer.logprobs, proof.logprobs)
            if gap <= self._alarm:
                process.pipe.send(Release())
                return
        raise EngineError(
            f"a restarted engine is {gap:.3f} nats a token away from the learner (allowed {self._alarm})",
            hint="restart the node; if it happens again choose the transformers generator",
        )

    def _serve(self, process: EngineProcess) -> None:
        """Read until the process ends."""
        while True:
            if process.pipe.poll(WATCH_SECONDS):
                match message := process.pipe.recv():
                    case Finished():
                        self._jobs.finish(message)
                    case Cancelled(number):
                        self._jobs.expire(number)
                    case _:
                        self._answers.put(message)
            self._watch(process)

    def _watch(self, process: EngineProcess) -> None:
        """Ask for jobs that take too long; an engine that is deaf to that hangs. A question has its own time limit."""
        grace = self._care.grace_seconds
        if self._closing_since is not None and time.monotonic() > self._closing_since + grace:
            process.kill()
        if self._asking.locked():
            return
        for number in self._jobs.overdue():
            self._send(Cancel(number))
        if self._jobs.ignored(grace):
            self._kill(f"a group took longer than {self._care.request_seconds:g} s")

    def _bury(self, why: str = "") -> None:
        """Tidy up after a process that ended, or was of no use. Raises EngineError when this happens too often."""
        with self._lock:
            self._serving.clear()
            process, self._process = self._process, None
        ended = process.end() if process is not None else "it could not be started"
        how = why or ended
        self._answers.put(None)
        if self._closing_since is not None:
            return
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > DEATHS_SECONDS:
            self._deaths.popleft()
        self._notify("engine-died", f"the engine process ended ({how}); another one is started")
        if len(self._deaths) > DEATHS_ALLOWED:
            raise EngineError(
                f"the engine died {len(self._deaths)} times in {DEATHS_SECONDS / 60:g} minutes, at last {how}",
                hint="its log says more; free memory, or choose the transformers generator",
            )
        self._jobs.engine_died()

    def _let_go(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            if self._closing_since is None:
                self._closing_since = time.monotonic()
        if process is not None:
            process.end()
        self._jobs.fail_all(self._failure or _closed())
        self._serving.set()
        self._answers.put(None)

    # ---- both ----------------------------------------------------------------------------------------------------

    def _ask(self, control: Control) -> Answer:
        """The engine's answer, once the running jobs are done. Raises EngineGone when it dies meanwhile, EngineError
        when it refuses."""
        with self._asking:
            while True:
                self._await_engine()
                with self._lock:
                    if self._serving.is_set():
                        while not self._answers.empty():
                            self._answers.get_nowait()
                        self._send(control)
                        break
            try:  # running jobs would be over within their own limit
                answer = self._answers.get(timeout=self._care.request_seconds + self._care.grace_seconds)
            except queue.Empty:
                self._kill("no answer")
                answer = self._answers.get()
        if answer is None:
            self._check()
            raise EngineGone("the engine ended while it was asked", hint="another one is started")
        if isinstance(answer, Refused):
            raise EngineError(answer.text, hint=answer.hint)
        return answer

    def _kill(self, why: str) -> None:
        process = self._process
        if process is not None:
            self._notify("engine-hangs", f"{why}, and process {process.pid} ({process.condition}) does not answer")
            process.kill()

    def _await_engine(self) -> None:
        self._serving.wait()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing_since is not None:
            raise _closed()

    def _send(self, message: Any) -> None:
        """What a dead process does not hear, its successor is told by `_start`."""
        with self._lock, suppress(OSError, ValueError):
            if self._process is not None:
                self._process.pipe.send(message)


def _closed() -> EngineError:
    return EngineError("vLLM was closed", hint="build a new generator")
