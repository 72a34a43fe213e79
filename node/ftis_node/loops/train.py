"""Loop three: draw a batch, score and judge its foreign part, take one optimiser step, hand the weights over.

Own groups are asked for only after the foreign draw, so a node samples exactly what its batch still lacks: alone it
samples everything itself, with peers it saves that work. Nothing foreign to use is never a reason to wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftis_node import metrics
from ftis_node.admission.judge import Judged
from ftis_node.admission.verdict import Verdict
from ftis_node.buffer import foreign_places
from ftis_node.compute import to_its_end
from ftis_node.errors import TrainingStopped
from ftis_node.generate.base import StreamingGenerator
from ftis_node.loops.evaluate import Score, evaluate
from ftis_node.loops.handover import Shipment, deliver, hand_over, pack
from ftis_node.loops.measuring import rollout_rows, text_metrics
from ftis_node.loops.rooms import Rooms
from ftis_node.policy.update import UpdateReport
from ftis_node.records import JudgedGroup, Origin, TrainGroup
from ftis_node.store_records import Fact
from ftis_node.store_rollouts import add_rollouts
from ftis_protocol.errors import Reason

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Learned:
    """What the compute thread did with one batch. Times in seconds."""

    judged: Judged
    report: UpdateReport
    load_weights_seconds: float
    weights_gap: float | None = None
    shipment: Shipment | None = None


class TrainLoop:
    """The learner. `once` is one step; `step` counts batches, `policy.version` those that changed the weights."""

    def __init__(self, rooms: Rooms, weights_path: Path, step: int = 0) -> None:
        self._rooms = rooms
        self._weights_path = weights_path
        self._delivery: asyncio.Task[None] | None = None
        self.step = step
        #: the policy version of `step`; a newer one belongs to a step that is not counted yet
        self.version = rooms.policy.version
        #: a step that ends later does not count any more: the last checkpoint is written
        self.closed = False

    async def once(self) -> None:
        """One batch from draw to new weights."""
        rooms, train = self._rooms, self._rooms.config.train
        began = time.monotonic()
        places = foreign_places(train.groups_per_step, train.own_share)
        foreign = rooms.foreign.draw(places, random.Random(f"{train.seed}/draw/{self.step}"), rooms.judge.wants)
        wanted = train.groups_per_step - len(foreign)
        rooms.own.ask(wanted)
        try:
            own = await self._own_groups(wanted)
        except asyncio.CancelledError:
            for group in foreign:  # not trained on, so they wait for the next start
                rooms.foreign.add(group)
            raise
        await to_its_end(self._step(own, foreign, began))

    async def _own_groups(self, count: int) -> tuple[TrainGroup, ...]:
        """Wait for them, but not for a generator that did not take the weights: it holds them back for ever."""
        taking = asyncio.ensure_future(self._rooms.own.take(count))
        try:
            if self._delivery is not None:
                await asyncio.wait((taking, self._delivery), return_when=asyncio.FIRST_COMPLETED)
                if self._delivery.done():
                    await self.settled()
            return await taking
        finally:
            taking.cancel()

    async def _step(self, own: Sequence[TrainGroup], foreign: Sequence[TrainGroup], began: float) -> None:
        """Learn and record; `began` is when the wait for groups did."""
        await self.settled()
        if self._rooms.generator.sleeps:
            await asyncio.to_thread(self._rooms.generator.rest)
        waited = time.monotonic() - began
        try:
            with self._rooms.parts.doing("trainer", f"step {self.step + 1}"):
                learned = await self._rooms.compute.run(self._learn, own, foreign)
        except TrainingStopped:
            self._rooms.store.count(metrics.series(metrics.SKIPPED_STEPS, "not_finite"))
            raise
        if self.closed:
            return
        self.step, self.version = self.step + 1, self._rooms.policy.version
        if learned.shipment is not None:
            self._delivery = asyncio.create_task(self._deliver(learned.shipment, learned.load_weights_seconds))
            if self._rooms.config.train.lock_step:
                await self.settled()
        self._record(own, foreign, learned, waited, time.monotonic() - began)

    def _learn(self, own: Sequence[TrainGroup], foreign: Sequence[TrainGroup]) -> Learned:
        """In the compute thread: score, judge, update, hand over. Own groups come first, foreign ones last."""
        rooms = self._rooms
        judged = rooms.judge.judge(rooms.updater.score(foreign))
        batch = [JudgedGroup(group) for group in own] + list(judged.groups)
        report = rooms.updater.update(batch, drawn=len(own) + len(foreign))
        began = time.monotonic()
        gap = shipment = None
        if report.stepped or rooms.generator.sleeps:
            if isinstance(rooms.generator, StreamingGenerator):
                shipment = pack(rooms.policy, rooms.generator, self._weights_path)
            else:
                gap = hand_over(rooms.policy, rooms.generator, self._weights_path)
        return Learned(judged, report, time.monotonic() - began, gap, shipment)

    async def _deliver(self, shipment: Shipment, packing_seconds: float) -> None:
        """While the learner takes up the next batch, the generator ends what it is at and takes the weights."""
        began = time.monotonic()
        gap = await asyncio.to_thread(deliver, self._rooms.generator, shipment)
        seconds = packing_seconds + time.monotonic() - began
        self._rooms.store.metric(self.step, {metrics.LOAD_WEIGHTS_SECONDS: seconds, metrics.WEIGHTS_GAP: gap})

    async def settled(self) -> None:
        """Until the generator has the newest weights. Raises EngineError when it did not take them: then nothing more
        is sampled, trained or published."""
        if self._delivery is not None:
            await asyncio.shield(self._delivery)
            self._delivery = None

    async def probe(self) -> Score:
        """Held-out pass@1 now, recorded."""
        await self.settled()
        rooms = self._rooms
        items = rooms.config.train.probe_items
        score = await evaluate(rooms.compute, rooms.generator, rooms.verify, rooms.manifest.tasks, items)
        rooms.store.metric(self.step, {metrics.PASS_AT_1: score.pass_at_1})
        rooms.store.event("probe", f"held-out pass@1 {score.pass_at_1:.3f}", right=score.right, items=score.items)
        rooms.store.set_facts(held_out_items=score.items, pass_at_1=score.pass_at_1)
        return score

    def _record(
        self,
        own: Sequence[TrainGroup],
        foreign: Sequence[TrainGroup],
        learned: Learned,
        waited: float,
        seconds: float,
    ) -> None:
        rooms, report = self._rooms, learned.report
        used = report.used_digests
        used_foreign = [group for group in foreign if group.digest in used]
        used_own = sum(group.digest in used for group in own)
        rooms.store.mark_used([group.digest for group in used_foreign], self.step)
        for verdict in (*learned.judged.unused, *_without_weight(learned.judged.groups, used)):
            rooms.store.verdict(verdict.digest, verdict.author, verdict.task, "unused", verdict.reason.value)
            rooms.store.count(metrics.series(metrics.FOREIGN_GROUPS_UNUSED, verdict.reason.value))
        values = {
            metrics.OWN_GROUPS_DRAWN: len(own),
            metrics.FOREIGN_GROUPS_DRAWN: len(foreign),
            metrics.OWN_GROUPS_USED: used_own,
            metrics.FOREIGN_GROUPS_USED: len(used_foreign),
            metrics.POLICY_VERSION: rooms.policy.version,
            metrics.POLICY_LAG: _mean_lag(own, report),
            metrics.STEP_SECONDS: seconds,
            metrics.WAIT_GROUPS_SECONDS: waited,
            metrics.TRAINED_TOKENS: report.tokens,
            metrics.RESCUE_ACTIVE: rooms.judge.rescuing_tasks,
            metrics.series(metrics.BUFFER_GROUPS, "foreign"): len(rooms.foreign),
            metrics.BUFFER_BYTES: rooms.foreign.bytes,
            **text_metrics(own, foreign),
            **report_metrics(report),
        }
        if learned.shipment is None:  # what is still on its way is measured when it has arrived
            values[metrics.LOAD_WEIGHTS_SECONDS] = learned.load_weights_seconds
        if learned.weights_gap is not None:
            values[metrics.WEIGHTS_GAP] = learned.weights_gap
        rooms.store.metric(self.step, values)
        aside = {verdict.digest: verdict for verdict in learned.judged.unused}
        put_aside = [(group, aside[group.digest]) for group in foreign if group.digest in aside]
        add_rollouts(rooms.store, rollout_rows(self.step, report, put_aside))
        rooms.store.set_facts(step=self.step, policy_version=rooms.policy.version)
        if used_foreign:
            rooms.store.set_facts(**{Fact.USED_AT: rooms.clock.now()})
        log.info(
            "step %d: %d own and %d foreign groups used of %d and %d, %.1f s",
            self.step, used_own, len(used_foreign), len(own), len(foreign), seconds,
        )  # fmt: skip


def _without_weight(groups: Sequence[JudgedGroup], used: Collection[bytes]) -> list[Verdict]:
    """Foreign groups that went through the update without any weight."""
    return [
        Verdict(item.group.author, item.group.task, item.group.digest, Reason.FILTERED)
        for item in groups
        if item.group.digest not in used
    ]


def _mean_lag(own: Sequence[TrainGroup], report: UpdateReport) -> float:
    """Optimiser steps between sampling and training, averaged over the own groups of a batch."""
    taken_up_at = report.policy_version - report.steps
    return sum(taken_up_at - group.policy_version for group in own) / max(1, len(own))


def report_metrics(report: UpdateReport) -> dict[str, float]:
    """The update's own measurements as series; what was not measured in this step is left out."""
    own, foreign = report.metrics(Origin.OWN), report.metrics(Origin.FOREIGN)
    values: dict[str, float | None] = {
        metrics.LOSS: report.loss,
        metrics.GRADIENT_NORM: report.gradient_norm,
        metrics.MISMATCH_KL_OWN: own.mismatch,
        metrics.MISMATCH_KL_FOREIGN: foreign.mismatch,
        metrics.OWN_WEIGHT: own.mean_weight,
        metrics.FOREIGN_WEIGHT: foreign.mean_weight,
        metrics.FOREIGN_SURPRISE: foreign.surprise,
        metrics.NEGATIVES_OFF: foreign.negatives_off / foreign.members if foreign.members else None,
        metrics.RESCUE_TEXTS: foreign.rescued if report.stepped else 0,
    }
    for origin, side in (("own", own), ("foreign", foreign)):
        values |= {
            metrics.series(metrics.CLIPPED, origin): side.weights_capped_ratio,
            metrics.series(metrics.CLIP_HELD, origin): side.ratios_clipped_ratio,
            metrics.series(metrics.FILTERED, origin): side.filtered / side.members if side.members else None,
            metrics.series(metrics.EFFECTIVE_SAMPLE, origin): side.effective_sample_ratio,
        }
    if report.skipped:
        values[metrics.series(metrics.SKIPPED_STEPS, "not_finite")] = report.skipped
    elif not report.stepped:
        values[metrics.series(metrics.SKIPPED_STEPS, "no_signal")] = 1
    return {name: value for name, value in values.items() if value is not None}
