"""Written sums: the same items everywhere, a sealed held-out part, and an answer that counts wherever it stands."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.errors import UsageError
from ftis_node.tasks.base import Item, Parameter
from ftis_node.tasks.registry import build, describe
from ftis_node.tasks.sums import WrittenSumsTask
from ftis_protocol.manifest import TaskSpec

# Never edit these to make a test pass: other nodes draw the same items from the same numbers. Raise VERSION instead.
PINNED = ["739+847", "508+173", "213+934", "328+260"]
PINNED_HELD_OUT = ["158+146", "334+906", "765+282", "574+742"]


def task(**parameters: Parameter) -> WrittenSumsTask:
    built = build(describe("written-sums", **parameters))
    assert isinstance(built, WrittenSumsTask)
    return built


def asked(left: int, right: int) -> Item:
    return Item(key="", messages=(), prefill="", answer=str(left + right), question=f"{left}+{right}")


def completed(sums: WrittenSumsTask, text: str) -> str:
    """What a generator of one character a token makes of `text`: the shortest prefix that the stop rule matches."""
    for length in range(1, len(text) + 1):
        if re.match(sums.stop_pattern, text[:length]):
            return text[:length]
    return text


def test_items_are_the_same_on_every_machine() -> None:
    assert [task().item(2**63 + 5, i).question for i in range(4)] == PINNED
    assert [item.question for item in task().held_out(4)] == PINNED_HELD_OUT


@pytest.mark.parametrize("digits", [1, 2])
def test_no_training_item_is_held_out_and_commuted_pairs_stay_together(digits: int) -> None:
    sums = task(digits=digits)
    low, high = (0, 9) if digits == 1 else (10, 99)
    everything = {f"{a}+{b}" for a, b in product(range(low, high + 1), repeat=2)}
    held = {item.question for item in sums.held_out(100_000)}
    drawn = {sums.item(3, index).question for index in range(6 * len(everything))}
    assert held & drawn == set()
    assert held | drawn <= everything
    assert 0.12 < len(held) / len(everything) < 0.4
    assert {"+".join(reversed(question.split("+"))) for question in held} == held


def test_long_numbers_have_a_held_out_part_too() -> None:
    sums = task(digits=6)
    held = sums.held_out(50)
    assert len({item.question for item in held}) == 50
    assert sums.held_out(10) == held[:10]
    assert sums.held_out(0) == ()


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("=934", 1.0),
        ("= 934", 1.0),
        ("14 13 9=934", 1.0),
        ("first 8 and 6, then\nthe tens =934.", 1.0),
        ("=934 or =933", 1.0),
        ("=0934", 0.0),
        ("=9345", 0.0),
        ("=  934", 0.0),
        ("=-934", 0.0),
        ("=933 or =934", 0.0),
        ("=x934", 0.0),
        ("934", 0.0),
        ("=٩٣٤", 0.0),
        ("=", 0.0),
        ("", 0.0),
    ],
)
def test_the_number_behind_the_first_marker_decides(text: str, reward: float) -> None:
    assert task().score(asked(478, 456), text) == reward


@pytest.mark.parametrize(
    ("text", "ends_as"),
    [
        ("14 13 9=934", "14 13 9=934"),
        ("14 13 9=934. And", "14 13 9=934."),
        ("=1034567", "=1034"),
        ("a\nb= 12 3", "a\nb= 12 "),
        ("==1", "=="),
        ("=  1", "=  "),
        ("no answer", "no answer"),
    ],
)
def test_a_completion_ends_where_it_is_settled(text: str, ends_as: str) -> None:
    assert completed(task(), text) == ends_as


@given(st.text(alphabet="=0123456789 \nx", max_size=20), st.text(max_size=4))
def test_nothing_behind_the_end_changes_the_reward(text: str, tail: str) -> None:
    sums = task(digits=2)
    ended = completed(sums, text)
    for answer in (50, 123):
        item = asked(answer - 20, 20)
        if re.match(sums.stop_pattern, ended):
            assert sums.score(item, ended + tail.replace("=", "")) == sums.score(item, ended) or ended[-1].isdigit()


@given(st.integers(100, 999), st.integers(100, 999), st.text(alphabet="0123456789 ,\n", max_size=8))
def test_every_right_answer_scores_as_completed(left: int, right: int, working: str) -> None:
    sums, item = task(), asked(left, right)
    assert sums.score(item, completed(sums, f"{working}={item.answer}.")) == 1.0


def test_another_marker_and_the_wording() -> None:
    sums = task(marker="Answer:")
    item = sums.item(0, 0)
    assert "'Answer:'" in item.messages[0].content
    assert item.question in item.messages[0].content
    assert item.answer not in item.messages[0].content.replace(item.question, "")
    assert sums.score(item, f"8=8, so Answer: {item.answer}") == 1.0
    assert task(brief=True).item(0, 0).messages[0].content == task().item(0, 0).question


@pytest.mark.parametrize(
    "parameters",
    [{"digits": 0}, {"digits": 10}, {"marker": " "}, {"marker": "5"}, {"max_tokens": 4}, {"max_tokens": 10_000}],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Parameter]) -> None:
    with pytest.raises(UsageError) as refused:
        WrittenSumsTask(TaskSpec(name="written-sums", version=1, parameters=parameters))
    assert refused.value.hint
