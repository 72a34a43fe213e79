"""Held-out pass@1: one greedy completion for each item that training never draws, scored by the task's own checker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ftis_node.compute import ComputeThread
from ftis_node.generate.base import Generator
from ftis_node.records import Prompt
from ftis_node.tasks.base import Item, Task
from ftis_node.tasks.registry import build, prompt_of
from ftis_node.tasks.verify import VerifyPool
from ftis_protocol.manifest import TaskSpec
from ftis_protocol.rollout import PromptRef

#: prompts in one call of the generator
PROMPTS_PER_CALL = 32
#: least reward that counts as a right answer
RIGHT_REWARD = 0.99


@dataclass(frozen=True, slots=True)
class Score:
    """`right` of `items` held-out items answered right."""

    right: int
    items: int

    @property
    def pass_at_1(self) -> float:
        return self.right / self.items if self.items else math.nan

    @property
    def standard_error(self) -> float:
        """Of pass@1, taking items as independent."""
        rate = self.pass_at_1
        return math.sqrt(rate * (1 - rate) / self.items) if self.items else math.nan


async def evaluate(
    compute: ComputeThread, generator: Generator, verify: VerifyPool, specs: Sequence[TaskSpec], items: int
) -> Score:
    """Greedy pass@1 over at most `items` held-out items, each task its even share.

    Raises TaskError when a checker fails: a score with holes is not a score.
    """
    rights = await answered_right(compute, generator, verify, specs, items)
    return Score(sum(rights), len(rights))


async def answered_right(
    compute: ComputeThread, generator: Generator, verify: VerifyPool, specs: Sequence[TaskSpec], items: int
) -> tuple[bool, ...]:
    """The same item by item, in an order that depends on `specs` and `items` alone."""
    share = max(1, items // len(specs))
    rights: list[bool] = []
    for spec in specs:
        rights += await _score_task(compute, generator, verify, spec, share)
    return tuple(rights)


async def _score_task(
    compute: ComputeThread, generator: Generator, verify: VerifyPool, spec: TaskSpec, share: int
) -> list[bool]:
    task = build(spec)
    prompts = [_prompt(task, item) for item in task.held_out(share)]
    texts: list[str] = []
    for start in range(0, len(prompts), PROMPTS_PER_CALL):
        batch = prompts[start : start + PROMPTS_PER_CALL]
        groups = await compute.run(generator.generate, batch, group_size=1, greedy=True)
        texts += [group.samples[0].text for group in groups]
    rewards = await verify.score_held_out(spec, share, tuple(enumerate(texts)))
    return [reward >= RIGHT_REWARD for reward in rewards]


def _prompt(task: Task, item: Item) -> Prompt:
    """A held-out prompt belongs to nobody's slice."""
    return prompt_of(task, item, PromptRef(task=task.name, version=task.version, slot=0, index=0), "")
