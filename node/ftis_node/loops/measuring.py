"""What one step's batch says about itself: the figures of its texts, and the texts themselves for people to read.

Everything comes from the groups that the step drew, so curves and rollouts of one step belong together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, quantiles

from ftis_node import metrics
from ftis_node.admission.verdict import Verdict
from ftis_node.policy.update import GroupOutcome, UpdateReport
from ftis_node.records import Prompt, TrainGroup
from ftis_node.store_rollouts import CompletionRow, RolloutRow
from ftis_protocol.rollout import Finish


def text_metrics(own: Sequence[TrainGroup], foreign: Sequence[TrainGroup]) -> dict[str, float]:
    """Rewards and lengths of a batch; a side without groups leaves out its series."""
    values: dict[str, float] = {}
    if own:
        completions = [c for group in own for c in group.completions]
        tokens = sum(group.token_count for group in own)
        low, high = _deciles([fmean(group.rewards) for group in own])
        values |= {
            metrics.OWN_REWARD: fmean(c.reward for c in completions),
            metrics.OWN_REWARD_LOW: low,
            metrics.OWN_REWARD_HIGH: high,
            metrics.COMPLETION_TOKENS: tokens / len(completions),
            metrics.TRUNCATED: fmean(c.finish is Finish.LENGTH for c in completions),
            metrics.ZERO_SPREAD: fmean(len(set(group.rewards)) == 1 for group in own),
            metrics.OWN_SURPRISE: -sum(c.logprob_sum or 0.0 for c in completions) / tokens,
        }
    if foreign:
        values[metrics.FOREIGN_REWARD] = fmean(reward for group in foreign for reward in group.rewards)
    return values


def rollout_rows(step: int, report: UpdateReport, put_aside: Sequence[tuple[TrainGroup, Verdict]]) -> list[RolloutRow]:
    """Every group that the step drew, as it went through the update or was put aside before it."""
    rows = [_row(step, o.group, o.group.digest in report.used_digests, "", _from_outcome(o)) for o in report.outcomes]
    for group, verdict in put_aside:
        parts = (CompletionRow(c.text, c.finish.value, c.reward, len(c.token_ids), "put_aside")
                 for c in group.completions)  # fmt: skip
        rows.append(_row(step, group, False, verdict.reason.value, parts))
    return rows


def _row(step: int, group: TrainGroup, used: bool, reason: str, parts: Iterator[CompletionRow]) -> RolloutRow:
    return RolloutRow(
        step=step,
        digest=group.digest,
        author=group.author,
        origin=group.origin.value,
        task=group.task,
        verdict="used" if used else "unused",
        reason=reason,
        prompt=prompt_text(group.prompt),
        completions=tuple(parts),
    )


def _from_outcome(outcome: GroupOutcome) -> Iterator[CompletionRow]:
    for member, completion in enumerate(outcome.group.completions):
        scored = bool(outcome.surprise)
        yield CompletionRow(
            text=completion.text,
            finish=completion.finish.value,
            reward=completion.reward,
            tokens=len(completion.token_ids),
            verdict=outcome.fates[member],
            advantage=outcome.metrics.advantages[member],
            weight=_finite(outcome.weights[member]) if scored else None,
            surprise=_finite(outcome.surprise[member]) if scored else None,
        )


def _finite(value: float) -> float | None:
    """What can be shown: a text that is impossible for the learner has no finite surprise."""
    return value if math.isfinite(value) else None


def prompt_text(prompt: Prompt) -> str:
    """The prompt for a reader: turns under their roles, then the beginning of the answer."""
    turns = [f"{message.role}: {message.content}" for message in prompt.messages]
    return "\n".join([*turns, f"assistant: {prompt.prefill}"] if prompt.prefill else turns)


def _deciles(values: Sequence[float]) -> tuple[float, float]:
    """The tenth and ninetieth percentile."""
    if len(values) == 1:
        return values[0], values[0]
    cuts = quantiles(values, n=10, method="inclusive")
    return cuts[0], cuts[-1]
