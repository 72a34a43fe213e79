"""Loop one: sample own groups as training wants them, have them rewarded, keep them, publish what others can use."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence

from ftis_node import metrics
from ftis_node.config import NodeConfig
from ftis_node.errors import TaskError
from ftis_node.generate.base import Generator, StreamingGenerator
from ftis_node.loops.publishing import GroupPublisher, own_digest
from ftis_node.loops.rooms import Rooms
from ftis_node.loops.streaming import GroupStream
from ftis_node.records import Origin, SampledGroup, TrainCompletion, TrainGroup
from ftis_node.store_records import Fact
from ftis_protocol.rollout import Evidence, item_seed

log = logging.getLogger(__name__)

#: batches in a row whose every group the checker failed on, before the node says that the task is broken
VERIFIER_PATIENCE = 5


class RolloutLoop:
    """Own side of the walk. `once` serves one demand of the train loop."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self.publisher = GroupPublisher(rooms)

    async def once(self) -> None:
        """Sample as many groups as are wanted, verify them, hand them over and publish the useful ones.

        Raises TaskError when the task's checker fails batch after batch. Does not return with a generator that streams:
        then groups are sampled one by one for as long as they are wanted.
        """
        rooms = self._rooms
        if isinstance(rooms.generator, StreamingGenerator) and not rooms.config.train.lock_step:
            await GroupStream(rooms, rooms.generator, self._rewarded, self._next_seed, self._keep).run()
        missing = await self._rooms.own.wanted()
        failures = 0
        while missing:
            groups = await self._sample(missing)
            failures = 0 if groups else failures + 1
            if failures == VERIFIER_PATIENCE:
                raise TaskError(
                    "the task's checker failed on every group of several batches",
                    hint="Look for the checker's own error in the log above; the task itself is at fault.",
                )
            for group in groups:
                self._rooms.own.put(group)
            missing -= len(groups)
            self._rooms.judge.observe_own(groups)
            await self.publisher.publish(groups)

    async def _keep(self, groups: list[TrainGroup], seconds: float) -> None:
        """What follows on a streamed group's way into the buffer."""
        self._measure(groups, seconds)
        self._rooms.judge.observe_own(groups)
        await self.publisher.publish(groups)

    def _next_seed(self) -> int:
        return sampling_seed(self._rooms.config.train.seed, self._rooms.prompts.cursor.position)

    async def _sample(self, count: int) -> list[TrainGroup]:
        """`count` rewarded groups, fewer where the checker failed."""
        rooms = self._rooms
        seed = self._next_seed()
        prompts = [rooms.prompts.draw() for _ in range(count)]
        began = time.monotonic()
        with rooms.parts.doing("engine", f"sampling {count} groups"):
            sampled = await rooms.compute.run(
                rooms.generator.generate, prompts, group_size=rooms.config.train.group_size, seed=seed
            )
        seconds = time.monotonic() - began
        with rooms.parts.doing("verify", f"scoring {count} groups"):
            rewarded = [await self._rewarded(group) for group in sampled]
        groups = [group for group in rewarded if group is not None]
        self._measure(groups, seconds)
        return groups

    async def _rewarded(self, sampled: SampledGroup) -> TrainGroup | None:
        rooms = self._rooms
        ref = sampled.prompt.ref
        spec = rooms.manifest.task(ref.task, ref.version)
        assert spec is not None
        seed = item_seed(rooms.manifest.swarm_id, rooms.swarm.node_id, ref.slot, ref.task, ref.version)
        try:
            rewards = await rooms.verify.score(spec, seed, ref.index, [s.text for s in sampled.samples])
        except TaskError as failure:
            log.warning("an own group of %s was dropped, its checker failed: %s", ref.task, failure)
            rooms.store.event("checker-failed", str(failure), level="warning")
            return None
        completions = tuple(
            TrainCompletion(s.text, s.token_ids, s.finish, reward, s.logprobs, sum(s.logprobs))
            for s, reward in zip(sampled.samples, rewards, strict=True)
        )
        return TrainGroup(
            origin=Origin.OWN,
            author=rooms.swarm.node_id,
            prompt=sampled.prompt,
            prompt_ids=sampled.prompt_ids,
            completions=completions,
            evidence=Evidence.TOKEN,
            policy_version=sampled.policy_version,
            created_at=rooms.clock.now(),
            digest=own_digest(rooms.swarm.node_id, ref, completions),
        )

    def _measure(self, groups: Sequence[TrainGroup], seconds: float) -> None:
        """Speed of sampling. Everything has one x axis, the optimiser step: these texts are for the next one."""
        tokens = sum(group.token_count for group in groups)
        if tokens:
            step = int(self._rooms.store.fact(Fact.STEP, 0)) + 1
            speed = tokens / max(seconds, 1e-9)
            values = {metrics.GENERATE_SECONDS: seconds, metrics.TOKENS_PER_SECOND: speed}
            self._rooms.store.metric(step, {**values, metrics.GENERATED_TOKENS: tokens})


def sampling_seed(seed: int, position: str) -> int:
    """The engine's seed at a position of the walk over prompts: below 2**31, as engines ask."""
    return random.Random(f"{seed}/sample/{position}").getrandbits(31)


def groups_ahead(config: NodeConfig, generator: Generator) -> int:
    """Own groups to sample before the learner asks for them."""
    if config.train.lock_step:
        return 0
    if config.train.groups_ahead is not None:
        return config.train.groups_ahead
    return config.train.groups_per_step if isinstance(generator, StreamingGenerator) else 0
