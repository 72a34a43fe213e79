"""Claims about the sampling policy: whom they are believed from, what they become, and what cannot be true."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from desk import POLICY, Desk, reasons
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftis_node.admission.evidence import LOWEST_LOGPROB, learnable
from ftis_node.admission.verdict import RefusedGroup
from ftis_node.tasks.verify import VerifyPool
from ftis_node.tokens import TextCodec
from ftis_protocol import limits
from ftis_protocol.errors import Reason
from ftis_protocol.rollout import Completion, Evidence, Finish, Group, PolicyRef

ROOMY = 64


def policy_with(tokenizer: str) -> PolicyRef:
    return POLICY.model_copy(update={"tokenizer": tokenizer})


def with_tokens(desk: Desk, codec: TextCodec, logprob: float = -0.5) -> Group:
    completions = []
    for plain in desk.group(0).completions:
        ids = codec.encode_completion(plain.text, plain.finish)
        completions.append(plain.model_copy(update={"token_ids": ids, "logprobs": (logprob,) * len(ids)}))
    return desk.group(0).model_copy(update={"evidence": Evidence.TOKEN, "completions": tuple(completions)})


def with_sums(desk: Desk, *sums: float) -> Group:
    plain = desk.group(0)
    completions = tuple(c.model_copy(update={"logprob_sum": s}) for c, s in zip(plain.completions, sums, strict=True))
    return plain.model_copy(update={"evidence": Evidence.SEQUENCE, "completions": completions})


def spoiled(group: Group, **changes: Any) -> Group:
    """The group with other claims about its first completion."""
    first = group.completions[0].model_copy(update=changes)
    return group.model_copy(update={"completions": (first, *group.completions[1:])})


@pytest.fixture
def trusting(desk: Desk, codec: TextCodec, verify: VerifyPool) -> Desk:
    desk.trusting(codec, verify)
    return desk


class TestTrust:
    async def test_strangers_are_not_believed(self, desk: Desk, codec: TextCodec) -> None:
        (group,) = (await desk.admit(with_tokens(desk, codec), policy=policy_with(codec.fingerprint))).groups
        assert group.evidence is Evidence.NONE
        assert all(c.behaviour_logprobs is None and c.logprob_sum is None for c in group.completions)

    async def test_lies_of_strangers_do_not_matter(self, desk: Desk, codec: TextCodec) -> None:
        """What is not used is not looked at: the text itself is as good as any."""
        lied = spoiled(with_tokens(desk, codec), token_ids=(5, 6), logprobs=(-0.1, -0.1))
        (group,) = (await desk.admit(lied, policy=policy_with(codec.fingerprint))).groups
        assert group.evidence is Evidence.NONE
        assert codec.decode(group.completions[0].token_ids) == lied.completions[0].text

    async def test_equal_tokenizers_keep_tokens(self, trusting: Desk, codec: TextCodec) -> None:
        sent = with_tokens(trusting, codec)
        (group,) = (await trusting.admit(sent, policy=policy_with(codec.fingerprint))).groups
        assert group.evidence is Evidence.TOKEN
        for mine, theirs in zip(group.completions, sent.completions, strict=True):
            assert mine.token_ids == theirs.token_ids
            assert mine.behaviour_logprobs == pytest.approx([-0.5] * len(mine.token_ids), abs=1e-3)

    async def test_another_tokenizer_turns_tokens_into_a_sum(self, trusting: Desk, codec: TextCodec) -> None:
        sent = with_tokens(trusting, codec)
        (group,) = (await trusting.admit(sent, policy=policy_with("ff"))).groups
        assert group.evidence is Evidence.SEQUENCE
        tokens = len(sent.completions[0].token_ids or ())
        assert group.completions[0].logprob_sum == pytest.approx(-0.5 * tokens, abs=1e-3)
        assert group.completions[0].behaviour_logprobs is None

    async def test_sums_are_used_as_they_are(self, trusting: Desk) -> None:
        (group,) = (await trusting.admit(with_sums(trusting, -1.25, -7.5))).groups
        assert group.evidence is Evidence.SEQUENCE
        assert [c.logprob_sum for c in group.completions] == pytest.approx([-1.25, -7.5], abs=1e-3)


class TestImpossibleClaims:
    """Of a trusted peer: refused with the reason, never believed, never an exception."""

    @pytest.mark.parametrize(
        "change",
        [
            lambda ids, n: (tuple(reversed(ids)), n),
            lambda ids, n: (ids[:-1], n - 1),  # a token short
            lambda ids, n: ((*ids, 1), n + 1),  # an end token that `finish` does not announce
            lambda ids, n: ((1, *ids), n + 1),  # a control token inside
            lambda ids, n: ((*ids, 900_000), n + 1),  # an id outside the vocabulary, which decoders pass over
            lambda ids, n: ((), 0),
        ],
        ids=["reversed", "short", "end token", "control token", "unknown id", "no tokens"],
    )
    async def test_ids_that_do_not_spell_the_text(self, trusting: Desk, codec: TextCodec, change: Any) -> None:
        sent = with_tokens(trusting, codec)
        ids, count = change(sent.completions[0].token_ids, len(sent.completions[0].token_ids or ()))
        lied = spoiled(sent, token_ids=ids, logprobs=(-0.5,) * count)
        admitted = await trusting.admit(lied, policy=policy_with(codec.fingerprint))
        assert reasons(admitted) == [Reason.EVIDENCE]
        assert not admitted.groups

    @pytest.mark.parametrize("logprob", [LOWEST_LOGPROB * 1.01, -1e30])
    async def test_log_probabilities_that_nobody_draws(self, trusting: Desk, codec: TextCodec, logprob: float) -> None:
        sent = with_tokens(trusting, codec, logprob)
        assert reasons(await trusting.admit(sent, policy=policy_with(codec.fingerprint))) == [Reason.EVIDENCE]
        assert reasons(await trusting.admit(with_sums(trusting, -1.0, -1e30))) == [Reason.EVIDENCE]

    @pytest.mark.parametrize("logprob", [math.inf, -math.inf, 0.5])  # NaN: below, our encoder has no form for it
    @pytest.mark.parametrize("tier", [Evidence.TOKEN, Evidence.SEQUENCE])
    async def test_what_is_no_log_probability_does_not_pass_the_wire(
        self, trusting: Desk, codec: TextCodec, logprob: float, tier: Evidence
    ) -> None:
        sent = with_tokens(trusting, codec, logprob) if tier is Evidence.TOKEN else with_sums(trusting, -1.0, logprob)
        admitted = await trusting.admit(sent, policy=policy_with(codec.fingerprint))
        assert admitted.groups == ()
        assert reasons(admitted) in ([Reason.SCHEMA], [Reason.EVIDENCE])

    @pytest.mark.parametrize(
        "changes",
        [
            {"logprobs": None},
            {"token_ids": None},
            {"token_ids": None, "logprobs": None},
            {"logprobs": (-0.5,)},
            {"logprob_sum": -1.0},
        ],
        ids=["no log-probs", "no ids", "neither", "too few", "two tiers"],
    )
    async def test_evidence_that_is_missing_or_of_the_wrong_length(
        self, trusting: Desk, codec: TextCodec, changes: dict[str, Any]
    ) -> None:
        lied = spoiled(with_tokens(trusting, codec), **changes)
        admitted = await trusting.admit(lied, policy=policy_with(codec.fingerprint))
        assert admitted.groups == ()
        assert len(admitted.refused) == 1

    async def test_the_same_peer_may_still_send_an_honest_group(self, trusting: Desk, codec: TextCodec) -> None:
        same = policy_with(codec.fingerprint)
        await trusting.admit(spoiled(with_tokens(trusting, codec), token_ids=(5,), logprobs=(-0.5,)), policy=same)
        assert len((await trusting.admit(with_tokens(trusting, codec), policy=same)).groups) == 1


class TestLearnable:
    def test_rounding_above_zero_is_taken_off(self, codec: TextCodec) -> None:
        ids = codec.encode_completion("12", Finish.STOP)
        noise = limits.LOGPROB_NOISE
        claimed = Completion(text="12", finish=Finish.STOP, reward=1.0, token_ids=ids, logprobs=(noise,) * len(ids))
        assert learnable(claimed, Evidence.TOKEN, codec, ROOMY).behaviour_logprobs == (0.0,) * len(ids)
        assert learnable(claimed, Evidence.SEQUENCE, codec, ROOMY).logprob_sum == 0.0

    def test_more_token_ids_than_the_receiver_takes(self, codec: TextCodec) -> None:
        ids = codec.encode_completion("123", Finish.RULE)
        claimed = Completion(text="123", finish=Finish.RULE, reward=1.0, token_ids=ids, logprobs=(-1.0,) * len(ids))
        with pytest.raises(RefusedGroup) as refused:
            learnable(claimed, Evidence.TOKEN, codec, len(ids) - 1)
        assert refused.value.reason is Reason.TOO_LONG

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        ids=st.one_of(st.none(), st.lists(st.integers(-3, 400), max_size=5).map(tuple)),
        logprobs=st.one_of(st.none(), st.lists(st.floats(), max_size=5).map(tuple)),
        total=st.one_of(st.none(), st.floats()),
        usable=st.sampled_from(list(Evidence)),
        finish=st.sampled_from(list(Finish)),
    )
    def test_whatever_is_claimed_gives_finite_values_or_a_reason(
        self, codec: TextCodec, ids: Any, logprobs: Any, total: Any, usable: Evidence, finish: Finish
    ) -> None:
        claimed = Completion.model_construct(
            text="12", finish=finish, reward=1.0, logprob_sum=total, token_ids=ids, logprobs=logprobs
        )
        made = None
        with suppress(RefusedGroup):
            made = learnable(claimed, usable, codec, ROOMY)
        if made is None:
            return
        assert codec.decode(made.token_ids) == "12"
        values = [*(made.behaviour_logprobs or ()), made.logprob_sum or 0.0]
        assert all(math.isfinite(x) and x <= 0 for x in values)
        assert made.behaviour_logprobs is None or len(made.behaviour_logprobs) == len(made.token_ids)
