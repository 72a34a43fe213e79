"""`status` and `identity show`: beside a running node and without one."""

from __future__ import annotations

import json

import pytest

from ftis_node import cli, metrics
from ftis_node.state import StateDir
from ftis_node.store import Store
from ftis_node.store_records import Fact
from ftis_protocol.identity import Identity


@pytest.fixture
def state(tmp_path):
    return StateDir.open(tmp_path / "state")


@pytest.fixture
def store(state):
    opened = Store.open(state.swarm("swarmid").database)
    opened.set_facts(
        **{
            Fact.STATE: "working",
            Fact.STEP: 12,
            Fact.POLICY_VERSION: 11,
            Fact.NODE_ID: "nodeid",
            Fact.NODE_NAME: "brave-otter-42",
            Fact.MODEL: "tiny",
            Fact.SWARM_NAME: "sums",
            Fact.PEERS: 0,
            Fact.ALONE_SINCE: 1_700_000_000.0,
        }
    )
    opened.metric(
        12,
        {
            metrics.OWN_GROUPS_USED: 48,
            metrics.FOREIGN_GROUPS_USED: 7,
            metrics.PASS_AT_1: 0.625,
            metrics.series(metrics.BYTES_IN, "frame"): 1000,
            metrics.series(metrics.BYTES_IN, "card"): 234,
        },
    )
    opened.verdict(b"1", "peer", "sums", "refused", "reward_mismatch")
    opened.verdict(b"2", "", "", "refused", "signature")
    opened.event("alone", "no other node answers")
    yield opened
    opened.close()


def _status(state: StateDir, capsys) -> dict:
    assert cli.main(["status", "--state", str(state.root), "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


def _working(store: Store, state: StateDir) -> None:
    """The process that holds the lock is the one whose facts the database has."""
    store.set_facts(started_at=state.holder().started_at)


def test_status_of_a_running_node(state, store, capsys):
    with state.lock("join") as _:
        _working(store, state)
        summary = _status(state, capsys)
    assert summary["running"] is True
    assert (summary["state"], summary["step"], summary["policy_version"]) == ("working", 12, 11)
    assert (summary["own_groups_used"], summary["foreign_groups_used"]) == (48, 7)
    assert summary["refused_by_reason"] == {"reward_mismatch": 1, "signature": 1}
    assert (summary["bytes_in"], summary["bytes_out"]) == (1234, 0)
    assert (summary["peers"], summary["alone_since"]) == (0, 1_700_000_000.0)
    assert summary["last_event"]["text"] == "no other node answers"
    assert (summary["swarm"]["id"], summary["swarm"]["name"]) == ("swarmid", "sums")


def test_a_dead_node_is_never_called_working(state, store, capsys):
    summary = _status(state, capsys)
    assert summary["running"] is False
    assert (summary["state"], summary["last_state"]) == ("stopped", "working")
    assert (summary["peers"], summary["alone_since"]) == (None, None)
    assert summary["own_groups_used"] == 48


def test_a_predecessors_state_is_not_told_of_a_node_that_begins(state, store, capsys):
    with state.lock("join") as _:
        _working(store, state)
    with state.lock("join") as _:
        summary = _status(state, capsys)
        assert cli.main(["status", "--state", str(state.root)]) == 0
    assert (summary["running"], summary["state"], summary["last_state"]) == (True, "starting", "working")
    assert (summary["peers"], summary["alone_since"]) == (None, None)
    assert "starting (process" in capsys.readouterr().out


def test_status_as_text(state, store, capsys):
    with state.lock("join") as _:
        _working(store, state)
        assert cli.main(["status", "--state", str(state.root)]) == 0
    shown = capsys.readouterr().out
    for part in (
        "brave-otter-42",
        "working (process",
        "48 own, 7 foreign",
        "reward_mismatch 1",
        "alone since",
        "0.625",
    ):
        assert part in shown
    assert cli.main(["status", "--state", str(state.root)]) == 0
    assert "stopped without saying so (last it was: working)" in capsys.readouterr().out


def test_status_of_a_node_without_a_step(state, capsys):
    Store.open(state.swarm("swarmid").database).close()
    assert _status(state, capsys)["step"] == 0
    assert cli.main(["status", "--state", str(state.root)]) == 0


def test_status_where_there_is_nothing(tmp_path, state, capsys):
    assert cli.main(["status", "--state", str(tmp_path / "none")]) == 2
    assert "there is no node in" in capsys.readouterr().err
    assert cli.main(["status", "--state", str(state.root)]) == 2
    assert "never joined" in capsys.readouterr().err
    state.swarm("swarmid")
    assert cli.main(["status", "--state", str(state.root)]) == 2
    assert "cannot read the database" in capsys.readouterr().err


def test_status_takes_the_configured_directory(state, store, capsys, monkeypatch):
    monkeypatch.setenv("FTIS_NODE__STATE_DIR", str(state.root))
    assert cli.main(["status"]) == 0
    assert "brave-otter-42" in capsys.readouterr().out


def test_identity_show(state, capsys):
    identity = Identity.create()
    identity.save(state.identity)
    assert cli.main(["identity", "show", "--state", str(state.root), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {
        "node_id": identity.node_id,
        "name": identity.friendly_name,
        "public_key": identity.public_key.hex(),
        "key_file": str(state.identity),
    }
    assert cli.main(["identity", "show", "--state", str(state.root)]) == 0
    assert identity.node_id in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_identity_that_cannot_be_read(state, capsys, content):
    if content is not None:
        state.identity.write_bytes(content)
        state.identity.chmod(0o600)
    assert cli.main(["identity", "show", "--state", str(state.root)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error: " in shown.err
    assert "fix:   " in shown.err
