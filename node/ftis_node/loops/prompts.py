"""Which of the node's own prompts comes next.

A node's prompts are not its choice: slot (from the clock), node id and task give the seed, and a counter walks through
the slice of that seed. Beyond the slice a node may go on training on its own, but nobody would accept those groups.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ftis_node.clock import Clock
from ftis_node.records import Prompt
from ftis_node.tasks.base import Task
from ftis_node.tasks.registry import prompt_of
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.rollout import PromptRef, item_seed


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the walk stands: the slot and, per task, the next index in its slice. It alone decides what comes next, so
    a node that resumes with it goes on as if it had never stopped."""

    slot: int
    next_index: Mapping[str, int]

    @property
    def position(self) -> str:
        """A name for this point of the walk, from which random choices are seeded."""
        return f"{self.slot}/{sum(self.next_index.values())}"


class PromptSource:
    """Draws the node's own prompts, evenly over the swarm's tasks."""

    def __init__(
        self,
        manifest: SwarmManifest,
        tasks: Mapping[tuple[str, int], Task],
        node_id: str,
        clock: Clock,
        seed: int,
        cursor: Cursor | None = None,
    ) -> None:
        self._manifest = manifest
        self._tasks = tuple(tasks.values())
        self._node_id = node_id
        self._clock = clock
        self._seed = seed
        self.cursor = cursor or Cursor(-1, {})

    def draw(self) -> Prompt:
        """The next prompt of a task chosen at random."""
        slot = int(self._clock.now() // self._manifest.slot_seconds)
        if slot != self.cursor.slot:
            self.cursor = Cursor(slot, {})
        task = random.Random(f"{self._seed}/task/{self.cursor.position}").choice(self._tasks)
        key = f"{task.name}/{task.version}"
        index = self.cursor.next_index.get(key, 0)
        self.cursor = Cursor(slot, {**self.cursor.next_index, key: index + 1})
        seed = item_seed(self._manifest.swarm_id, self._node_id, slot, task.name, task.version)
        ref = PromptRef(task=task.name, version=task.version, slot=slot, index=index)
        prompt = prompt_of(task, task.item(seed, index), ref, self._node_id)
        return replace(prompt, max_tokens=min(prompt.max_tokens, self._manifest.sampling.max_completion_tokens))

    def publishable(self, prompt: Prompt) -> bool:
        """True while the prompt lies inside the slice that others accept."""
        return prompt.ref.index < self._manifest.slice_size
