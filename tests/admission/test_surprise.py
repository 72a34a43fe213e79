"""Own surprise: the running statistics, the bound for negatives and the gate of the rescue rule."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.admission.surprise import MIN_COUNT, Surprise


@given(st.lists(st.floats(0, 20), min_size=1, max_size=60))
def test_early_statistics_are_the_plain_mean_and_variance(values: list[float]) -> None:
    tracked = Surprise()
    for value in values:
        tracked = tracked.with_value(value)
    assert tracked.count == len(values)
    assert tracked.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert tracked.variance == pytest.approx(statistics.pvariance(values), abs=1e-6)


def test_nothing_is_said_before_enough_own_text() -> None:
    tracked = Surprise()
    for number in range(MIN_COUNT):
        assert (tracked.bound, tracked.usual, tracked.gate(1.5)) == (None, None, 2.0)
        tracked = tracked.with_value(1.0 if number % 2 else 3.0)
    assert tracked.bound == pytest.approx(2.0 + 2 * 1.0), "mean 2, spread 1, two spreads above"
    assert tracked.usual == pytest.approx(2.0)
    assert tracked.gate(1.5) == pytest.approx(3.5), "the mean and 1.5"
