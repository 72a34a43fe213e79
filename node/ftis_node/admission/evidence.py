"""What a trusted sender says about the policy that sampled: checked for what can be, and put into the learner's tokens.

A claim that cannot be true (a log-probability above zero or below anything a sampler draws, token ids that do not spell
the text) makes the group refused, not silently text-only: its sender is trusted, so somebody should find out.
"""

from __future__ import annotations

from ftis_node.admission.verdict import RefusedGroup
from ftis_node.records import TrainCompletion
from ftis_node.tokens import TextCodec
from ftis_protocol.errors import Reason
from ftis_protocol.limits import LOGPROB_NOISE
from ftis_protocol.rollout import Completion, Evidence

#: no sampler at temperature 1 draws a token as unlikely as this (nats); per token of the learner for sums
LOWEST_LOGPROB = -1000.0


def learnable(completion: Completion, usable: Evidence, codec: TextCodec, max_tokens: int) -> TrainCompletion:
    """The completion in the learner's tokens, with what may be used of its evidence.

    Raises RefusedGroup (EVIDENCE, TOO_LONG) where the claims that would be used do not hold."""
    ids = codec.encode_completion(completion.text, completion.finish)
    logprobs = total = None
    if usable is Evidence.TOKEN:
        ids, logprobs = _tokens(completion, codec, max_tokens)
        total = sum(logprobs)
    elif usable is Evidence.SEQUENCE:
        total = _checked(_claimed_sum(completion), LOWEST_LOGPROB * len(ids))
    return TrainCompletion(completion.text, ids, completion.finish, completion.reward, logprobs, total)


def _tokens(completion: Completion, codec: TextCodec, max_tokens: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    ids, logprobs = completion.token_ids, completion.logprobs
    if ids is None or logprobs is None or len(ids) != len(logprobs):
        raise RefusedGroup(Reason.EVIDENCE, "not one log-probability per token")
    if len(ids) > max_tokens:
        raise RefusedGroup(Reason.TOO_LONG, f"{len(ids)} token ids")
    if not codec.spells(ids, completion.text, completion.finish):
        raise RefusedGroup(Reason.EVIDENCE, "the token ids do not spell the text")
    return ids, tuple(_checked(x, LOWEST_LOGPROB) for x in logprobs)


def _claimed_sum(completion: Completion) -> float:
    if completion.logprob_sum is not None:
        return completion.logprob_sum
    if not completion.logprobs:
        raise RefusedGroup(Reason.EVIDENCE, "no log-probability of the text")
    return sum(min(x, 0.0) for x in completion.logprobs)


def _checked(logprob: float, lowest: float) -> float:
    """The claim, with rounding above zero taken off. NaN fails the comparison."""
    if not lowest <= logprob <= LOGPROB_NOISE:
        raise RefusedGroup(Reason.EVIDENCE, f"a log-probability of {logprob:g}")
    return min(logprob, 0.0)
