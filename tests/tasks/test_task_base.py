"""Rewards a checker may return, draws that are equal everywhere."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ftis_node.errors import TaskError
from ftis_node.tasks.base import HELD_OUT_ONE_IN, checked_reward, draw, is_held_out


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (1, 1.0),
        (0, 0.0),
        (0.25, 0.25),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.5), 0.5),
        (np.True_, 1.0),
        (np.int64(1), 1.0),
        (np.array(1.0), 1.0),
        (Fraction(1, 4), 0.25),
    ],
)
def test_real_numbers_are_rewards(value: Any, reward: float) -> None:
    checked = checked_reward(value)
    assert checked == reward
    assert type(checked) is float


@pytest.mark.parametrize(
    "value",
    [None, "1", [1.0], {}, float("nan"), float("inf"), -0.01, 1.01, 1j, np.array([1.0]), np.float64("inf"), object()],
)
def test_everything_else_is_an_error_and_no_zero(value: Any) -> None:
    with pytest.raises(TaskError) as failed:
        checked_reward(value)
    assert failed.value.hint


def test_draws_are_pinned() -> None:
    assert draw("train", 2**64 - 1, 0) == 706661320271971020
    assert draw("a", "b") != draw("ab") != draw("a", "b", "")


def test_about_a_quarter_is_held_out() -> None:
    held = sum(is_held_out("family", str(number)) for number in range(4000))
    assert held == pytest.approx(4000 / HELD_OUT_ONE_IN, rel=0.1)
