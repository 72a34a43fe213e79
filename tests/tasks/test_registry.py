"""Tasks by name, their errors, and the prompt made from an item."""

from __future__ import annotations

import pytest

from ftis_node.errors import UsageError
from ftis_node.tasks.registry import build, describe, names, prompt_of
from ftis_protocol.manifest import TaskSpec
from ftis_protocol.rollout import PromptRef


def test_the_built_in_tasks_are_listed() -> None:
    assert {"arithmetic", "reasoning-gym"} <= set(names())


def test_a_label_tells_two_tasks_of_one_kind_apart() -> None:
    sums, products = describe("arithmetic:sums", operations="+"), describe("arithmetic:products", operations="*")
    assert build(sums).name == "arithmetic:sums"
    assert build(products).item(1, 1).question.split()[1] == "*"


@pytest.mark.parametrize(
    ("name", "hint"), [("arithmetik", "arithmetic"), ("reasoning_gym", "reasoning-gym"), ("zzz", "Known tasks")]
)
def test_an_unknown_task_is_refused_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        build(TaskSpec(name=name, version=1))
    assert hint in refused.value.hint


def test_an_unknown_parameter_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="digit") as refused:
        describe("arithmetic", digit=2)
    assert "'digits'" in refused.value.hint


def test_a_prompt_carries_no_answer() -> None:
    task = build(describe("arithmetic", operations="*", digits=2))
    item = task.item(5, 3)
    ref = PromptRef(task="arithmetic", version=1, slot=9, index=3)
    prompt = prompt_of(task, item, ref, "author")
    assert (prompt.ref, prompt.author, prompt.item_key) == (ref, "author", item.key)
    assert (prompt.prefill, prompt.stop_pattern) == (item.prefill, task.stop_pattern)
    assert prompt.max_tokens == task.max_completion_tokens == 8
    assert item.answer not in repr(prompt)
