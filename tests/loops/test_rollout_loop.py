"""The own side: which prompts, which rewards, what happens when the checker fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftis_node import metrics
from ftis_node.errors import TaskError
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.loops.rollout import VERIFIER_PATIENCE
from ftis_node.records import Origin, Sample, SampledGroup
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.rollout import Evidence, Finish, item_seed
from letters import is_right

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]


async def test_own_groups_carry_what_training_needs(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        node.rooms.own.ask(3)
        await node.rollout.once()
        groups = await node.rooms.own.take(3)
        task = node.rooms.tasks["letters", 1]
        assert [g.prompt.ref.index for g in groups] == [0, 1, 2]
        assert len({g.digest for g in groups}) == 3
        for group in groups:
            seed = item_seed(lab.manifest.swarm_id, node.rooms.swarm.node_id, group.prompt.ref.slot, "letters", 1)
            item = task.item(seed, group.prompt.ref.index)
            assert (group.origin, group.evidence) == (Origin.OWN, Evidence.TOKEN)
            assert len(group.completions) == 4
            for completion in group.completions:
                assert completion.reward == float(is_right(item, completion.text))
                assert len(completion.behaviour_logprobs or ()) == len(completion.token_ids)
                assert completion.logprob_sum == pytest.approx(sum(completion.behaviour_logprobs or ()))


async def test_own_text_trains_in_the_tokens_it_was_sampled_in(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    """Encoding the text again may cut it otherwise; then the log-probabilities would belong to other tokens."""
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        prompt = node.rooms.prompts.draw()
        samples = tuple(Sample("abc", ids, (-1.0,) * len(ids), Finish.LENGTH) for ids in ((7, 8), (9, 10, 11)))
        group = await node.rollout._rewarded(SampledGroup(prompt, (3, 4), samples, 0))
        assert group is not None
        assert [c.token_ids for c in group.completions] == [(7, 8), (9, 10, 11)]
        assert node.rooms.policy.codec.encode_completion("abc", Finish.LENGTH) not in [(7, 8), (9, 10, 11)]
        assert group.prompt_ids == (3, 4)


async def test_groups_whose_checker_failed_are_replaced(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters(fault="odd items")) as lab:
        node = await lab.add(plan("a"))
        await lab.rounds(2)
        store = node.rooms.store
        assert [point.value for point in store.points(metrics.OWN_GROUPS_DRAWN)] == [4, 4]
        failures = [event for event in store.events() if event.kind == "checker-failed"]
        assert failures
        assert "ZeroDivisionError" in failures[0].text
        assert node.rooms.prompts.cursor.next_index["letters/1"] == 8 + len(failures)


async def test_a_task_whose_checker_always_fails_is_named(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters(fault="always")) as lab:
        node = await lab.add(plan("a"))
        with pytest.raises(TaskError) as caught:
            await node.step()
        assert "checker failed" in str(caught.value)
        assert caught.value.hint
        assert node.rooms.prompts.cursor.next_index["letters/1"] == 4 * VERIFIER_PATIENCE
        assert node.train.step == 0


async def test_a_sampling_seed_depends_on_the_place_in_the_walk(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    """Otherwise every batch would repeat the same random numbers."""
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        asked: list[int] = []
        generate = node.rooms.generator.generate

        def watched(*arguments: object, seed: int, **named: object) -> object:
            asked.append(seed)
            return generate(*arguments, seed=seed, **named)  # type: ignore[arg-type]

        node.rooms.generator.generate = watched  # type: ignore[method-assign, assignment]
        await lab.rounds(4)
        assert len(set(asked)) == 4
        assert all(0 <= seed < 2**31 for seed in asked)
