"""The second judgement: own surprise per task, and what may not train."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.admission.judge import SURPRISE_MIN_COUNT, Judge, Surprise
from ftis_node.records import Origin, Prompt, ScoredGroup, TrainCompletion, TrainGroup
from ftis_protocol.errors import Reason
from ftis_protocol.rollout import Evidence, Finish, PromptRef


def group(origin: Origin, logprobs: tuple[float, ...] | None = None, evidence: Evidence = Evidence.NONE) -> TrainGroup:
    prompt = Prompt(
        ref=PromptRef(task="arithmetic", version=1, slot=0, index=0),
        author="a", item_key="", messages=(), prefill="", stop_pattern=None, max_tokens=8,
    )  # fmt: skip
    completions = tuple(
        TrainCompletion("1", (1, 2), Finish.RULE, reward, behaviour_logprobs=logprobs) for reward in (1.0, 0.0)
    )
    return TrainGroup(origin, "a", prompt, (3,), completions, evidence, 0, 0.0, b"digest")


@given(st.lists(st.floats(0, 20), min_size=1, max_size=60))
def test_early_statistics_are_the_plain_mean_and_variance(values: list[float]) -> None:
    tracked = Surprise()
    for value in values:
        tracked = tracked.with_value(value)
    assert tracked.count == len(values)
    assert tracked.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert tracked.variance == pytest.approx(statistics.pvariance(values), abs=1e-6)


def test_there_is_no_bound_before_enough_own_text() -> None:
    tracked = Surprise()
    for number in range(SURPRISE_MIN_COUNT):
        assert tracked.bound is None
        tracked = tracked.with_value(1.0 if number % 2 else 3.0)
    assert tracked.bound == pytest.approx(2.0 + 2 * 1.0), "mean 2, spread 1, two spreads above"


def test_negatives_are_off_by_default_and_bounded_on_request() -> None:
    own = group(Origin.OWN, logprobs=(-1.0, -3.0))
    scored = [ScoredGroup(group(Origin.FOREIGN), ((-1.0, -1.0), (-2.0, -2.0)))]
    for negatives, bound in (("off", None), ("surprise", pytest.approx(2.0))):
        judge = Judge(negatives)
        for _ in range(SURPRISE_MIN_COUNT):
            judge.observe_own([own])
        (judged,) = judge.judge(scored).groups
        assert judged.surprise_bound == bound
        assert judged.start_logprobs == scored[0].start_logprobs


def test_a_group_with_evidence_needs_no_surprise_bound() -> None:
    judge = Judge("surprise", {"arithmetic": Surprise(100, 1.0, 0.0)})
    (judged,) = judge.judge([ScoredGroup(group(Origin.FOREIGN, evidence=Evidence.SEQUENCE), ((-1.0,), (-1.0,)))]).groups
    assert judged.surprise_bound is None


def test_one_unscorable_group_does_not_spoil_the_others() -> None:
    good = ScoredGroup(group(Origin.FOREIGN), ((-1.0, -1.0), (-2.0, -2.0)))
    bad = ScoredGroup(group(Origin.FOREIGN), ((-1.0, math.nan), (-2.0, -2.0)))
    judged = Judge("off").judge([bad, good, bad])
    assert len(judged.groups) == 1
    assert [v.reason for v in judged.unused] == [Reason.UNSCORABLE] * 2
    assert not any(v.broken_promise for v in judged.unused)
