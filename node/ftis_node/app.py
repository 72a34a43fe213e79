"""A running node: which parts it has, in which order they start, and in which order they stop.

    tasks, verify pool -> policy -> last checkpoint -> generator -> admission, judge, buffer -> the three loops

`build` makes the parts, `Node.run` lets the loops work until `stop` is set or the wanted steps are done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ftis_node.admission.admit import Admission
from ftis_node.admission.judge import Judge
from ftis_node.buffer import ForeignSide, OwnSide
from ftis_node.clock import Clock
from ftis_node.compute import ComputeThread, to_its_end
from ftis_node.config import NodeConfig
from ftis_node.errors import EngineError
from ftis_node.fitting import (
    admission_limits,
    buffer_bounds,
    check_answers,
    check_group_size,
    check_swarm,
    engine_news,
    note_start,
)  # fmt: skip
from ftis_node.learner import Places, Say, open_policy, start_generator, update_settings
from ftis_node.lifecycle import together, unless_stopped
from ftis_node.loops.exchange import ExchangeLoop
from ftis_node.loops.oversee import OverseeLoop
from ftis_node.loops.position import Position
from ftis_node.loops.prompts import PromptSource
from ftis_node.loops.rollout import RolloutLoop, groups_ahead
from ftis_node.loops.rooms import Rooms
from ftis_node.loops.train import TrainLoop
from ftis_node.planning import plan_engine
from ftis_node.policy.checkpoint import CheckpointStore, weights_are_finite
from ftis_node.policy.model import use_threads
from ftis_node.policy.update import Updater
from ftis_node.states import NodeState, StateMachine
from ftis_node.store import Store
from ftis_node.store_records import Fact
from ftis_node.supervision import Parts
from ftis_node.swarm.base import Swarm
from ftis_node.tasks.registry import build as build_task
from ftis_node.tasks.verify import VerifyPool

log = logging.getLogger(__name__)

#: runs a call in another thread
Runner = Callable[..., Awaitable[Any]]

#: pause between two rounds of the exchange loop
EXCHANGE_PAUSE_SECONDS = 2.0


class Node:
    """The three loops over one set of rooms, and their orderly end."""

    def __init__(self, rooms: Rooms, exchange: ExchangeLoop, train: TrainLoop, checkpoints: CheckpointStore) -> None:
        self.rooms = rooms
        self.exchange = exchange
        self.train = train
        self.rollout = RolloutLoop(rooms)
        self.oversee = OverseeLoop(rooms)
        self._checkpoints = checkpoints
        self._saved_step = train.step
        self._saving = asyncio.Lock()
        self.dropped = False

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set or `train.max_steps` steps are done; then save and say good-bye.

        A computation that does not end in `node.step_seconds` after the stop is dropped: `dropped` is then true, the
        compute thread is still busy, and the process has to end without waiting for it. Errors of a loop come out
        here after the same orderly end.
        """
        reason, patience = "stopped by an error", self.rooms.config.node.step_seconds
        try:
            self.rooms.states.begin_work()
            self.oversee.begin(stop)
            await self.exchange.announce()
            self.dropped = not await unless_stopped(stop, self._watched(), patience_seconds=patience)
            reason = "stopped by its operator" if stop.is_set() else "finished"
        except Exception as error:
            log.exception("the node stops because of an error")
            self.rooms.store.event("failed", f"{type(error).__name__}: {error}", level="error")
            raise
        finally:
            await self._drain(reason)

    async def _watched(self) -> None:
        """Work to the end under the eyes of the overseer."""
        async with asyncio.TaskGroup() as tasks:
            overseer = tasks.create_task(self.oversee.forever())
            await self._work()
            overseer.cancel()

    async def _work(self) -> None:
        """From the first probe to the last; the last one looks at weights that are saved."""
        probing = bool(self.rooms.config.train.probe_every_steps)
        if self.train.step == 0 and probing:
            await self.train.probe()
        if self.rooms.config.train.lock_step:
            while not self._done:
                await self.rooms.states.may_work()
                await self.step()
        else:
            await self._side_by_side()
        await self._save_if_ahead()
        if probing:
            await self.train.probe()

    async def _side_by_side(self) -> None:
        async with asyncio.TaskGroup() as loops:
            others = [
                loops.create_task(_forever(self.rollout.once)),
                loops.create_task(_forever(self.exchange.once, EXCHANGE_PAUSE_SECONDS)),
                loops.create_task(_forever(self.rollout.publisher.once)),
                loops.create_task(self.rooms.swarm.watch()),
            ]
            await self._train_to_the_end()
            for task in others:
                task.cancel()

    async def step(self) -> None:
        """One lock-step round: exchange, then sample and train one batch. Repeatable."""
        await self.exchange.once()
        await together(self.train.once(), self.rollout.once())
        await self._after_step()

    async def _train_to_the_end(self) -> None:
        pace = self.rooms.config.train.pace_seconds
        clock = asyncio.get_running_loop().time
        while not self._done:
            await self.rooms.states.may_work()
            began = clock()
            await self.train.once()
            await self._after_step()
            await asyncio.sleep(max(0.0, began + pace - clock()))

    async def _after_step(self) -> None:
        train = self.rooms.config.train
        if self.train.step % train.checkpoint_every_steps == 0:
            await to_its_end(self.save())
        if train.probe_every_steps and self.train.step % train.probe_every_steps == 0 and not self._done:
            await self.train.probe()

    @property
    def _done(self) -> bool:
        wanted = self.rooms.config.train.max_steps
        return wanted is not None and self.train.step >= wanted

    async def save(self) -> None:
        """Write a checkpoint of everything that a resumed run needs, unless nothing could go on from it."""
        async with self._saving:
            await self._save(self.rooms.compute.run)

    async def _save(self, run: Runner) -> None:
        rooms = self.rooms
        if not await run(weights_are_finite, rooms.policy):
            text = "a weight is not a finite number; the checkpoints written before are kept"
            rooms.store.event("not-saved", text, level="error")
            return
        position = Position(self.train.step, rooms.prompts.cursor, rooms.judge.record, rooms.foreign.waiting)
        extra = {
            **position.as_json(),
            "model": rooms.config.model.model_dump(mode="json"),
            "swarm": rooms.swarm.swarm_id,
        }
        await run(self._checkpoints.save, rooms.updater, extra)
        self._saved_step = position.step
        rooms.store.set_facts(**{Fact.SAVED_STEP: position.step})

    async def _save_if_ahead(self) -> None:
        if self.train.step > self._saved_step:
            await self.save()

    async def _save_beside(self) -> None:
        """Save the last counted step while the compute thread is busy with the next, whose weights are not changed yet.
        Once they are, that step is nearly done: wait for it."""
        async with self._saving:  # a save under way is waited for
            if self.train.step == self._saved_step:
                self.train.closed = True
                return
            with self.rooms.updater.changing:  # the running step may not change weights any more
                if self.rooms.policy.version == self.train.version:
                    self.train.closed = True
                    await self._save(asyncio.to_thread)
                    return
        await self._save_if_ahead()

    async def _drain(self, reason: str) -> None:
        """Last checkpoint, good-bye."""
        rooms = self.rooms
        try:
            rooms.states.enter(NodeState.DRAINING, reason)
            await (self._save_beside() if self.dropped else self._save_if_ahead())
            await self.rollout.publisher.flush()
        finally:
            self.oversee.end()
            await rooms.swarm.depart(reason)
            rooms.states.enter(NodeState.STOPPED, reason)

    async def close(self) -> None:
        """Release engine, pool and thread. The swarm and the store belong to the caller."""
        rooms = self.rooms
        with suppress(RuntimeError):
            await rooms.compute.run(rooms.generator.close)
        with suppress(EngineError):  # a hand-over that was under way has nowhere to go
            await self.train.settled()
        rooms.compute.close()
        rooms.verify.close()


