"""Arithmetic items: determinism over machines, the held-out split, the stop rule and strict scoring."""

from __future__ import annotations

import re
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftis_node.errors import UsageError
from ftis_node.tasks.arithmetic import OPERATIONS, ArithmeticTask
from ftis_node.tasks.base import Item, Parameter
from ftis_protocol.manifest import TaskSpec

# Never edit these to make a test pass: other nodes draw the same items from the same numbers. Raise VERSION instead.
PINNED_SUMS = ["9 - 7", "8 + 3", "3 + 4", "8 + 0", "6 + 2", "6 - 9"]
PINNED_PRODUCTS = ["24 * 22", "93 * 98", "97 * 56", "20 * 23"]
PINNED_HELD_OUT = ["3 * 8", "4 * 9", "4 * 6", "7 * 4"]


@cache
def task(operations: str = "+-", digits: int = 1) -> ArithmeticTask:
    return ArithmeticTask(
        TaskSpec(name="arithmetic", version=1, parameters={"operations": operations, "digits": digits})
    )


def asked(expression: str) -> Item:
    left, sign, right = expression.split()
    answer = str(OPERATIONS[sign](int(left), int(right)))
    return Item(key=expression, messages=(), prefill="", answer=answer, question=expression)


def completed(arithmetic: ArithmeticTask, text: str) -> str:
    """What a generator of one character a token makes of `text`: the shortest prefix that the stop rule matches."""
    for length in range(1, len(text) + 1):
        if re.match(arithmetic.stop_pattern, text[:length]):
            return text[:length]
    return text


def test_items_are_the_same_on_every_machine() -> None:
    assert [task().item(2**63 + 5, i).question for i in range(6)] == PINNED_SUMS
    assert [task("*", 2).item(17, i).question for i in range(4)] == PINNED_PRODUCTS
    assert [item.question for item in task("*").held_out(4)] == PINNED_HELD_OUT


def test_an_item_prefills_its_expression() -> None:
    item = task("*", 2).item(3, 0)
    assert item.prefill == f"{item.question} ="
    assert item.messages[-1].role == "user"
    assert item.question in item.messages[-1].content
    left, _, right = item.question.split()
    assert item.answer == str(int(left) * int(right))


@pytest.mark.parametrize("operations", ["+", "-", "*", "+-", "+-*"])
def test_no_training_item_is_held_out_and_nothing_is_lost(operations: str) -> None:
    arithmetic = task(operations)
    everything = {f"{a} {o} {b}" for a, o, b in product(range(10), operations, range(10))}
    held = {item.question for item in arithmetic.held_out(10_000)}
    drawn = {arithmetic.item(11, index).question for index in range(60 * len(everything) // len(operations))}
    assert held & drawn == set()
    if len(operations) == 1:
        assert held | drawn == everything
    assert 0.12 < len(held) / len(everything) < 0.4


def test_commuted_pairs_share_key_and_side() -> None:
    arithmetic = task("+-*")
    held = {item.question: item.key for item in arithmetic.held_out(10_000)}
    for question, key in held.items():
        left, sign, right = question.split()
        mirrored = f"{right} {sign} {left}"
        assert mirrored in held
        assert (held[mirrored] == key) == (sign != "-" or left == right)
    training = {item.question: item.key for item in (arithmetic.item(5, i) for i in range(3000))}
    assert training["8 + 3"] == training["3 + 8"] == "3+8"
    assert set(training.values()).isdisjoint(held.values())


def test_held_out_gives_what_there_is_in_one_order() -> None:
    small = task("*").held_out(10_000)
    assert task("*").held_out(5) == small[:5]
    assert len({item.question for item in small}) == len(small)
    large = task("+", 5).held_out(40)
    assert len({item.question for item in large}) == 40
    assert task("+", 5).held_out(10) == large[:10]
    assert task("+").held_out(0) == ()


@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 10_000), digits=st.integers(1, 6))
def test_operands_have_the_digits_asked_for(seed: int, index: int, digits: int) -> None:
    left, _, right = task("+-*", digits).item(seed, index).question.split()
    for operand in (left, right):
        assert len(operand) == digits
        assert operand == str(int(operand))


