from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import ask

from ftis_node.errors import EngineError, UsageError
from ftis_node.generate.base import cut_at_stop, prompt_seeds, render_all
from ftis_protocol.rollout import Finish

EOS = 9


class Digits:
    """Ids 0-8 are the characters "0"-"8", two characters for 7 ("7;"); 9 ends."""

    eos_ids = frozenset({EOS})

    def decode(self, ids: tuple[int, ...]) -> str:
        kept = ids[:-1] if ids and ids[-1] in self.eos_ids else ids
        return "".join("7;" if i == 7 else str(i) for i in kept)

    def render(self, prompt: object) -> tuple[int, ...]:
        return tuple(int(c) for c in prompt.item_key)  # type: ignore[attr-defined]


CODEC = Digits()


def cut(ids: tuple[int, ...], pattern: str | None, **ended: bool):
    state = {"ended_by_eos": ids[-1:] == (EOS,), "capped": ids[-1:] != (EOS,)} | ended
    return cut_at_stop(ids, [-0.1 * (i + 1) for i in range(len(ids))], CODEC, pattern, **state)


@pytest.mark.parametrize(
    ("ids", "pattern", "kept", "text", "finish"),
    [
        ((1, 2, EOS), None, 3, "12", Finish.STOP),
        ((1, 2, 3), None, 3, "123", Finish.LENGTH),
        ((EOS,), None, 1, "", Finish.STOP),
        ((EOS,), r"", 1, "", Finish.STOP),  # the rule needs a token of its own
        ((1, 2, 3), r"\d\d", 2, "12", Finish.RULE),
        ((1, 2, 3), r"\d\d\d", 3, "123", Finish.RULE),  # matched at the cap: the rule came first
        ((1, 2, EOS), r"\d\d", 2, "12", Finish.RULE),  # the rule came before EOS, which is dropped
        ((1, 2, EOS), r"\d\d\d", 3, "12", Finish.STOP),
        ((1, 2, 3), r"2", 3, "123", Finish.LENGTH),  # matched from the start, not searched for
        ((1, 7, 2), r"\d\d", 2, "17;", Finish.RULE),  # a token is never split
        ((1, 2, 3), r"1$|123", 1, "1", Finish.RULE),  # the whole text does not decide, the shortest prefix does
        ((1, 2, 3), r"", 1, "1", Finish.RULE),
    ],
)
def test_cut(ids, pattern, kept, text, finish):
    sample = cut(ids, pattern)
    assert sample.token_ids == ids[:kept]
    assert sample.text == text
    assert sample.finish is finish
    assert len(sample.logprobs) == kept


@given(
    st.lists(st.integers(0, 8), max_size=12), st.booleans(), st.sampled_from([r"\d*5", r"(\d)\1", r".;", r"1?2+3", "x"])
)
def test_cut_equals_stopping_while_sampling(content, eos, pattern):
    ids = (*content, EOS) if eos or not content else tuple(content)
    sample = cut(ids, pattern)
    expected, finish = ids, Finish.STOP if ids[-1] == EOS else Finish.LENGTH
    for length in range(1, len(ids) + 1):
        if ids[length - 1] == EOS:
            break
        if re.match(pattern, CODEC.decode(ids[:length])):
            expected, finish = ids[:length], Finish.RULE
            break
    assert (sample.token_ids, sample.finish) == (expected, finish)
    assert (sample.token_ids[-1] == EOS) == (sample.finish is Finish.STOP)
    assert sample.text == CODEC.decode(sample.token_ids)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logprob_that_is_no_number_is_an_engine_error(bad):
    with pytest.raises(EngineError, match="token 2 of 3"):
        cut_at_stop((1, 2, 3), (-0.1, bad, -0.1), CODEC, None, ended_by_eos=False, capped=True)


def test_tokens_behind_the_cut_do_not_matter():
    assert cut_at_stop((1, 2), (-0.1, math.nan), CODEC, "1", ended_by_eos=False, capped=True).token_ids == (1,)


@pytest.mark.parametrize(("ids", "logprobs"), [((), ()), ((1, 2), (-0.1,))])
def test_empty_and_ragged_completions_are_engine_errors(ids, logprobs):
    with pytest.raises(EngineError):
        cut_at_stop(ids, logprobs, CODEC, None, ended_by_eos=False, capped=True)


def test_an_end_without_a_reason_is_an_engine_error():
    with pytest.raises(EngineError, match="without EOS"):
        cut((1, 2), None, capped=False)


def test_a_prompt_must_leave_room_for_its_completion():
    assert render_all(CODEC, [ask("123", max_tokens=5)], 8) == [(1, 2, 3)]
    with pytest.raises(UsageError, match="8 tokens of") as caught:
        render_all(CODEC, [ask("1", max_tokens=5), ask("1234", max_tokens=5)], 8)
    assert "max_completion_tokens" in caught.value.hint
    with pytest.raises(UsageError, match="no tokens"):
        render_all(CODEC, [ask("")], 8)


def test_prompt_seeds_depend_on_the_prompt_and_its_repetition_only():
    alone = prompt_seeds([(1, 2)], 5)
    assert prompt_seeds([(3,), (1, 2), (1, 2)], 5)[1] == alone[0]
    assert len(set(prompt_seeds([(1, 2)] * 50 + [(12,), (1,)], 5))) == 52
    assert prompt_seeds([(1, 2)], 6) != alone
