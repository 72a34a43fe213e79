"""Parts: which one is stalled, what each did last, and how often it may be started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftis_node import health, metrics
from ftis_node.clock import StepClock
from ftis_node.health import Verdict
from ftis_node.store import Store
from ftis_node.supervision import PartRules, Parts, RestartPolicy

RULES = {
    "verify": PartRules(10.0),
    "engine": PartRules(20.0, RestartPolicy(first_seconds=1, longest_seconds=4, budget=4, window_seconds=100)),
    "trainer": PartRules(30.0),
}


@pytest.fixture
def store(tmp_path: Path):
    opened = Store.open(tmp_path / "node.db")
    yield opened
    opened.close()


@pytest.fixture
def clock() -> StepClock:
    return StepClock(1000.0)


@pytest.fixture
def parts(store: Store, clock: StepClock) -> Parts:
    return Parts(store, clock, RULES)


def test_a_useful_act_and_its_age(parts: Parts, clock: StepClock) -> None:
    assert parts.snapshot()["trainer"]["state"] == "starting"
    with parts.doing("trainer", "step 7"):
        assert (parts.snapshot()["trainer"]["state"], parts.snapshot()["trainer"]["doing"]) == ("working", "step 7")
    clock.advance(3)
    shown = parts.snapshot()["trainer"]
    assert (shown["state"], shown["last_act"], shown["last_act_age_seconds"]) == ("idle", "step 7", 3.0)


def test_an_act_that_failed_was_not_useful(parts: Parts) -> None:
    with pytest.raises(OSError), parts.doing("trainer", "step 7"):
        raise OSError
    assert parts.snapshot()["trainer"]["last_act"] == ""


def test_of_several_that_wait_the_innermost_is_named(parts: Parts, clock: StepClock) -> None:
    with parts.doing("trainer", "step 1"), parts.doing("engine", "sampling"):
        clock.advance(15)
        assert parts.stalled() is None
        clock.advance(20)
        assert parts.stalled() == ("engine", "sampling for 35 s")
        assert parts.ailment() == "engine is stalled: sampling for 35 s"
        assert parts.snapshot()["trainer"]["state"] == parts.snapshot()["engine"]["state"] == "stalled"
    assert parts.ailment() == ""


def test_restarts_back_off_and_run_out(parts: Parts, clock: StepClock, store: Store) -> None:
    assert [parts.broken("engine", "it died") for _ in range(4)] == [1, 2, 4, 4]
    assert parts.ailment() == "engine is restarting: it died"
    assert parts.broken("engine", "again") is None
    shown = parts.snapshot()["engine"]
    assert (shown["state"], shown["restarts"], shown["restarts_left"]) == ("failed", 4, 0)
    assert store.totals()[metrics.series(metrics.PART_RESTARTS, "engine")] == 4
    assert [event.kind for event in store.events(limit=2)] == ["part-failed", "part-restart"]
    clock.advance(101)
    assert parts.broken("engine", "later") == 1, "old restarts do not count for ever"
    parts.act("engine", "sampling")
    assert parts.ailment() == ""


def test_a_part_that_looks_after_itself_is_counted(parts: Parts, store: Store) -> None:
    parts.replaced("verify", 0, "none yet")
    assert parts.ailment() == ""
    parts.replaced("verify", 2, "it hung")
    parts.replaced("verify", 2, "it hung")
    assert parts.ailment() == "verify is restarting: it hung"
    assert store.totals()[metrics.series(metrics.PART_RESTARTS, "verify")] == 2
    with parts.doing("verify", "scoring", useful=lambda: False):
        pass
    assert parts.ailment(), "nothing useful came of it"
    with parts.doing("verify", "scoring"):
        pass
    assert parts.ailment() == ""


class TestGates:
    def gates(self, store: Store, now: float, running: bool = True) -> dict[str, health.Gate]:
        return {gate.name: gate for gate in health.node_gates(store, running=running, now=now)}

    def test_a_node_that_does_not_run(self, store: Store) -> None:
        (gate,) = health.node_gates(store, running=False, now=0)
        assert (gate.name, gate.verdict) == ("process", Verdict.FAIL)

    def test_a_silent_process_is_named(self, store: Store, parts: Parts) -> None:
        parts.publish()
        assert self.gates(store, 1005)["process"].verdict is Verdict.PASS
        gate = self.gates(store, 1100)["process"]
        assert gate.verdict is Verdict.FAIL
        assert "100 s" in gate.why
        assert "kill" in gate.fix

    def test_alone_and_nothing_accepted(self, store: Store) -> None:
        store.set_facts(state="alone", state_why="no other learner", started_at=0.0, alone_since=900.0, peers=0)
        gates = self.gates(store, 1000.0)
        assert [gates[name].verdict for name in ("state", "peers", "accepted")] == [Verdict.WARN] * 3
        assert "100 s" in gates["peers"].why
        assert "1000 s" in gates["accepted"].why
        store.set_facts(state="working", alone_since=None, peers=2, accepted_at=990.0)
        gates = self.gates(store, 1000.0)
        assert [gates[name].verdict for name in ("state", "peers", "accepted")] == [Verdict.PASS] * 3

    def test_parts_become_gates(self, store: Store, parts: Parts, clock: StepClock) -> None:
        parts.act("trainer", "step 3")
        with parts.doing("engine", "sampling"):
            clock.advance(60)
            parts.publish()
        gates = self.gates(store, clock.now())
        assert gates["trainer"].verdict is Verdict.PASS
        assert "step 3" in gates["trainer"].why
        assert gates["engine"].verdict is Verdict.WARN
        assert "sampling for 60 s" in gates["engine"].why
        assert gates["verify"].verdict is Verdict.UNKNOWN
        assert health.worst(gates.values()) is Verdict.WARN

    def test_a_gate_that_does_not_pass_has_a_fix(self) -> None:
        with pytest.raises(AssertionError):
            health.Gate("x", Verdict.FAIL, "broken")
