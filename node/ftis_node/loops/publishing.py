"""What of the node's own groups others get to see, and in which frames it travels.

Groups with right and wrong answers are worth sending, and a few without a wrong one, from which nodes that fail the
task can learn; all of them only inside the slice that others accept. Whatever stands in the way (a frame above the
limit, a slot whose offer is full, a text that the protocol cannot carry) costs the groups concerned their journey and
nothing else: the node trains on them all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pydantic import ValidationError

from ftis_node import metrics
from ftis_node.loops.rooms import Rooms
from ftis_node.records import TrainCompletion, TrainGroup
from ftis_protocol.errors import ProtocolError, Reason
from ftis_protocol.limits import MAX_FRAME_GROUPS
from ftis_protocol.rollout import Completion, Evidence, Frame, Group, PolicyRef, PromptRef, group_digest

log = logging.getLogger(__name__)


class GroupPublisher:
    """Sends own groups out. Never raises for what the network or a limit does."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._reported_slot = -1

    async def publish(self, groups: Sequence[TrainGroup]) -> None:
        """Store the useful ones, as one frame where that is possible; a frame that is too large goes out in halves."""
        if not self._rooms.config.receive.exchange:
            return
        useful = [g for g in groups if self._rooms.prompts.publishable(g.prompt) and (g.mixed or self._spare(g))]
        pieces = [useful[i : i + MAX_FRAME_GROUPS] for i in range(0, len(useful), MAX_FRAME_GROUPS)]
        kept_back, why = 0, ""
        while pieces:
            piece = pieces.pop(0)
            try:
                await self._store(piece)
            except (ProtocolError, ValidationError) as failure:
                if len(piece) > 1 and _may_fit_in_halves(failure):
                    pieces[:0] = [piece[: len(piece) // 2], piece[len(piece) // 2 :]]
                else:
                    kept_back, why = kept_back + len(piece), str(failure)
        if kept_back:
            self._report(kept_back, why)

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
        return Frame(
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
    """The group as others see it: text, reward and finish, and only what the evidence tier adds. Raises pydantic's
    ValidationError for one that is outside the protocol's limits."""
    return Group(
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
    return Completion(
        text=completion.text,
        finish=completion.finish,
        reward=completion.reward,
        logprob_sum=completion.logprob_sum if evidence is Evidence.SEQUENCE else None,
        token_ids=completion.token_ids if token else None,
        logprobs=completion.behaviour_logprobs if token else None,
    )


def _may_fit_in_halves(failure: ProtocolError | ValidationError) -> bool:
    """True for a frame above a limit, and for one group outside the protocol among others that are not."""
    return isinstance(failure, ValidationError) or failure.reason is Reason.SIZE
