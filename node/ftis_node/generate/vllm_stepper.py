"""vLLM one step at a time: groups go in at any moment, grow together, and come out whole.

All work happens in the caller's thread, between and inside calls of `step`; so weights can only change between two
steps, and they refuse to change while a completion grows. A completion that matches its task's stop rule is taken out
after the very step that matched it: vLLM knows stop strings, but no patterns, and would sample on to the token limit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftis_node.errors import EngineError
from ftis_node.generate.jobs import Finished, Job
from ftis_node.generate.vllm_faults import ENGINE_FAILURES, check_file, first_line, hint_for
from ftis_node.generate.vllm_rows import Row, sampling
from ftis_node.generate.vllm_start import VllmSettings, start_engine, stop_engines, undisturbed
from ftis_node.records import TokenIds

if TYPE_CHECKING:
    from ftis_node.tokens import TextCodec

log = logging.getLogger(__name__)

# Shutting one engine down also ends vLLM's process groups, which all engines of a process share. So an engine that is
# closed while others live is only put aside; the last one to close takes all of them down.
_living: set[int] = set()
_put_aside: list[Any] = []


class Stepper:
    """An engine with the checkpoint in `settings.model_dir`; `load` replaces the weights later. One thread at a time.

    The start ends with one generated token, because some models start and only fail at the first request. Raises
    EngineError when vLLM does not start or cannot serve the model.
    """

    def __init__(self, settings: VllmSettings, codec: TextCodec, policy_version: int = 0) -> None:
        self.policy_version = policy_version
        self._codec = codec
        self._llm: Any = None
        self._unusable = ""
        self._asleep = False
        self._rows: dict[str, Row] = {}
        self._groups: dict[int, list[Row]] = {}
        try:
            self._llm = start_engine(settings)
            _living.add(id(self._llm))
            with undisturbed():  # also compiles the kernel that the first request would wait for
                self.grow([Job(-1, (codec.pad_id,), 1, 1, 0)])
        except ENGINE_FAILURES as error:
            log.warning("vLLM did not start", exc_info=error)
            self.close()
            raise EngineError(f"vLLM cannot serve this model: {first_line(error)}", hint=hint_for(error)) from error

    @property
    def busy(self) -> bool:
        """Whether any completion grows."""
        return bool(self._rows)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The jobs that are under way."""
        return tuple(self._groups)

    def add(self, job: Job) -> None:
        """Begin a group. Its members share the prompt through the prefix cache. Raises EngineError after weights that
        were only partly replaced."""
        engine = self._usable().llm_engine
        self._groups[job.number] = []
        for place in range(job.width):
            row = Row(job, place)
            self._rows[name := f"{job.number}/{place}"] = row
            self._groups[job.number].append(row)
            engine.add_request(name, {"prompt_token_ids": list(job.prompt_ids)}, sampling(job, place, self._codec))

    def step(self) -> list[Finished]:
        """One token for every growing completion (as many as fit); the groups that became whole."""
        done, over = [], []
        for output in self._usable().llm_engine.step():
            row = self._rows.get(output.request_id)
            if row is None:  # its group was given up
                continue
            row.take(output.outputs[0], self._codec)
            if row.finish is None:
                continue
            del self._rows[output.request_id]
            if not output.finished:
                over.append(output.request_id)
            number = row.job.number
            if all(member.finish is not None for member in self._groups[number]):
                done.append(Finished(number, tuple(row.grown for row in self._groups.pop(number)), self.policy_version))
        if over:
            self._llm.llm_engine.abort_request(over)
        return done

    def cancel(self, number: int) -> Job | None:
        """Give a group up; the job, None if it is not under way."""
        rows = self._groups.pop(number, None)
        if rows is None:
            return None
        names = [f"{number}/{row.place}" for row in rows if row.finish is None]
        for name in names:
            del self._rows[name]
        self._llm.llm_engine.abort_request(names)
        return rows[0].job

    def grow(self, jobs: Iterable[Job]) -> list[Finished]:
        """All these groups from beginning to end, in the order of `jobs`."""
        numbers = []
        try:
            for job in jobs:
                self.add(job)
                numbers.append(job.number)
            done: dict[int, Finished] = {}
            while self.busy:
                done |= {group.number: group for group in self.step()}
        finally:
            for number in self.numbers:
                self.cancel(number)
        return [done[number] for number in numbers]

    def load(self, path: Path, policy_version: int) -> None:
        """Replaces all weights by those in `path` and forgets cached prompts, which hold the old policy's values.

        Raises UsageError when `path` is no whole safetensors file; nothing changed then. Raises EngineError when the
        hand-over fails; the model is half old, half new then, and nothing is sampled until another one succeeds.
        """
        assert not self._rows, "a completion would mix two policies"
        llm = self._open()
        check_file(path)
        self._unusable = "its weights were only partly replaced"
        try:
            if self._asleep:  # what its memory holds now is nobody's weights
                llm.wake_up()
                self._asleep = False
            llm.start_weight_update()
            llm.update_weights({"update_info": {"path": str(path)}})
            llm.finish_weight_update(weight_version=str(policy_version))
        except ENGINE_FAILURES as error:
            raise EngineError(
                f"vLLM did not take the weights of policy version {policy_version}: {first_line(error)}",
                hint="restart the node; if it happens again, choose the transformers generator",
            ) from error
        if not llm.reset_prefix_cache():
            raise EngineError("vLLM kept prompts of the old policy in its cache", hint="restart the node")
        self._unusable = ""
        self.policy_version = policy_version

    def score(self, prompt_ids: TokenIds, completion_ids: TokenIds) -> tuple[float, ...]:
        """The engine's log-probs of given completion tokens behind a prompt, computed without its prefix cache."""
        from vllm import SamplingParams

        assert not self._rows
        request = {"prompt_token_ids": [*prompt_ids, *completion_ids]}
        parameters = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        places = self._usable().generate([request], [parameters], use_tqdm=False)[0].prompt_logprobs
        start = len(prompt_ids)
        return tuple(float(places[start + i][token].logprob) for i, token in enumerate(completion_ids))

    def sleep(self) -> None:
        """Frees the device's memory, weights and cache included; nothing is sampled until `load` brings them again."""
        assert not self._rows
        self._open().sleep(level=2)
        self._unusable, self._asleep = "it sleeps", True

    def close(self) -> None:
        """Twice is harmless."""
        if self._llm is not None:
            _living.discard(id(self._llm))
            _put_aside.append(self._llm)
            self._llm = None
        if not _living:
            stop_engines(_put_aside)
            _put_aside.clear()

    def _open(self) -> Any:
        if self._llm is None:
            raise EngineError("vLLM was closed", hint="build a new generator")
        return self._llm

    def _usable(self) -> Any:
        if self._unusable:
            raise EngineError(f"vLLM cannot be used: {self._unusable}", hint="hand over whole weights, or restart")
        return self._open()
