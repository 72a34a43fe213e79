"""The second judgement: what own text says about foreign text, which groups are drawn, and the rescue rule."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ftis_node.admission.judge import Judge, OwnRecord
from ftis_node.admission.success import Success, skill_of
from ftis_node.admission.surprise import Surprise
from ftis_node.records import JudgedGroup, Origin, Prompt, ScoredGroup, TrainCompletion, TrainGroup
from ftis_protocol.errors import Reason
from ftis_protocol.manifest import TaskSpec
from ftis_protocol.rollout import Evidence, Finish, PromptRef

TASK = TaskSpec(name="arithmetic", version=1, parameters={"digits": 2})
OTHER = TaskSpec(name="words", version=3)
SKILL = skill_of(TASK)
KNOWN = OwnRecord({SKILL: Surprise(100, 1.0, 0.25)}, {SKILL: Success(0.5)})
FAILING = OwnRecord({SKILL: Surprise(100, 0.5, 0.25)}, {SKILL: Success(0.02, rescuing=True)})


def group(
    rewards: tuple[float, ...] = (1.0, 0.0),
    *,
    origin: Origin = Origin.FOREIGN,
    logprobs: tuple[float, ...] | None = None,
    evidence: Evidence = Evidence.NONE,
    task: TaskSpec = TASK,
) -> TrainGroup:
    prompt = Prompt(
        ref=PromptRef(task=task.name, version=task.version, slot=0, index=0),
        author="a", item_key="", messages=(), prefill="", stop_pattern=None, max_tokens=8,
    )  # fmt: skip
    completions = tuple(TrainCompletion("1", (1, 2), Finish.RULE, r, behaviour_logprobs=logprobs) for r in rewards)
    return TrainGroup(origin, "a", prompt, (3,), completions, evidence, 0, 0.0, b"digest")


def scored(rewards: tuple[float, ...], *nats: float, evidence: Evidence = Evidence.NONE) -> ScoredGroup:
    """A foreign group whose completions cost so many nats per token here."""
    return ScoredGroup(group(rewards, evidence=evidence), tuple((-n, -n) for n in nats))


def own(right: int, count: int, task: TaskSpec = TASK) -> TrainGroup:
    return group((1.0,) * right + (0.0,) * (count - right), origin=Origin.OWN, logprobs=(-1.0, -3.0), task=task)


class TestOwnText:
    def test_it_is_watched_by_task_and_parameters(self) -> None:
        judge = Judge([TASK, OTHER])
        judge.observe_own([own(8, 32), own(2, 16, OTHER)])
        assert judge.record.surprise[SKILL] == Surprise(32, pytest.approx(2.0), pytest.approx(0.0))
        assert judge.record.success == {SKILL: Success(0.25), skill_of(OTHER): Success(None, 2, 16)}

    def test_groups_without_a_signal_count_too(self) -> None:
        judge = Judge([TASK])
        judge.observe_own([own(0, 16), own(16, 16)])
        assert judge.record.success[SKILL].rate == 0.5

    def test_graded_rewards_below_right_are_wrong(self) -> None:
        judge = Judge([TASK])
        judge.observe_own([group((0.98, 0.5, 1.0, 0.99) * 8, origin=Origin.OWN)])
        assert judge.record.success[SKILL].rate == 0.5


class TestOrdinaryRule:
    def test_text_only_groups_get_what_own_text_costs(self) -> None:
        item = scored((1.0, 0.0), 1.0, 2.0)
        (judged,) = Judge([TASK], KNOWN).judge([item]).groups
        assert judged == JudgedGroup(item.group, item.start_logprobs, pytest.approx(2.0), 1.0)

    def test_groups_with_evidence_need_no_bound(self) -> None:
        (judged,) = Judge([TASK], KNOWN).judge([scored((1.0, 0.0), 1.0, 2.0, evidence=Evidence.SEQUENCE)]).groups
        assert judged.surprise_bound is None

    def test_one_unscorable_group_does_not_spoil_the_others(self) -> None:
        bad = scored((1.0, 0.0), 1.0, math.nan)
        judged = Judge([TASK], KNOWN).judge([bad, scored((1.0, 0.0), 1.0, 2.0), bad])
        assert len(judged.groups) == 1
        assert [v.reason for v in judged.unused] == [Reason.UNSCORABLE] * 2
        assert not any(v.broken_promise for v in judged.unused)

    def test_groups_without_a_wrong_answer_are_for_rescues_only(self) -> None:
        judge = Judge([TASK], KNOWN)
        assert not judge.wants(group((1.0, 1.0)))
        assert [v.reason for v in judge.judge([scored((1.0, 1.0), 0.1, 0.1)]).unused] == [Reason.RESCUE_ONLY]


class TestDraws:
    def test_foreign_groups_wait_until_own_success_is_known(self) -> None:
        judge = Judge([TASK, OTHER])
        judge.observe_own([own(4, 8)] * 3)
        assert not judge.wants(group())
        assert judge.useful("arithmetic", 1, 1, 2), "but they are worth fetching"
        judge.observe_own([own(4, 8)])
        assert judge.wants(group())
        assert not judge.wants(group(task=OTHER)), "each task for itself"

    def test_without_the_rule_they_train_from_the_start(self) -> None:
        judge = Judge([TASK], FAILING, rescue=False)
        assert judge.wants(group())
        assert Judge([TASK], rescue=False).wants(group())
        assert not judge.wants(group((1.0, 1.0)))
        assert judge.rescuing_tasks == 0
        assert judge.judge([scored((1.0, 0.0), 9.0, 9.0)]).groups[0].rescue_gate is None

    def test_all_right_groups_only_while_the_rule_is_on(self) -> None:
        for record, on in ((KNOWN, False), (FAILING, True)):
            judge = Judge([TASK, OTHER], record)
            assert judge.wants(group((1.0, 1.0))) is on
            assert judge.useful("arithmetic", 1, 2, 2) is on
            assert judge.rescuing_tasks == on
        assert not judge.useful("arithmetic", 1, 0, 2), "all wrong helps nobody"
        assert not judge.useful("words", 3, 2, 2)

    def test_offers_of_unknown_tasks_are_no_error(self) -> None:
        assert not Judge([TASK], FAILING).useful("never heard of", 7, 2, 2)


class TestRescue:
    """Own text costs .5 nats a token, so the gate is at 2."""

    @pytest.mark.parametrize("rewards", [(1.0, 1.0), (1.0, 0.0)])
    @pytest.mark.parametrize("evidence", list(Evidence))
    def test_right_text_within_the_gate_goes_on(self, rewards: tuple[float, ...], evidence: Evidence) -> None:
        (judged,) = Judge([TASK], FAILING).judge([scored(rewards, 1.1, 9.0, evidence=evidence)]).groups
        assert judged.rescue_gate == 2.0
        assert judged.surprise_bound is None

    @pytest.mark.parametrize("nats", [(2.4, 0.1), (10.0, 0.1), (2.01, 2.01)])
    def test_spam_and_wrong_answers_are_put_aside(self, nats: tuple[float, float]) -> None:
        judged = Judge([TASK], FAILING).judge([scored((1.0, 0.0), *nats)])
        assert judged.groups == ()
        assert [v.reason for v in judged.unused] == [Reason.SURPRISE]

    def test_the_operator_may_widen_the_gate(self) -> None:
        (judged,) = Judge([TASK], FAILING, gate_nats=3.0).judge([scored((1.0, 0.0), 3.4, 0.1)]).groups
        assert judged.rescue_gate == 3.5

    def test_young_statistics_leave_an_absolute_gate(self) -> None:
        judge = Judge([TASK], OwnRecord({}, FAILING.success))
        assert judge.judge([scored((1.0, 0.0), 1.9, 1.0)]).groups[0].rescue_gate == 2.0

    def test_it_switches_on_and_off_with_own_success(self) -> None:
        judge = Judge([TASK])
        judge.observe_own([own(0, 8)] * 4)
        assert judge.rescuing("arithmetic", 1)
        judge.observe_own([own(2, 8)] * 4)  # .05
        judge.observe_own([own(4, 8)] * 4)  # .14
        assert judge.rescuing("arithmetic", 1)
        judge.observe_own([own(4, 8)] * 4)  # .21
        assert not judge.rescuing("arithmetic", 1)

    def test_other_parameters_begin_unknown(self) -> None:
        harder = replace_parameters(TASK, digits=5)
        judge = Judge([harder], FAILING)
        assert not judge.rescuing("arithmetic", 1)
        assert not judge.wants(group())


def replace_parameters(spec: TaskSpec, **parameters: int) -> TaskSpec:
    return spec.model_copy(update={"parameters": parameters})


def test_a_record_given_to_a_judge_is_the_one_that_is_saved() -> None:
    record = OwnRecord({SKILL: Surprise(1, 1.0, 0.0)})
    judge = Judge([TASK], replace(record, success={}))
    judge.observe_own([own(1, 8)])
    assert judge.record.success[SKILL].count == 8
