"""Sampling with vLLM, in this process. The engine keeps its own copy of the weights and gets new ones from a file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open

from ftis_node.errors import EngineError, UsageError
from ftis_node.generate.base import Generator, cut_at_stop, prompt_seeds, render_all
from ftis_node.generate.vllm_start import VllmSettings, start_engine, stop_engines, undisturbed
from ftis_node.records import Prompt, Sample, SampledGroup, TokenIds

if TYPE_CHECKING:
    from ftis_node.tokens import TextCodec

log = logging.getLogger(__name__)

# What vLLM raises for models, settings and machines that it cannot serve: it has no error class of its own.
ENGINE_FAILURES = (
    RuntimeError, ValueError, TypeError, AttributeError, KeyError, AssertionError, ImportError, OSError, MemoryError
)  # fmt: skip

# Mean nats per token between learner and engine on fixed tokens. Kernels alone differ by up to .04 in bfloat16 and
# 1e-4 in float32; weights that are one hand-over behind differ by .6 and more.
ALARM = {"float32": 0.05, "bfloat16": 0.15}

# Shutting one engine down also ends vLLM's process groups, which all engines of a process share. So an engine that is
# closed while others live is only put aside; the last one to close takes all of them down.
_living: set[int] = set()
_put_aside: list[Any] = []


class VllmGenerator(Generator):
    """Starts vLLM with the checkpoint in `settings.model_dir`; `load_weights` replaces the weights later.

    The start ends with one generated token, because some models start and only fail at the first request. Raises
    EngineError when vLLM does not start or cannot serve the model.
    """

    name: ClassVar[str] = "vllm"

    def __init__(self, settings: VllmSettings, codec: TextCodec, *, policy_version: int = 0, reason: str = "") -> None:
        self._codec = codec
        self._version = policy_version
        self._context = min(settings.context, codec.max_length)
        self._llm: Any = None
        self._unusable = ""
        self.reason = reason
        self.weights_alarm = ALARM[settings.dtype]
        try:
            self._llm = start_engine(settings)
            _living.add(id(self._llm))
            self._probe()
        except ENGINE_FAILURES as error:
            log.warning("vLLM did not start", exc_info=error)
            self.close()
            raise EngineError(f"vLLM cannot serve this model: {_first_line(error)}", hint=_hint(error)) from error

    @property
    def policy_version(self) -> int:
        return self._version

    def generate(
        self, prompts: Sequence[Prompt], *, group_size: int, greedy: bool = False, seed: int | None = None
    ) -> tuple[SampledGroup, ...]:
        assert group_size >= 1
        rendered = render_all(self._codec, prompts, self._context)
        if seed is None:
            seed = int(torch.randint(2**62, ()).item())
        width = 1 if greedy else group_size
        parameters = [
            self._sampling(prompt.max_tokens, width, None if greedy else own)
            for prompt, own in zip(prompts, prompt_seeds(rendered, seed), strict=True)
        ]
        outputs = self._run(rendered, parameters)
        groups = []
        for prompt, ids, output in zip(prompts, rendered, outputs, strict=True):
            samples = tuple(self._sample(prompt, member) for member in sorted(output.outputs, key=lambda m: m.index))
            if len(samples) != width:
                raise EngineError(f"vLLM returned {len(samples)} of {width} completions", hint="restart the node")
            groups.append(SampledGroup(prompt, ids, samples * (group_size // width), self._version))
        return tuple(groups)

    def load_weights(self, path: Path, policy_version: int) -> None:
        """Replaces all weights by those in `path` and forgets cached prompts, which hold the old policy's values.

        Raises UsageError when `path` is no whole safetensors file; nothing changed then. Raises EngineError when the
        hand-over fails; the model is half old, half new then, and nothing is sampled until another one succeeds.
        """
        llm = self._open()
        _check_file(path)
        self._unusable = "its weights were only partly replaced"
        try:
            llm.start_weight_update()
            llm.update_weights({"update_info": {"path": str(path)}})
            llm.finish_weight_update(weight_version=str(policy_version))
        except ENGINE_FAILURES as error:
            raise EngineError(
                f"vLLM did not take the weights of policy version {policy_version}: {_first_line(error)}",
                hint="restart the node; if it happens again, choose the transformers generator",
            ) from error
        if not llm.reset_prefix_cache():
            raise EngineError("vLLM kept prompts of the old policy in its cache", hint="restart the node")
        self._unusable = ""
        self._version = policy_version

    def self_check(self, prompt_ids: TokenIds, completion_ids: TokenIds, learner_logprobs: Sequence[float]) -> float:
        """As promised by the base class; compare it with `weights_alarm` after every hand-over."""
        assert completion_ids
        assert len(completion_ids) == len(learner_logprobs)
        scored = self.score(prompt_ids, completion_ids)
        return sum(abs(a - b) for a, b in zip(scored, learner_logprobs, strict=True)) / len(scored)

    def score(self, prompt_ids: TokenIds, completion_ids: TokenIds) -> tuple[float, ...]:
        """The engine's log-probs of given completion tokens behind a prompt, computed without its prefix cache."""
        from vllm import SamplingParams

        ids = (*prompt_ids, *completion_ids)
        parameters = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        places = self._run([ids], [parameters])[0].prompt_logprobs
        start = len(prompt_ids)
        return tuple(float(places[start + i][token].logprob) for i, token in enumerate(completion_ids))

    def close(self) -> None:
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

    def _probe(self) -> None:
        """One token with log-probs; this also compiles the kernel that the first request would wait for."""
        with undisturbed():
            self._run([(self._codec.pad_id,)], [self._sampling(1, 1, 0)])

    def _sampling(self, max_tokens: int, width: int, seed: int | None) -> Any:
        """Every value that shapes the distribution is written out; `logprobs=0` returns the sampled token's own."""
        from vllm import SamplingParams

        return SamplingParams(
            n=width,
            temperature=1.0 if seed is not None else 0.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            repetition_penalty=1.0,
            seed=seed,
            max_tokens=max_tokens,
            min_tokens=0,
            logprobs=0,
            # All end ids of the codec, given as stop ids so that vLLM keeps the sampled one as the last token.
            ignore_eos=True,
            stop_token_ids=sorted(self._codec.eos_ids),
            detokenize=False,
        )

    def _run(self, rendered: Sequence[TokenIds], parameters: Sequence[Any]) -> list[Any]:
        requests = [{"prompt_token_ids": list(ids)} for ids in rendered]
        outputs: list[Any] = self._usable().generate(requests, list(parameters), use_tqdm=False)
        return outputs

    def _sample(self, prompt: Prompt, member: Any) -> Sample:
        ids = tuple(member.token_ids)
        logprobs = [float(place[token].logprob) for place, token in zip(member.logprobs, ids, strict=True)]
        return cut_at_stop(
            ids,
            logprobs,
            self._codec,
            prompt.stop_pattern,
            ended_by_eos=member.finish_reason == "stop" and ids[-1] in self._codec.eos_ids,
            capped=member.finish_reason == "length",
        )


def _check_file(path: Path) -> None:
    try:
        with safe_open(path, framework="pt"):
            return
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"no usable weights at {path}: {_first_line(error)}",
            hint="export the policy's weights again; is a disk full?",
        ) from error


def _first_line(error: BaseException) -> str:
    """The first line that says something: one that only announces the next ("... raised:") takes that along."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def _hint(error: BaseException) -> str:
    text = str(error).lower()
    if "head" in text:
        return "this model's attention heads have a size that vLLM cannot compute: choose the transformers generator"
    if "memory" in text or isinstance(error, MemoryError):
        return "lower kv_cache_mebibytes, free memory, or choose the transformers generator"
    if "compil" in text or "g++" in text:
        return "vLLM compiles a kernel at its start: install a C++ compiler (g++), or choose the transformers generator"
    return "choose the transformers generator, or run the doctor command"
