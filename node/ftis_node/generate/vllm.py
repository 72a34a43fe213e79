"""Sampling with vLLM in this process: for tests, for small machines, and where only one caller computes anyway."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ftis_node.generate.base import ALARM, Generator, jobs_for, mean_gap, render_all, sampled_group
from ftis_node.generate.vllm_start import VllmSettings
from ftis_node.generate.vllm_stepper import Stepper
from ftis_node.records import Prompt, SampledGroup, TokenIds

if TYPE_CHECKING:
    from ftis_node.tokens import TextCodec


class VllmGenerator(Generator):
    """Starts vLLM with the checkpoint in `settings.model_dir`; `load_weights` replaces the weights later.

    Raises EngineError when vLLM does not start or cannot serve the model.
    """

    name: ClassVar[str] = "vllm"

    def __init__(self, settings: VllmSettings, codec: TextCodec, *, policy_version: int = 0, reason: str = "") -> None:
        self._codec = codec
        self._context = min(settings.context, codec.max_length)
        self.reason = reason
        self.weights_dtype = settings.dtype
        self.sleeps = settings.sleeps
        self.weights_alarm = ALARM[settings.precision]
        self._engine = Stepper(settings, codec, policy_version)

    @property
    def policy_version(self) -> int:
        return self._engine.policy_version

    def generate(
        self, prompts: Sequence[Prompt], *, group_size: int, greedy: bool = False, seed: int | None = None
    ) -> tuple[SampledGroup, ...]:
        rendered = render_all(self._codec, prompts, self._context)
        jobs = jobs_for(prompts, rendered, group_size=group_size, greedy=greedy, seed=seed)
        groups = self._engine.grow(jobs)
        return tuple(
            sampled_group(p, j, g, group_size, self._codec) for p, j, g in zip(prompts, jobs, groups, strict=True)
        )

    def load_weights(self, path: Path, policy_version: int) -> None:
        """As promised by the base class. Raises UsageError when `path` is no whole safetensors file; nothing changed
        then. Raises EngineError when the hand-over fails half-way; nothing is sampled until another one succeeds."""
        self._engine.load(path, policy_version)

    def self_check(self, prompt_ids: TokenIds, completion_ids: TokenIds, learner_logprobs: Sequence[float]) -> float:
        """As promised by the base class; compare it with `weights_alarm` after every hand-over."""
        assert completion_ids
        return mean_gap(self._engine.score(prompt_ids, completion_ids), learner_logprobs)

    def rest(self) -> None:
        self._engine.sleep()

    def close(self) -> None:
        self._engine.close()
