"""What a completion, a group and a frame may be, and the two hashes that all nodes must agree on."""

from __future__ import annotations

import math
from typing import Any

import pytest
from protocol_samples import POLICY, completion, frame, group
from pydantic import ValidationError

from ftis_protocol import limits
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, group_digest, item_seed


@pytest.mark.parametrize("text", [None, 7, ["a"], {"a": 1}, b"bytes", "x" * 1_000_000, "\ud800", "a\udfffb"])
def test_a_text_that_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(ValidationError):
        Completion(text=text, finish=Finish.STOP, reward=0.0)


def test_the_refusal_of_a_lone_surrogate_says_where_it_is() -> None:
    with pytest.raises(ValidationError, match=r"lone surrogate \(U\+D800 at position 2\)"):
        completion("ab\ud800")


@pytest.mark.parametrize(
    "text", ["", "\x00", "<|im_end|>", "e\u0301 \U0001f600\u202e", "x" * limits.MAX_COMPLETION_CHARS]
)
def test_any_other_text_is_accepted_unchanged(text: str) -> None:
    assert completion(text).text == text


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, "1", None, [1.0]])
def test_a_reward_is_a_finite_number(reward: Any) -> None:
    with pytest.raises(ValidationError):
        completion(reward=reward)


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": (1, 2)},
        {"logprobs": (-1.0,)},
        {"token_ids": (1, 2), "logprobs": (-1.0,)},
        {"token_ids": (-1,), "logprobs": (-1.0,)},
        {"token_ids": (2**32,), "logprobs": (-1.0,)},
        {"token_ids": (1.5,), "logprobs": (-1.0,)},
        {"token_ids": (1,), "logprobs": (math.nan,)},
        {"token_ids": (1,), "logprobs": (0.5,)},
        {"logprob_sum": 3.0},
        {"logprob_sum": -math.inf},
        {"surprise": 1.0},
    ],
)
def test_impossible_evidence_of_one_completion_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        completion(**fields)


_BY_TIER: dict[Evidence, dict[str, Any]] = {
    Evidence.NONE: {},
    Evidence.SEQUENCE: {"logprob_sum": -2.5},
    Evidence.TOKEN: {"token_ids": (4, 2), "logprobs": (-0.5, -2.0)},
}


@pytest.mark.parametrize("declared", Evidence)
@pytest.mark.parametrize("told", Evidence)
def test_a_group_carries_exactly_what_its_tier_asks(declared: Evidence, told: Evidence) -> None:
    members = (completion(**_BY_TIER[declared]), completion(**_BY_TIER[told]))
    if declared is told:
        assert group(*members, evidence=declared).evidence is declared
    else:
        with pytest.raises(ValidationError, match="completion 1 does not carry"):
            group(*members, evidence=declared)


def test_two_tiers_at_once_are_refused() -> None:
    both = completion(logprob_sum=-1.0, token_ids=(1,), logprobs=(-1.0,))
    for tier in Evidence:
        with pytest.raises(ValidationError):
            group(both, both, evidence=tier)


@pytest.mark.parametrize("size", [0, 1, limits.MAX_GROUP_SIZE + 1])
def test_a_group_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(ValidationError, match="a group has 2 to 64 completions"):
        Group(prompt=group().prompt, policy_version=0, evidence=Evidence.NONE, completions=(completion(),) * size)


@pytest.mark.parametrize("number", [0, limits.MAX_FRAME_GROUPS + 1])
def test_a_frame_has_a_bounded_number_of_groups(number: int) -> None:
    with pytest.raises(ValidationError, match="a frame has 1 to 256 groups"):
        Frame(slot=1, policy=POLICY, groups=(group(),) * number)


def test_a_frame_has_a_bounded_number_of_described_tokens() -> None:
    long = limits.MAX_COMPLETION_TOKENS
    member = completion(token_ids=(1,) * long, logprobs=(-1.0,) * long)
    with pytest.raises(ValidationError, match="a frame describes at most"):
        frame(group(*(member,) * 9, evidence=Evidence.TOKEN))


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        group().prompt.index = 4  # type: ignore[misc]


def named(*members: Completion, author: str = "a" * 26, **changes: Any) -> bytes:
    return group_digest(group(*members, **changes), author)


def test_the_digest_names_author_prompt_and_texts_and_nothing_else() -> None:
    first, second = completion("a", 1.0), completion("b", 0.0)
    digest = named(first, second)
    assert len(digest) == 16
    assert named(second, first) == digest
    assert named(completion("a", 0.0), completion("b", 1.0)) == digest
    assert named(first, completion("c", 0.0)) != digest
    assert named(first, second, index=4) != digest
    assert named(first, second, second) != digest
    assert named(first, second, author="b" * 26) != digest


def test_the_digest_does_not_confuse_where_one_text_ends() -> None:
    assert named(completion("ab"), completion("c")) != named(completion("a"), completion("bc"))


def test_the_seed_is_the_same_on_every_machine() -> None:
    seed = item_seed("swarm", "node", 59_000_000, "arithmetic", 1)
    assert seed == 5305922815918074904
    others = {
        item_seed("swarn", "node", 59_000_000, "arithmetic", 1),
        item_seed("swarm", "nodf", 59_000_000, "arithmetic", 1),
        item_seed("swarm", "node", 59_000_001, "arithmetic", 1),
        item_seed("swarm", "node", 59_000_000, "arithmetid", 1),
        item_seed("swarm", "node", 59_000_000, "arithmetic", 2),
    }
    assert len(others | {seed}) == 6
    assert all(0 <= value < 2**64 for value in others)
