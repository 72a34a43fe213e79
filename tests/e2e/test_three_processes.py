"""A seed and two learners with unlike models as three processes: they learn from each other, and survive what happens
to them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from e2e.living import Crowd, Member, command
from e2e.watching import alive, daemons, processes, until
from ftis_node import metrics
from ftis_node.lab.local_swarm import result_of
from ftis_node.policy.checkpoint import STATE

pytestmark = pytest.mark.swarm

#: what honest nodes may refuse of each other: too late to be of use, met before, or letters that one side does not have
HONEST_REFUSALS = {"stale", "expired", "used", "duplicate", "round_trip"}
#: an orderly stop takes at most ten seconds; the rest is for a machine that is busy with other things
STOP_SECONDS = 20.0


def status(member: Member) -> dict:
    """What `ftis-node status --json` prints about a node."""
    done = command("status", "--json", "--state", str(member.state))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def saved_step(member: Member) -> int:
    """The optimiser step of the newest checkpoint."""
    checkpoints = member.window.checkpoints()
    return json.loads((checkpoints[-1] / STATE).read_text())["extra"]["step"] if checkpoints else 0


def name_of(member: Member) -> str:
    return str(member.window.fact("node_id"))


class TestLearning:
    def test_strangers_learn_from_each_other(self, crowd: Crowd):
        ann, bob = crowd.pair()
        ann.until_foreign_used(3)
        bob.until_foreign_used(3)
        assert ann.window.fact("tokenizer") != bob.window.fact("tokenizer")
        for member in (ann, bob):
            assert set(member.window.refused()) <= HONEST_REFUSALS
        # a tokenizer that has every byte can write whatever the other says
        assert "round_trip" not in ann.window.refused()

    def test_status_tells_what_the_database_holds(self, crowd: Crowd):
        ann, bob = crowd.pair()
        before = ann.window.step
        until(lambda: ann.window.fact("peers") == 2, "ann sees bob and the seed")
        shown = status(ann)
        assert (shown["running"], shown["pid"], shown["state"]) == (True, ann.pid, "working")
        assert before <= shown["step"] <= ann.window.step
        assert shown["node"]["id"] == name_of(ann) != name_of(bob)
        assert shown["node"]["model"] == ann.window.fact("model")
        assert shown["peers"] == 2
        assert shown["alone_since"] is None
        assert 0 < shown["foreign_groups_used"] <= ann.foreign_used
        assert 0 < shown["published_groups"] <= ann.window.total(metrics.PUBLISHED_GROUPS)
        assert shown["latest"][metrics.LOSS] == shown["latest"][metrics.LOSS]


class TestDying:
    def test_a_killed_node_leaves_nothing_behind_and_comes_back_as_itself(self, crowd: Crowd):
        ann, bob = crowd.pair()
        until(lambda: bob.window.checkpoints(), "bob's first checkpoint")
        left, known = processes(bob.pid), name_of(bob)
        assert len(daemons(bob.pid)) == 1
        bob.kill()
        until(lambda: not any(alive(pid) for pid in left), f"what is left of bob: {left}", 10)
        step, kept = ann.window.step, saved_step(bob)
        assert kept > 0
        ann.until_step(step + 3)
        shown = status(bob)
        assert (shown["running"], shown["state"]) == (False, "stopped")

        _, again = crowd.pair()
        again.until_step(kept + 1)
        assert f"resumed at step {kept}" in again.story()
        assert name_of(again) == known
        for member in (ann, again):
            member.until_fetched(2)
            member.until_foreign_used(1)

    def test_a_node_whose_daemon_died_returns_by_itself(self, crowd: Crowd):
        ann, bob = crowd.pair()
        (daemon,) = daemons(bob.pid)
        os.kill(daemon, signal.SIGKILL)
        until(lambda: any(pid != daemon for pid in daemons(bob.pid)), "another daemon for bob")
        for member in (ann, bob):
            member.until_fetched(3)
            member.until_foreign_used(1)
        assert len(daemons(bob.pid)) == 1
        assert "restart 1" in (bob.state / "logs" / "latest").read_text()

    def test_without_the_seed_both_go_on_and_take_it_back(self, crowd: Crowd):
        ann, bob = crowd.pair()
        crowd.seed.kill()
        for member in (ann, bob):
            member.until_step(member.window.step + 3)
            member.until_fetched(3)
            member.until_foreign_used(1)
        founded = crowd.swarm.invite.partition("@")[0]
        assert crowd.seed
        assert crowd.swarm.invite.partition("@")[0] == founded
        until(lambda: crowd.seed.state_now == "working", "the seed is back")
        until(lambda: crowd.seed.window.fact("peers") == 2, "the seed sees both again")


class TestStopping:
    @pytest.mark.parametrize(
        ("send", "number"),
        [(os.kill, signal.SIGTERM), (os.kill, signal.SIGINT), (os.killpg, signal.SIGINT)],
        ids=["SIGTERM", "SIGINT", "SIGINT to the whole group, as a terminal sends it"],
    )
    def test_one_signal_stops_in_good_order(
        self, crowd: Crowd, send: Callable[[int, int], None], number: signal.Signals
    ):
        ann, bob = crowd.pair()
        send(bob.pid, number)
        assert bob.gone(STOP_SECONDS) == 0, bob.story()
        shown = status(bob)
        assert (shown["running"], shown["state"], shown["last_state"]) == (False, "stopped", "stopped")
        assert shown["step"] == saved_step(bob) == result_of(bob.state).steps
        assert f"stopped at step {shown['step']}" in bob.story()
        assert "Traceback" not in bob.story()
        # said good-bye: others do not wait until its card expires
        until(lambda: ann.window.fact("state") == "alone", "ann knows that bob left", 15)

    def test_a_second_signal_ends_at_once(self, crowd: Crowd):
        _, bob = crowd.pair()
        os.kill(bob.pid, signal.SIGSTOP)  # both signals are there before it can do anything about the first
        os.kill(bob.pid, signal.SIGTERM)
        os.kill(bob.pid, signal.SIGINT)
        os.kill(bob.pid, signal.SIGCONT)
        assert bob.gone(STOP_SECONDS) == 130
        assert "second signal" in bob.story()
        kept = saved_step(bob)
        assert f"resumed at step {kept}" in crowd.pair()[1].story()

    def test_a_seed_stops_in_good_order(self, crowd: Crowd):
        ann, _ = crowd.pair()
        seed = crowd.seed
        seed.signal(signal.SIGTERM)
        assert seed.gone(STOP_SECONDS) == 0, seed.story()
        until(lambda: ann.window.fact("peers") == 1, "ann knows that the seed left", 15)
