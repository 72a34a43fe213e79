"""What a sampling engine promises, and the two rules that every engine shares: the stop rule and the seeds.

Groups that peers learn from are sampled at temperature 1 from the full distribution: top_p 1, no top_k, no penalties.
Any truncation makes the recorded log-probs disagree with the distribution that was really sampled, and the importance
weights of every learner are then biased, so there is no knob for it. Greedy decoding exists for evaluation only; its
log-probs are still those of the temperature-1 distribution.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

from ftis_node.errors import EngineError, UsageError
from ftis_node.generate.jobs import Finished, Job
from ftis_node.records import Prompt, Sample, SampledGroup, TokenIds
from ftis_protocol.rollout import Finish

if TYPE_CHECKING:
    from ftis_node.tokens import TextCodec


# Mean nats per token between learner and engine on fixed tokens. Kernels alone differ by up to .04 in bfloat16 and
# 1e-4 in float32; weights that are one hand-over behind differ by .6 and more. The two quantised values are guesses
# between those, not measured.
ALARM = {"float32": 0.05, "bfloat16": 0.15, "fp8": 0.3, "int8": 0.3}

#: how an engine in its own process tells of what happens to it: kind, text
Notify = Callable[[str, str], None]


def silent(kind: str, text: str) -> None:
    """A `Notify` that tells nobody."""


class Generator(ABC):
    """Samples groups from one policy version at a time. Not thread-safe: one caller at a time.

    `name` is the engine's name in logs and metrics, `reason` why this engine was taken. `weights_alarm` is the mean
    difference in nats per token above which `self_check` says that the weights are not the learner's; None for an
    engine that samples from the learner's own module and so cannot hold other weights. `weights_dtype` is the number
    type in which it wants weights. `sleeps`: it shares a device with the learner by turns, so it wants `rest` before a
    training pass and whole weights after it.
    """

    name: ClassVar[str]
    reason: str = ""
    weights_alarm: float | None = None
    weights_dtype: str = "float32"
    sleeps: bool = False

    @property
    @abstractmethod
    def policy_version(self) -> int:
        """The optimiser step whose weights the next call of `generate` samples from."""

    @abstractmethod
    def generate(
        self, prompts: Sequence[Prompt], *, group_size: int, greedy: bool = False, seed: int | None = None
    ) -> tuple[SampledGroup, ...]:
        """One group of `group_size` samples per prompt, in the order of `prompts`.

        With a `seed` the same prompts give the same samples whatever else is in the call; without one the seed comes
        from torch's global generator, so a restored random state continues the same stream. Raises UsageError when a
        prompt does not fit the model's context, EngineError when the engine fails or returns unusable values.
        """

    @abstractmethod
    def load_weights(self, path: Path, policy_version: int) -> None:
        """Samples from the weights in the safetensors file `path` (Hugging Face names) from now on."""

    def self_check(self, prompt_ids: TokenIds, completion_ids: TokenIds, learner_logprobs: Sequence[float]) -> float:
        """Mean absolute difference (nats per token) between the engine's and the learner's log-probs of a fixed
        completion. Zero for engines that sample from the learner's module."""
        assert len(completion_ids) == len(learner_logprobs)
        return 0.0

    def release(self) -> None:  # noqa: B027 - only engines that are asked while weights come hold anything back
        """The new weights passed the check: requests that came during the hand-over may begin."""

    def rest(self) -> None:  # noqa: B027 - not every engine holds memory of its own
        """Gives the device's memory back until `load_weights` brings whole weights again."""

    def close(self) -> None:  # noqa: B027 - not every engine holds something
        """Releases what the engine holds. Calling it twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StreamingGenerator(Generator):
    """A generator in a process of its own: it samples while the learner computes, and takes groups at any moment."""

    @abstractmethod
    def submit(self, prompt: Prompt, *, group_size: int, seed: int) -> Future[SampledGroup]:
        """One group, as soon as the engine has it; any thread may ask. Cancelling the future gives the group up.

        The future fails with EngineError: a group that took longer than its time limit (`TooSlow`), unusable values,
        or an engine that could not be kept alive. A prompt that does not fit raises UsageError here.
        """


class TooSlow(EngineError):
    """One group took longer than its time limit; the engine goes on."""


def rule_matches(pattern: str | None, text: str) -> bool:
    """True when the task's stop rule matches at the beginning of `text`."""
    return pattern is not None and re.match(pattern, text) is not None


def jobs_for(
    prompts: Sequence[Prompt], rendered: Sequence[TokenIds], *, group_size: int, greedy: bool, seed: int | None
) -> list[Job]:
    """One job per prompt, numbered from 0. Without a seed it comes from torch's global generator."""
    assert group_size >= 1
    if seed is None:
        import torch

        seed = int(torch.randint(2**62, ()).item())
    width = 1 if greedy else group_size
    return [
        Job(number, ids, width, prompt.max_tokens, None if greedy else own, prompt.stop_pattern)
        for number, (prompt, ids, own) in enumerate(zip(prompts, rendered, prompt_seeds(rendered, seed), strict=True))
    ]


