"""One completion while vLLM grows it: what is asked for, and what each step adds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ftis_node.errors import EngineError
from ftis_node.generate.base import rule_matches
from ftis_node.generate.jobs import Grown, Job
from ftis_protocol.rollout import Finish

if TYPE_CHECKING:
    from ftis_node.tokens import TextCodec


@dataclass(slots=True)
class Row:
    """One completion while it grows."""

    job: Job
    place: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None

    def take(self, member: Any, codec: TextCodec) -> None:
        """The tokens of one step (of all steps, for a job without a stop rule). Raises EngineError for an end that
        has no reason."""
        for place, token in zip(member.logprobs, member.token_ids, strict=True):
            self.token_ids.append(token)
            self.logprobs.append(float(place[token].logprob))
            if self._rule_matches(codec):
                self.finish = Finish.RULE
                return
        if member.finish_reason == "length":
            self.finish = Finish.LENGTH
        elif member.finish_reason == "stop" and self.token_ids[-1] in codec.eos_ids:
            self.finish = Finish.STOP
        elif member.finish_reason is not None:
            raise EngineError(
                f"the engine ended a completion without EOS and before the token cap ({member.finish_reason})",
                hint="the engine dropped or aborted the request; restart the node with less memory pressure",
            )

    def _rule_matches(self, codec: TextCodec) -> bool:
        if self.job.stop_pattern is None or self.token_ids[-1] in codec.eos_ids:
            return False
        return rule_matches(self.job.stop_pattern, codec.decode(tuple(self.token_ids)))

    @property
    def grown(self) -> Grown:
        assert self.finish is not None
        return Grown(tuple(self.token_ids), tuple(self.logprobs), self.finish)


def sampling(job: Job, place: int, codec: TextCodec) -> Any:
    """Every value that shapes the distribution is written out; `logprobs=0` returns the sampled token's own."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=1,
        temperature=1.0 if job.seed is not None else 0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        seed=None if job.seed is None else job.seed + place,
        max_tokens=job.max_tokens,
        min_tokens=0,
        logprobs=0,
        # All end ids of the codec, given as stop ids so that vLLM keeps the sampled one as the last token.
        ignore_eos=True,
        stop_token_ids=sorted(codec.eos_ids),
        detokenize=False,
        # Only a stop rule has to see the tokens as they come.
        output_kind=RequestOutputKind.FINAL_ONLY if job.stop_pattern is None else RequestOutputKind.DELTA,
    )
