"""The adapter over reasoning-gym: answers cut out strictly, unfit families refused, items equal in every process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from ftis_node.errors import TaskError, UsageError
from ftis_node.tasks import reasoning_gym
from ftis_node.tasks.reasoning_gym import DATASET_ITEMS, UNSTABLE, ReasoningGymTask
from ftis_protocol.manifest import TaskSpec

pytest.importorskip("reasoning_gym")

# Never edit these to make a test pass: other nodes draw the same items from the same numbers. Raise VERSION instead.
PINNED = [("66 - 44 =", "22"), ("5 - 3 =", "2"), ("45 + 45 =", "90")]


def gym(**parameters: Any) -> ReasoningGymTask:
    return ReasoningGymTask(TaskSpec(name="reasoning-gym", version=ReasoningGymTask.VERSION, parameters=parameters))


@pytest.fixture(scope="module")
def sums() -> ReasoningGymTask:
    return gym(family="chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=2)


def test_items_are_pinned(sums: ReasoningGymTask) -> None:
    items = [sums.item(2**63 + 11, index) for index in (0, 1, DATASET_ITEMS)]
    assert [(item.question.partition("problem: ")[2], item.answer) for item in items] == PINNED
    assert items[0].messages[-1].content.startswith(items[0].question)
    assert "<answer>" in items[0].messages[-1].content
    assert items[0].prefill == ""


def test_items_do_not_depend_on_the_process() -> None:
    """Python orders sets of texts by a number that is drawn at every start."""
    families = ("chain_sum", "letter_counting", "family_relationships", "sentence_reordering")
    here = [gym(family=family).item(5, 3).question for family in families]
    code = (
        "import json\nfrom ftis_node.tasks.registry import build, describe\n"
        f"tasks = [build(describe('reasoning-gym', family=family)) for family in {families}]\n"
        "print(json.dumps([task.item(5, 3).question for task in tasks]))"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert json.loads(there.stdout) == here


def test_no_training_item_is_held_out(sums: ReasoningGymTask) -> None:
    held = sums.held_out(64)
    keys = {item.key for item in held}
    assert len(keys) == 64
    assert sums.held_out(8) == held[:8]
    assert keys.isdisjoint(sums.item(3, index).key for index in range(600))


def test_a_small_family_gives_what_it_has() -> None:
    tiny = gym(family="chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1, allow_negation=False)
    held = tiny.held_out(150)
    assert 10 < len(held) < 100
    assert len({item.question for item in held}) == len(held)


@pytest.mark.parametrize(
    ("form", "reward"),
    [
        ("<answer>{}</answer>", 1.0),
        ("So it is\n<answer> {} </answer>", 1.0),
        ("<answer>{}</answer> or <answer>0</answer>", 1.0),
        ("<answer>0</answer> or <answer>{}</answer>", 0.0),
        ("<answer>about {} or so</answer>", 0.0),
        ("<answer>{}", 0.0),
        ("{}", 0.0),
        ("<answer></answer>{}", 0.0),
        ("<answer>None</answer>{}", 0.0),
        ("<ANSWER>{}</ANSWER>", 0.0),
    ],
)
def test_only_a_tagged_answer_scores(sums: ReasoningGymTask, form: str, reward: float) -> None:
    item = sums.item(1, 0)
    assert sums.score(item, form.format(item.answer)) == reward


def test_a_completion_ends_with_the_closing_tag(sums: ReasoningGymTask) -> None:
    match = re.match(sums.stop_pattern, "thinking\n<answer>4</answer> and more</answer>")
    assert match is not None
    assert match[0] == "thinking\n<answer>4</answer>"


@pytest.mark.parametrize(("marks", "said"), [(ValueError("odd"), "ValueError: odd"), (None, "returned None")])
def test_a_checker_that_fails_gives_no_zero(
    sums: ReasoningGymTask, monkeypatch: pytest.MonkeyPatch, marks: object, said: str
) -> None:
    class Checker:
        def score_answer(self, answer: str, entry: object) -> object:
            if isinstance(marks, Exception):
                raise marks
            return marks

    item = sums.item(1, 0)
    monkeypatch.setattr(reasoning_gym, "_dataset", lambda *_: Checker())
    with pytest.raises(TaskError, match=said):
        sums.score(item, "<answer>4</answer>")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"family": "chain_sums"}, "no family"),
        ({}, "no family"),
        ({"family": "codeio"}, "runs program text"),
        ({"family": "boxnet"}, "no answer"),
        ({"family": "rubiks_cube"}, "no answer"),
        ({"family": "game_of_life_halting"}, "nonsense scores"),
        ({"family": "prime_factorization"}, "ValueError"),
        ({"family": "composite"}, "refuses its settings"),
        ({"family": "chain_sum", "min_term": 2}, "no setting"),
        ({"family": "chain_sum", "seed": 2}, "no setting"),
        ({"family": "chain_sum", "min_terms": 9, "max_terms": 2}, "refuses its settings"),
        ({"family": "chain_sum", "min_terms": "two"}, "refuses its settings"),
        ({"family": "chain_sum", "max_completion_tokens": 0}, "max_completion_tokens"),
        *(({"family": family}, "differ from process") for family in sorted(UNSTABLE)),
    ],
)
def test_what_cannot_work_is_refused(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        gym(**parameters)
    assert refused.value.hint


def test_another_release_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasoning_gym, "version", lambda _: "0.1.24")
    with pytest.raises(UsageError, match=r"0\.1\.24") as refused:
        gym(family="chain_sum")
    assert "0.1.25" in refused.value.hint