def sampled_group(prompt: Prompt, job: Job, done: Finished, group_size: int, codec: TextCodec) -> SampledGroup:
    """The checked group; a greedy one repeats its only completion."""
    samples = tuple(make_sample(m.token_ids, m.logprobs, codec, m.finish) for m in done.members)
    return SampledGroup(prompt, job.prompt_ids, samples * (group_size // job.width), done.policy_version)


def mean_gap(found: Sequence[float], expected: Sequence[float]) -> float:
    """Mean absolute difference of two completions' log-probs, in nats per token."""
    return sum(abs(a - b) for a, b in zip(found, expected, strict=True)) / len(expected)


def make_sample(token_ids: Sequence[int], logprobs: Sequence[float], codec: TextCodec, finish: Finish) -> Sample:
    """A checked Sample. Raises EngineError for a completion without tokens, for a ragged one, and for a log-prob
    that is not a finite number, naming its place."""
    if not token_ids or len(token_ids) != len(logprobs):
        raise EngineError(
            f"the engine returned {len(token_ids)} tokens and {len(logprobs)} log-probs for a completion",
            hint="restart the node; if it happens again choose the other engine and report this message",
        )
    for place, value in enumerate(logprobs):
        if not math.isfinite(value):
            raise EngineError(
                f"log-prob of token {place + 1} of {len(logprobs)} (id {token_ids[place]}) is {value}",
                hint="the weights or the number format overflowed: go back to the last checkpoint, or use float32",
            )
    return Sample(codec.decode(tuple(token_ids)), tuple(token_ids), tuple(float(v) for v in logprobs), finish)


def cut_at_stop(
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    codec: TextCodec,
    pattern: str | None,
    *,
    ended_by_eos: bool,
    capped: bool,
) -> Sample:
    """Applies the stop rule to tokens that were sampled without it.

    The cut is after the shortest non-empty token prefix whose decoded text matches `pattern`. Whether a prefix matches
    depends on that prefix alone, so the rule is a stopping time: what remains has exactly the distribution of sampling
    that had stopped there, and the log-probs of the kept tokens need no correction.

    `finish` is RULE for a cut (an EOS that came later is dropped), STOP when EOS was sampled first (kept as the last
    id), LENGTH when the token cap was met. `ended_by_eos` and `capped` say why the engine ended.
    """
    content = len(token_ids) - 1 if ended_by_eos else len(token_ids)
    if pattern is not None:
        for length in range(1, content + 1):
            if rule_matches(pattern, codec.decode(tuple(token_ids[:length]))):
                return make_sample(token_ids[:length], logprobs[:length], codec, Finish.RULE)
    if not (ended_by_eos or capped):
        raise EngineError(
            "the engine ended a completion without EOS and before the token cap",
            hint="the engine dropped or aborted the request; restart the node with less memory pressure",
        )
    return make_sample(token_ids, logprobs, codec, Finish.STOP if ended_by_eos else Finish.LENGTH)


def render_all(codec: TextCodec, prompts: Sequence[Prompt], context: int) -> list[TokenIds]:
    """Token ids of every prompt; UsageError for one that leaves no room for its completion in `context` tokens."""
    rendered = []
    for prompt in prompts:
        if prompt.max_tokens < 1:
            raise UsageError(
                f"a prompt of task {prompt.ref.task!r} asks for at most {prompt.max_tokens} tokens",
                hint="let the task, and the swarm's max_completion_tokens, allow at least one token",
            )
        ids = codec.render(prompt)
        if not ids:
            raise UsageError(
                f"a prompt of task {prompt.ref.task!r} renders to no tokens", hint="give the task's prompt some text"
            )
        if len(ids) + prompt.max_tokens > context:
            raise UsageError(
                f"a prompt of task {prompt.ref.task!r} has {len(ids)} tokens and asks for up to {prompt.max_tokens} "
                f"more, which is over the {context} tokens of the model's context",
                hint="choose a model with a longer context, a shorter prompt or a lower max_completion_tokens",
            )
        rendered.append(ids)
    return rendered


def prompt_seeds(rendered: Sequence[TokenIds], seed: int) -> list[int]:
    """One 62-bit seed per prompt, from the call's seed, the prompt's tokens and how often the same prompt came before
    in this call: independent of the other prompts, and never the same twice for a repeated prompt."""
    seen: Counter[TokenIds] = Counter()
    seeds = []
    for ids in rendered:
        text = f"{seed}:{seen[ids]}:{','.join(map(str, ids))}"
        seen[ids] += 1
        seeds.append(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 2)
    return seeds
