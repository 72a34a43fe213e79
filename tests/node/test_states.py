"""The state of a node: which changes are possible, which cause is told, and who gets to know."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ftis_node import metrics
from ftis_node.clock import StepClock
from ftis_node.states import NodeState, StateMachine
from ftis_node.store import Store


@pytest.fixture
def store(tmp_path: Path):
    opened = Store.open(tmp_path / "node.db")
    yield opened
    opened.close()


@pytest.fixture
def machine(store: Store) -> StateMachine:
    made = StateMachine(store, StepClock(1000.0))
    made.enter(NodeState.JOINING)
    made.begin_work()
    return made


def test_a_change_is_a_fact_an_event_and_a_metric(machine: StateMachine, store: Store) -> None:
    told: list[NodeState] = []
    machine.changed.append(told.append)
    machine.learners = 2
    assert (store.fact("state"), store.fact("state_since"), told) == ("working", 1000.0, [NodeState.WORKING])
    assert store.events(limit=1)[0].text == "alone -> working"
    latest = store.latest()
    assert latest[metrics.series(metrics.NODE_STATE, "working")].value == 1
    assert latest[metrics.series(metrics.NODE_STATE, "alone")].value == 0
    count = len(store.events())
    machine.learners = 3
    assert len(store.events()) == count, "the same state is told once"


def test_the_cause_that_explains_most_is_told(machine: StateMachine, store: Store) -> None:
    machine.ailing("engine is stalled")
    assert (machine.state, store.fact("state_why")) == (NodeState.DEGRADED, "engine is stalled")
    machine.pause("operator", "paused by hand")
    machine.pause("hours", "at night")
    assert store.fact("state_why") == "paused by hand"
    machine.resume("operator")
    assert machine.state is NodeState.PAUSED, "the hours still hold it"
    machine.resume("hours")
    assert machine.state is NodeState.DEGRADED
    machine.ailing("")
    assert machine.state is NodeState.ALONE


def test_what_comes_after_the_end_changes_nothing(machine: StateMachine) -> None:
    machine.enter(NodeState.DRAINING)
    machine.learners = 5
    machine.ailing("late")
    assert machine.state is NodeState.DRAINING
    with pytest.raises(AssertionError):
        machine.enter(NodeState.WORKING)


async def test_a_pause_holds_work_until_all_have_resumed(machine: StateMachine) -> None:
    await asyncio.wait_for(machine.may_work(), 30)
    machine.pause("a", "why")
    waiting = asyncio.ensure_future(machine.may_work())
    await asyncio.sleep(0)
    assert not waiting.done()
    machine.resume("a")
    await asyncio.wait_for(waiting, 30)