@pytest.mark.parametrize(
    ("expression", "text", "reward"),
    [
        ("3 * 4", " 12", 1.0),
        ("3 * 4", "12", 1.0),
        ("3 * 4", "  12.", 1.0),
        ("3 * 4", " 12\n\nBecause", 1.0),
        ("3 * 4", " 120", 0.0),
        ("3 * 4", " 1 2", 0.0),
        ("3 * 4", " 012", 0.0),
        ("3 * 4", " -12", 0.0),
        ("3 * 4", " the answer is 12", 0.0),
        ("3 * 4", "\n12", 0.0),
        ("3 * 4", "    12", 0.0),
        ("3 * 4", " ١٢", 0.0),
        ("3 * 4", "", 0.0),
        ("3 - 7", " -4", 1.0),
        ("3 - 7", " - 4", 0.0),
        ("3 - 7", " 4", 0.0),
        ("3 - 7", " −4", 0.0),
        ("5 - 5", " 0", 1.0),
        ("5 - 5", " -0", 0.0),
        ("9 + 9", " 18", 1.0),
        ("9 + 9", " 1", 0.0),
    ],
)
def test_only_the_plain_number_scores(expression: str, text: str, reward: float) -> None:
    assert task("+-*").score(asked(expression), text) == reward


@pytest.mark.parametrize(
    ("operations", "text", "ends_as"),
    [
        ("*", " 12 and", " 12"),
        ("*", " 7\nso", " 7\n"),
        ("*", " 7", " 7"),
        ("*", " the answer", " t"),
        ("*", "   7", "   "),
        ("*", "-3", "-"),
        ("+-", " -9 ", " -9 "),
        ("+-", " -12", " -12"),
        ("+-", " -x", " -x"),
        ("+-", " --", " --"),
        ("+-", " 18.", " 18"),
        ("+-", "\n\n", "\n"),
    ],
)
def test_a_completion_ends_where_it_is_settled(operations: str, text: str, ends_as: str) -> None:
    arithmetic = task(operations)
    assert completed(arithmetic, text) == ends_as
    assert len(ends_as) <= arithmetic.max_completion_tokens


@settings(deadline=None)  # the first use of a task lists its held-out items
@given(text=st.text(alphabet=" -0123456789\nx", max_size=12), digits=st.integers(1, 3))
def test_the_stop_rule_settles_the_reward(text: str, digits: int) -> None:
    """What follows the end could only turn a number into a longer one, and no answer is longer."""
    arithmetic = task("+-*", digits)
    ended = completed(arithmetic, text)
    assert len(ended) <= arithmetic.max_completion_tokens
    item = arithmetic.held_out(1)[0]
    if arithmetic.score(item, text):
        assert arithmetic.score(item, ended) == 1.0


@given(a=st.integers(0, 99), b=st.integers(0, 99), sign=st.sampled_from("+-*"), tail=st.text(max_size=3))
def test_every_right_answer_fits_and_scores(a: int, b: int, sign: str, tail: str) -> None:
    arithmetic, item = task("+-*", 2), asked(f"{a} {sign} {b}")
    assert arithmetic.score(item, completed(arithmetic, f" {item.answer}.{tail}")) == 1.0


@pytest.mark.parametrize(
    "parameters",
    [
        {"operations": "/"},
        {"operations": ""},
        {"operations": "++"},
        {"digits": 0},
        {"digits": 10},
        {"digits": True},
        {"digits": 1.0},
        {"operation": "+"},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Parameter]) -> None:
    with pytest.raises(UsageError) as refused:
        ArithmeticTask(TaskSpec(name="arithmetic", version=1, parameters=parameters))
    assert refused.value.hint


def test_another_version_is_refused() -> None:
    with pytest.raises(UsageError, match="version 2"):
        ArithmeticTask(TaskSpec(name="arithmetic", version=2))
