"""A slot's allowance, spent over the slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.loops.pacing import FRAMES_PER_SLOT, HEAD_START, Pace
from ftis_protocol.limits import MAX_OFFER_FRAMES

START = 3_000_000.0  # the beginning of a slot of 30 s


def test_a_quarter_at_once_and_the_rest_with_time() -> None:
    pace = Pace(30, 100)
    assert pace.groups_allowed(START) == 25
    pace.sent(START, 25, 1)
    assert pace.groups_allowed(START + 1) == 0
    assert pace.groups_allowed(START + 15) == 25
    assert pace.groups_allowed(START + 29.9) == 75
    assert pace.groups_allowed(START + 30) == 25, "a new slot"


def test_a_frame_waits_for_its_share_of_the_slot() -> None:
    pace = Pace(30, 1000)
    at_once = int(FRAMES_PER_SLOT * HEAD_START)
    for _ in range(at_once):
        assert pace.wait_seconds(START) == 0
        pace.sent(START, 1, 1)
    wait = pace.wait_seconds(START)
    assert wait == pytest.approx(30 * at_once / FRAMES_PER_SLOT)
    assert pace.wait_seconds(START + wait + 0.01) == 0
    assert pace.wait_seconds(START + 30) == 0


def test_the_slot_is_over_a_little_before_its_end() -> None:
    pace = Pace(30, 100)
    assert pace.left_seconds(START) == 29.5
    assert pace.left_seconds(START + 29.5) == 0
    assert pace.left_seconds(START + 29.9) == 0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 50)), max_size=80), st.integers(1, 1024))
def test_no_slot_gets_more_than_its_allowance(steps: list[tuple[float, int]], allowance: int) -> None:
    pace, now = Pace(30, allowance), START
    groups: dict[int, int] = {}
    frames: dict[int, int] = {}
    for pause, sampled in steps:
        now += pause
        if pace.wait_seconds(now) == 0 and (going := min(sampled, pace.groups_allowed(now))):
            pace.sent(now, going, 1)
            slot = int(now // 30)
            groups[slot] = groups.get(slot, 0) + going
            frames[slot] = frames.get(slot, 0) + 1
    assert all(count <= allowance for count in groups.values())
    assert all(count <= MAX_OFFER_FRAMES for count in frames.values())
