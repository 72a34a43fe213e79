"""Which prompt comes next: a walk that follows from slot, node and cursor alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftis_node.clock import StepClock
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.loops.prompts import Cursor, PromptSource
from ftis_node.tasks.registry import build, describe
from ftis_protocol.manifest import SwarmManifest

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]
NODE = "a" * 26


def two_tasks(rules: SwarmManifest) -> SwarmManifest:
    return rules.model_copy(update={"tasks": (*rules.tasks, describe("arithmetic", operations="+", digits=1))})


def source(manifest: SwarmManifest, clock: StepClock, cursor: Cursor | None = None, node: str = NODE) -> PromptSource:
    tasks = {(spec.name, spec.version): build(spec) for spec in manifest.tasks}
    return PromptSource(manifest, tasks, node, clock, 0, cursor)


def test_a_walk_goes_on_where_the_cursor_stands(letters: Rules) -> None:
    manifest, clock = two_tasks(letters()), StepClock()
    whole = source(manifest, clock)
    all_of_it = [whole.draw() for _ in range(20)]
    assert {p.ref.task for p in all_of_it} == {"letters", "arithmetic"}
    begun = source(manifest, clock)
    first = [begun.draw() for _ in range(7)]
    rest = source(manifest, clock, begun.cursor)
    assert first + [rest.draw() for _ in range(13)] == all_of_it
    assert len({(p.ref.task, p.ref.index) for p in all_of_it}) == 20, "no prompt twice"


def test_a_new_slot_is_a_new_slice(letters: Rules) -> None:
    manifest, clock = letters(), StepClock()
    walk = source(manifest, clock)
    before = [walk.draw() for _ in range(3)]
    clock.advance(manifest.slot_seconds)
    after = walk.draw()
    assert (after.ref.slot, after.ref.index) == (before[0].ref.slot + 1, 0)
    assert after.item_key not in {p.item_key for p in before}


def test_no_two_nodes_walk_alike(letters: Rules) -> None:
    manifest, clock = letters(), StepClock()
    keys = [{source(manifest, clock, node=letter * 26).draw().item_key for _ in range(1)} for letter in "abcd"]
    assert len(set.union(*keys)) == 4


def test_the_swarm_s_cap_holds(letters: Rules) -> None:
    manifest = letters(tokens=50)
    assert source(manifest, StepClock()).draw().max_tokens == manifest.sampling.max_completion_tokens == 3


def test_publishable_ends_with_the_slice(letters: Rules) -> None:
    manifest = letters().model_copy(update={"slice_size": 2})
    walk = source(manifest, StepClock())
    assert [walk.publishable(walk.draw()) for _ in range(4)] == [True, True, False, False]


async def test_the_cursor_comes_back_with_the_checkpoint(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, two_tasks(letters())) as lab:
        node = await lab.add(plan("a"))
        await node.step()
        await node.save()
        cursor = node.rooms.prompts.cursor
        assert sum(cursor.next_index.values()) == 4
        await lab.remove(node)
        assert (await lab.add(plan("a"))).rooms.prompts.cursor == cursor