async def build(config: NodeConfig, swarm: Swarm, store: Store, places: Places, clock: Clock, say: Say) -> Node:
    """Make every part of a node. Heavy work happens in the compute thread, so the DHT keeps answering.

    Raises UsageError for a model, task or checkpoint that cannot work, EngineError for an engine that cannot start.
    """
    manifest = swarm.manifest
    check_group_size(config, swarm)
    tasks = {(spec.name, spec.version): build_task(spec) for spec in manifest.tasks}
    compute = ComputeThread()
    longest = max(min(t.max_completion_tokens, manifest.sampling.max_completion_tokens) for t in tasks.values())
    plan = await compute.run(plan_engine, config, longest)
    say(plan.text)
    policy = await compute.run(open_policy, config.model, config.train.seed)
    for task in tasks.values():
        check_answers(task, policy)
    threads = await compute.run(use_threads, config.node.threads)
    say(
        f"model {policy.name}: {policy.parameter_count:,} parameters, {policy.trainable}, "
        f"on {policy.device} with {threads} thread{'s' if threads > 1 else ''}"
    )
    updater = Updater(policy, replace(update_settings(config), micro_tokens=plan.pass_tokens))
    checkpoints = CheckpointStore(places.checkpoints, keep=config.train.checkpoints_kept)
    stored = await compute.run(checkpoints.restore, updater)
    check_swarm(stored, swarm)
    position = Position.from_json(stored.extra if stored else {})
    if stored:
        passed_over = f" ({len(stored.damaged)} damaged passed over)" if stored.damaged else ""
        say(f"resumed at step {position.step}, policy version {policy.version}{passed_over}")
    parts = Parts(store, clock)
    news = engine_news(store, parts)
    generator = await compute.run(start_generator, config.model, policy, places, say, plan, news)
    verify = VerifyPool()
    foreign = ForeignSide(buffer_bounds(config), clock)
    for group in position.waiting:
        foreign.add(group)
    rooms = Rooms(
        config=config,
        manifest=manifest,
        tasks=tasks,
        prompts=PromptSource(manifest, tasks, swarm.node_id, clock, config.train.seed, position.cursor),
        generator=generator,
        policy=policy,
        updater=updater,
        verify=verify,
        swarm=swarm,
        admission=Admission(manifest, tasks, policy.codec, verify, store, clock, admission_limits(config, swarm)),
        judge=Judge(
            manifest.tasks, position.record, rescue=config.receive.rescue, gate_nats=config.receive.rescue_gate_nats
        ),
        own=OwnSide(groups_ahead(config, generator)),
        foreign=foreign,
        store=store,
        compute=compute,
        clock=clock,
        states=StateMachine(store, clock),
        parts=parts,
    )
    rooms.admission.take_opinions(store.fact(Fact.OPINIONS) or {})
    note_start(rooms, position.step)
    return Node(rooms, ExchangeLoop(rooms), TrainLoop(rooms, places.weights, position.step), checkpoints)


async def _forever(once: Callable[[], Awaitable[None]], pause_seconds: float = 0.0) -> None:
    while True:
        await once()
        await asyncio.sleep(pause_seconds)
