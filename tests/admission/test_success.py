"""Own success: blocks, the running share, and the switch of the rescue rule with its two thresholds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.admission.success import BLOCK_COMPLETIONS, Success, skill_of
from ftis_protocol.manifest import TaskSpec


def after(*blocks: tuple[int, int]) -> Success:
    state = Success()
    for right, count in blocks:
        state = state.with_outcomes(right, count)
    return state


def test_nothing_is_known_before_the_first_block() -> None:
    assert after((0, 31)) == Success(None, 0, 31)
    assert after((0, 31), (1, 8)).rate == pytest.approx(1 / 39), "a block closes with the group that fills it"


def test_blocks_are_averaged_with_a_memory_of_four_fifths() -> None:
    # .5, then .8 * .5 + .2 * 1 = .6, then .8 * .6 + .2 * 0 = .48
    assert after((16, 32), (32, 32), (0, 32)).rate == pytest.approx(0.48)


@pytest.mark.parametrize(
    ("first", "later", "on"),
    [
        (3, [], True),  # 3 / 32 = .094 is below .1
        (4, [], False),  # 4 / 32 = .125 is not
        (3, [4], True),  # .8 * .094 + .2 * .125 = .1: above .1, but not yet at .15
        (3, [8, 7], True),  # .125, .144
        (3, [8, 8], False),  # .125, .15: reached
        (5, [0, 0], False),  # .156 * .8 * .8 = .1
        (5, [0, 0, 0], True),  # .08
    ],
)
def test_the_switch_has_two_thresholds(first: int, later: list[int], on: bool) -> None:
    assert after((first, 32), *((right, 32) for right in later)).rescuing is on


@given(st.lists(st.integers(0, 8), min_size=1, max_size=80))
def test_every_completion_counts_once(rights: list[int]) -> None:
    state, shares, open_right, open_count = Success(), [], 0, 0
    for right in rights:
        state = state.with_outcomes(right, 8)
        open_right, open_count = open_right + right, open_count + 8
        if open_count >= BLOCK_COMPLETIONS:
            shares.append(open_right / open_count)
            open_right = open_count = 0
    assert (state.right, state.count) == (open_right, open_count)
    expected = None
    for share in shares:
        expected = share if expected is None else 0.8 * expected + 0.2 * share
    assert state.rate == (None if expected is None else pytest.approx(expected))


def test_other_parameters_are_another_skill() -> None:
    one = TaskSpec(name="sums", version=1, parameters={"digits": 1, "carry": True})
    same = TaskSpec(name="sums", version=1, parameters={"carry": True, "digits": 1})
    assert skill_of(one) == skill_of(same)
    assert (
        len({skill_of(one), skill_of(TaskSpec(name="sums", version=1, parameters={"digits": 2, "carry": True}))}) == 2
    )
    assert skill_of(one) != skill_of(one.model_copy(update={"version": 2}))
