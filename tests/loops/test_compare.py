"""Paired comparison, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from ftis_node.loops.compare import Paired


def test_what_changed_item_by_item() -> None:
    first = (True, True, True, False, True, False, True, True)
    other = (True, False, False, True, False, False, True, False)
    paired = Paired.of(first, other)
    assert (paired.gained, paired.lost, paired.items) == (4, 1, 8)
    assert paired.difference == 3 / 8
    # differences are four 1, one -1, three 0: variance 5/8 - (3/8)^2 = 31/64
    assert paired.standard_error == pytest.approx(math.sqrt(31 / 64 / 8))
    low, high = paired.interval
    assert (low, high) == pytest.approx((0.375 - 1.96 * 0.246063, 0.375 + 1.96 * 0.246063), abs=1e-4)
    # five changed items, at most one to the other side: 2 * (1 + 5) / 32
    assert paired.p_value == pytest.approx(12 / 32)


def test_nothing_changed() -> None:
    paired = Paired.of((True, False), (True, False))
    assert (paired.difference, paired.interval, paired.p_value) == (0.0, (0.0, 0.0), 1.0)
