"""Held-out pass@1 against a count by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.errors import TaskError
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.loops import evaluate as room
from ftis_node.loops.evaluate import Score, evaluate
from ftis_node.tasks.registry import build, describe, prompt_of
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.rollout import PromptRef
from letters import is_right

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]


def by_hand(node: Node, items: int) -> int:
    """Right greedy answers, one prompt at a time."""
    (spec,) = node.rooms.manifest.tasks
    task, right = build(spec), 0
    for item in task.held_out(items):
        prompt = prompt_of(task, item, PromptRef(task="letters", version=1, slot=0, index=0), "")
        (group,) = node.rooms.generator.generate([prompt], group_size=1, greedy=True)
        right += is_right(item, group.samples[0].text)
    return right


async def score(node: Node, items: int) -> Score:
    rooms = node.rooms
    return await evaluate(rooms.compute, rooms.generator, rooms.verify, rooms.manifest.tasks, items)


async def test_the_score_is_what_a_hand_counts(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        await lab.rounds(3)
        measured = await score(node, 40)  # more than one call of the generator
        assert measured == Score(by_hand(node, 40), 40)
        assert 0 < measured.right < 40, "a score of all or nothing would not show much"
        assert await score(node, 40) == measured, "greedy: nothing random in it"


async def test_calls_of_the_generator_are_bounded_and_greedy(
    letters: Rules, plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PROMPTS_PER_CALL", 3)
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        calls: list[tuple[int, object, object]] = []
        generate = node.rooms.generator.generate

        def watched(prompts: list[object], **named: object) -> object:
            calls.append((len(prompts), named.get("greedy"), named["group_size"]))
            return generate(prompts, **named)  # type: ignore[arg-type]

        node.rooms.generator.generate = watched  # type: ignore[method-assign, assignment]
        await score(node, 8)
        assert calls == [(3, True, 1), (3, True, 1), (2, True, 1)]


async def test_each_task_gets_its_even_share(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    rules = letters()
    rules = rules.model_copy(update={"tasks": (*rules.tasks, describe("arithmetic", operations="+", digits=1))})
    async with Lab(tmp_path, rules) as lab:
        node = await lab.add(plan("a"))
        alone = await evaluate(node.rooms.compute, node.rooms.generator, node.rooms.verify, rules.tasks[:1], 10)
        both = await score(node, 20)
        assert both.items == 20
        assert both.right >= alone.right


async def test_a_checker_that_fails_gives_no_score(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters(fault="always")) as lab:
        node = await lab.add(plan("a"))
        with pytest.raises(TaskError):
            await node.train.probe()
        assert node.rooms.store.points(metrics.PASS_AT_1) == ()


async def test_a_probe_is_written_down(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", train__probe_items=10))
        await lab.rounds(1)
        measured = await node.train.probe()
        (point,) = node.rooms.store.points(metrics.PASS_AT_1)
        assert (point.step, point.value) == (1, measured.pass_at_1)
        assert node.rooms.store.fact("held_out_items") == 10


def test_errors_of_a_score() -> None:
    assert Score(30, 40).pass_at_1 == 0.75
    assert Score(30, 40).standard_error == pytest.approx(math.sqrt(0.75 * 0.25 / 40))
    assert math.isnan(Score(0, 0).pass_at_1)
    assert math.isnan(Score(0, 0).standard_error)
