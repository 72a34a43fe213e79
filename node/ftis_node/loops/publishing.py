"""What of the node's own groups others get to see, and in which frames it travels.

Groups with right and wrong answers are worth sending, and a few without a wrong one, from which nodes that fail the
task can learn; all of them only inside the slice that others accept. Groups wait a short time for each other, because
one frame with one signature is smaller than several; `pacing` spreads them over the slot. Whatever stands in the way (a
frame above the limit, a slot whose offer is full, a text that the protocol cannot carry) costs the groups concerned
their journey and nothing else: the node trains on them all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ftis_node import metrics
from ftis_node.loops.pacing import Pace
from ftis_node.loops.rooms import Rooms
from ftis_node.records import TrainCompletion, TrainGroup
from ftis_protocol.columns import half, single
from ftis_protocol.errors import ProtocolError
from ftis_protocol.limits import MAX_FRAME_GROUPS
from ftis_protocol.rollout import Completion, Evidence, Frame, Group, PolicyRef, PromptRef, group_digest

log = logging.getLogger(__name__)

#: groups that wait for each other at most; then they are due at once
MAX_WAITING = MAX_FRAME_GROUPS


class GroupPublisher:
    """Sends own groups out. Never raises for what the network or a limit does.

    In lock step `publish` sends at once. Otherwise it only lets the groups wait, and `once`, run for ever beside the
    other loops, sends them when they are due.
    """

    def __init__(self, rooms: Rooms) -> None:
        config = rooms.config.publish
        self._rooms = rooms
        self._reported_slot = -1
        self._waiting: list[TrainGroup] = []
        self._oldest_at = 0.0
        self._more = asyncio.Event()
        self._sending = asyncio.Lock()
        self._collect_seconds = 0.0 if rooms.config.train.lock_step else config.collect_seconds
        self._pace = Pace(rooms.manifest.slot_seconds, config.groups_per_slot)

    async def publish(self, groups: Sequence[TrainGroup]) -> None:
        """Take the useful ones of finished groups on their way."""
        if not self._rooms.config.receive.exchange:
            return
        useful = [g for g in groups if self._rooms.prompts.publishable(g.prompt) and (g.mixed or self._spare(g))]
        if useful and not self._waiting:
            self._oldest_at = asyncio.get_running_loop().time()
        self._waiting += useful
        self._drop(len(self._waiting) - MAX_WAITING)
        if useful:
            self._more.set()
        if self._rooms.config.train.lock_step and self._pace.wait_seconds(self._rooms.clock.now()) == 0:
            await self.flush()

    async def once(self) -> None:
        """Wait for groups, then for the moment they are due, and send them."""
        await self._more.wait()
        while (wait := self._due_in_seconds()) > 0:
            self._more.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._more.wait()
            except TimeoutError:
                continue
        self._more.clear()
        await self.flush()

    def _due_in_seconds(self) -> float:
        """Until the oldest group has waited long enough, the frame is full, or the slot is nearly over; never before
        the slot's share of frames allows another one."""
        now = self._rooms.clock.now()
        waited = asyncio.get_running_loop().time() - self._oldest_at
        patience = min(self._collect_seconds - waited, self._pace.left_seconds(now))
        if len(self._waiting) >= MAX_WAITING:
            patience = 0.0
        return max(0.0, patience, self._pace.wait_seconds(now))

    async def flush(self) -> None:
        """Send what waits: as one frame where that is possible, in halves where it is too large. Of more than the slot
        has room for the newest go."""
        async with self._sending:
            now = self._rooms.clock.now()
            self._drop(len(self._waiting) - self._pace.groups_allowed(now))
            groups, self._waiting = self._waiting, []
            if groups:
                frames = await self._send(groups)
                self._pace.sent(now, len(groups), frames)

    def _drop(self, surplus: int) -> None:
        """Leave the oldest `surplus` waiting groups behind."""
        if surplus > 0:
            del self._waiting[:surplus]
            self._rooms.store.count(metrics.series(metrics.KEPT_BACK, "pace"), surplus)

    async def _send(self, groups: list[TrainGroup]) -> int:
        """Store groups; the number of frames it took."""
        pieces = [groups[i : i + MAX_FRAME_GROUPS] for i in range(0, len(groups), MAX_FRAME_GROUPS)]
        kept_back, why, frames = 0, "", 0
        while pieces:
            piece = pieces.pop(0)
            try:
                await self._store(piece)
                frames += 1
            except ProtocolError as failure:
                # Too large a frame fits in halves, and one group outside the protocol is parted from the others.
                if len(piece) > 1:
                    pieces[:0] = [piece[: len(piece) // 2], piece[len(piece) // 2 :]]
                else:
                    kept_back, why = kept_back + len(piece), str(failure)
                    self._rooms.store.count(metrics.series(metrics.KEPT_BACK, failure.reason.value), len(piece))
        if kept_back:
            self._report(kept_back, why)
        return frames

    def _spare(self, group: TrainGroup) -> bool:
        """Count and allow a group without a wrong answer, as many in a slot as the operator grants, restarts or not."""
        store = self._rooms.store
        slot, sent = store.fact("all_right_published") or (-1, 0)
        sent = sent if slot == self._slot else 0
        if not group.all_right or sent >= self._rooms.config.publish.all_right_groups_per_slot:
            return False
        store.set_facts(all_right_published=(self._slot, sent + 1))
        return True

    async def _store(self, groups: Sequence[TrainGroup]) -> None:
        rooms = self._rooms
        tokens = [g.token_count for g in groups]
        published = await rooms.swarm.publish(self._frame(groups), tokens=tokens)
        if not published.stored:
            rooms.store.event("publish-pending", "no node has stored the last frame yet", level="warning")
        rooms.store.count(metrics.PUBLISHED_GROUPS, len(groups))
        rooms.store.count(metrics.PUBLISHED_TOKENS, sum(tokens))
        rooms.store.count(metrics.series(metrics.BYTES_OUT, "frame"), published.body_bytes)
        rooms.store.count(metrics.series(metrics.BYTES_OUT, "offer"), published.offer_bytes)

    def _frame(self, groups: Sequence[TrainGroup]) -> Frame:
        rooms = self._rooms
        evidence = rooms.config.publish.evidence
        return Frame.build(
            slot=self._slot,
            policy=PolicyRef(
                model=rooms.policy.name,
                revision="",
                tokenizer=rooms.policy.codec.fingerprint,
                trainable=rooms.policy.trainable,
            ),
            groups=tuple(wire_group(group, evidence) for group in groups),
        )

    @property
    def _slot(self) -> int:
        return int(self._rooms.clock.now() // self._rooms.manifest.slot_seconds)

    def _report(self, groups: int, why: str) -> None:
        """Every time in the log, once a slot as an event: a fast node fills its slot's offer and then meets no end."""
        log.warning("could not publish %d groups: %s", groups, why)
        if self._slot != self._reported_slot:
            self._reported_slot = self._slot
            self._rooms.store.event("publish-failed", f"{groups} groups stay here: {why}", level="warning")


def wire_group(group: TrainGroup, evidence: Evidence) -> Group:
    """The group as others see it: text, reward and finish, and only what the evidence tier adds. Raises ProtocolError
    for one that is outside the protocol's limits."""
    return Group.build(
        prompt=group.prompt.ref,
        policy_version=group.policy_version,
        evidence=evidence,
        completions=tuple(_wire_completion(c, evidence) for c in group.completions),
    )


def own_digest(author: str, ref: PromptRef, completions: Sequence[TrainCompletion]) -> bytes:
    """The name of an own group. Unchecked records: what is too long for the wire still trains here and needs one."""
    texts = (Completion.model_construct(text=c.text, finish=c.finish) for c in completions)
    return group_digest(Group.model_construct(prompt=ref, completions=tuple(texts)), author)


def _wire_completion(completion: TrainCompletion, evidence: Evidence) -> Completion:
    token = evidence is Evidence.TOKEN
    logprobs, total = completion.behaviour_logprobs, completion.logprob_sum
    return Completion.build(
        text=completion.text,
        finish=completion.finish,
        reward=completion.reward,
        logprob_sum=single(total) if evidence is Evidence.SEQUENCE and total is not None else None,
        token_ids=completion.token_ids if token else None,
        logprobs=half(logprobs) if token and logprobs is not None else None,
    )
