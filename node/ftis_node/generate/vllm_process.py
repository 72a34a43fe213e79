"""Sampling with vLLM in a process of its own: it goes on while the learner computes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ftis_node.errors import EngineError
from ftis_node.generate.base import (
    ALARM,
    Notify,
    StreamingGenerator,
    jobs_for,
    render_all,
    sampled_group,
    silent,
)  # fmt: skip
from ftis_node.generate.engine_keeper import EngineKeeper
from ftis_node.generate.jobs import Care, Finished, Job, Proof, Running, Sleep
from ftis_node.generate.vllm_start import VllmSettings
from ftis_node.records import Prompt, SampledGroup, TokenIds

if TYPE_CHECKING:
    from ftis_node.tokens import TextCodec


class VllmProcessGenerator(StreamingGenerator):
    """vLLM behind an `EngineKeeper`. `running` says what becomes of running groups when new weights come.

    Raises EngineError when vLLM does not start, cannot serve the model or reads with another tokenizer.
    """

    name: ClassVar[str] = "vllm"

    def __init__(
        self,
        settings: VllmSettings,
        codec: TextCodec,
        care: Care,
        *,
        policy_version: int = 0,
        running: Running = "wait",
        reason: str = "",
        notify: Notify = silent,
    ) -> None:
        self._codec = codec
        self._context = min(settings.context, codec.max_length)
        self._running: Running = running
        self._version = policy_version
        self._numbers = itertools.count()
        self.reason = reason
        self.weights_dtype = settings.dtype
        self.sleeps = settings.sleeps
        self.weights_alarm = ALARM[settings.precision]
        self._keeper = EngineKeeper(settings, policy_version, care, self.weights_alarm, notify)

    @property
    def policy_version(self) -> int:
        return self._version

    @property
    def pid(self) -> int | None:
        """The engine's process, None while there is none."""
        return self._keeper.pid

    def submit(self, prompt: Prompt, *, group_size: int, seed: int) -> Future[SampledGroup]:
        (job,) = self._jobs([prompt], group_size=group_size, greedy=False, seed=seed)
        growing = self._keeper.submit(job)
        wanted: Future[SampledGroup] = Future()
        wanted.add_done_callback(lambda done: growing.cancel() if done.cancelled() else None)
        growing.add_done_callback(partial(self._pass_on, wanted, prompt, job, group_size))
        return wanted

    def generate(
        self, prompts: Sequence[Prompt], *, group_size: int, greedy: bool = False, seed: int | None = None
    ) -> tuple[SampledGroup, ...]:
        jobs = self._jobs(prompts, group_size=group_size, greedy=greedy, seed=seed)
        growing = [self._keeper.submit(job) for job in jobs]
        try:
            done = [future.result() for future in growing]
        finally:
            for future in growing:
                future.cancel()
        return tuple(
            sampled_group(prompt, job, group, group_size, self._codec)
            for prompt, job, group in zip(prompts, jobs, done, strict=True)
        )

    def load_weights(self, path: Path, policy_version: int) -> None:
        """As promised by the base class, once running groups are done (or put back). Groups that are asked for
        meanwhile wait for `release`. The file must stay until the next hand-over: a restarted engine reads it again."""
        self._keeper.load(path, policy_version, self._running)
        self._version = policy_version

    def self_check(self, prompt_ids: TokenIds, completion_ids: TokenIds, learner_logprobs: Sequence[float]) -> float:
        return self._keeper.score(Proof(prompt_ids, completion_ids, tuple(learner_logprobs)))

    def release(self) -> None:
        self._keeper.release()

    def rest(self) -> None:
        self._keeper.rest(Sleep())

    def close(self) -> None:
        self._keeper.close()

    def _jobs(self, prompts: Sequence[Prompt], *, group_size: int, greedy: bool, seed: int | None) -> list[Job]:
        rendered = render_all(self._codec, prompts, self._context)
        jobs = jobs_for(prompts, rendered, group_size=group_size, greedy=greedy, seed=seed)
        return [replace(job, number=next(self._numbers)) for job in jobs]

    def _pass_on(
        self, wanted: Future[SampledGroup], prompt: Prompt, job: Job, group_size: int, grown: Future[Finished]
    ) -> None:
        """In the keeper's thread: the checked group, or why there is none."""
        if grown.cancelled() or not wanted.set_running_or_notify_cancel():
            return
        error = grown.exception()
        try:
            if error is None:
                wanted.set_result(sampled_group(prompt, job, grown.result(), group_size, self._codec))
        except EngineError as unusable:
            error = unusable
        if error is not None:
            wanted.set_exception(error)
