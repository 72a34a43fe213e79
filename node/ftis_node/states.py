"""Where a node stands, as one small machine whose every change is a fact, an event and a metric.

    starting -> joining -> alone <-> working <-> degraded -> draining -> stopped
                             ^---------^-- paused --^

`alone`: no other learner shows a living card, the node trains by itself. `working`: at least one does. `degraded`: a
part is stalled or being restarted, the rest goes on. `paused`: the operator or the hours of the day forbid work; the
card stays, nothing is sampled or trained. Of several that apply, the one that explains most is told: draining before
paused before degraded before alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum

from ftis_node import metrics
from ftis_node.clock import Clock
from ftis_node.store import Level, Store
from ftis_node.store_records import Fact


class NodeState(StrEnum):
    """What a node says about itself in its card, in `status`, on the page and in its metrics."""

    STARTING = "starting"
    JOINING = "joining"
    ALONE = "alone"
    WORKING = "working"
    DEGRADED = "degraded"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPED = "stopped"


AT_WORK = (NodeState.ALONE, NodeState.WORKING, NodeState.DEGRADED, NodeState.PAUSED)
_ENDING = (NodeState.DRAINING, NodeState.STOPPED)
_REACHABLE: dict[NodeState, tuple[NodeState, ...]] = {
    NodeState.STARTING: (NodeState.JOINING, *AT_WORK, *_ENDING),
    NodeState.JOINING: (*AT_WORK, *_ENDING),
    **dict.fromkeys(AT_WORK, (*AT_WORK, *_ENDING)),
    NodeState.DRAINING: (NodeState.STOPPED,),
    NodeState.STOPPED: (NodeState.STARTING, NodeState.JOINING, *AT_WORK, NodeState.DRAINING),
}


class StateMachine:
    """The state of one node. The parts report what they see (`learners`, `ailing`, `pause`); the state follows.

    `changed` are called with the new state, so that the card goes out at once.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._learners = 0
        self._ailing = ""
        self._paused: dict[str, str] = {}
        self._may_work = asyncio.Event()
        self._may_work.set()
        self.state = NodeState.STARTING
        self.changed: list[Callable[[NodeState], None]] = []

    def enter(self, state: NodeState, why: str = "") -> None:
        """Change to `state`, which must be reachable from the present one; tells everybody when it is another."""
        if state is self.state:
            return
        assert state in _REACHABLE[self.state], f"{self.state} -> {state}"
        before, self.state = self.state, state
        self._store.set_facts(**{Fact.STATE: state, Fact.STATE_SINCE: self._clock.now(), Fact.STATE_WHY: why})
        level: Level = "warning" if state is NodeState.DEGRADED else "info"
        self._store.event("state", f"{before} -> {state}" + (f": {why}" if why else ""), level=level)
        step = int(self._store.fact(Fact.STEP, 0))
        flags = {metrics.series(metrics.NODE_STATE, each.value): float(each is state) for each in (before, state)}
        self._store.metric(step, flags)
        for tell in self.changed:
            tell(state)

    def begin_work(self) -> None:
        """From the start into whatever the reports so far say."""
        self.enter(*self._at_work())

    @property
    def learners(self) -> int:
        return self._learners

    @learners.setter
    def learners(self, count: int) -> None:
        """Other nodes with a model whose card is valid now."""
        self._learners = count
        self._follow()

    def ailing(self, why: str) -> None:
        """A part is not well and why; empty when all are."""
        self._ailing = why
        self._follow()

    def pause(self, who: str, why: str) -> None:
        """Stop working until `who` resumes; several may hold a pause at once."""
        self._paused[who] = why
        self._may_work.clear()
        self._follow()

    def resume(self, who: str) -> None:
        """Take back the pause of `who`, if there is one."""
        self._paused.pop(who, None)
        if not self._paused:
            self._may_work.set()
        self._follow()

    @property
    def paused(self) -> bool:
        return bool(self._paused)

    async def may_work(self) -> None:
        """Returns when nothing holds the node back."""
        await self._may_work.wait()

    def _follow(self) -> None:
        if self.state in AT_WORK:
            self.enter(*self._at_work())

    def _at_work(self) -> tuple[NodeState, str]:
        if self._paused:
            return NodeState.PAUSED, "; ".join(self._paused.values())
        if self._ailing:
            return NodeState.DEGRADED, self._ailing
        if self._learners == 0:
            return NodeState.ALONE, "no other learner shows a valid card"
        return NodeState.WORKING, ""
