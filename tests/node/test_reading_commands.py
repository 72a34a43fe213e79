"""`status` and `identity show`: beside a running node and without one."""

from __future__ import annotations

import io
import json

import pytest

from ftis_node import cli, metrics
from ftis_node.commands import join
from ftis_node.commands.options import JoinOptions
from ftis_node.console import Console
from ftis_node.state import StateDir
from ftis_node.store import Store
from ftis_node.store_records import Fact
from ftis_protocol.identity import Identity

ADDRESS = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWR5PnYTAiXprb7zUYWsPq4VcVxAyJ9qiFTZuw1JHKS3Pp"


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


def test_config_show_names_who_set_what(tmp_path, capsys, monkeypatch):
    file = tmp_path / "node.toml"
    file.write_text("[train]\ngroup_size = 4\n")
    monkeypatch.setenv("FTIS_LIMITS__HOURS", "22-6")
    line = ["config", "show", "--config", str(file), "--state", str(tmp_path)]
    assert cli.main([*line, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["train.group_size"] == {"value": 4, "source": str(file)}
    assert shown["limits.hours"] == {"value": "22-6", "source": "FTIS_LIMITS__HOURS"}
    assert shown["node.state_dir"]["source"] == "--state"
    assert shown["train.own_share"] == {"value": 0.5, "source": "default"}
    assert cli.main([*line, "--toml"]) == 0
    written = capsys.readouterr().out
    file.write_text(written)
    assert cli.main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["train.group_size"]["value"] == 4
    assert cli.main(line) == 0
    assert "FTIS_LIMITS__HOURS" in capsys.readouterr().out


def test_a_restart_is_not_hidden_by_what_came_after(state, store, capsys):
    store.event("part-restart", "dht is started again (restart 1): it died", level="warning")
    store.event("probe", "held-out pass@1 0.500")
    with state.lock("join") as _:
        _working(store, state)
        summary = _status(state, capsys)
        assert cli.main(["status", "--state", str(state.root)]) == 0
    assert summary["last_event"]["kind"] == "probe"
    assert summary["last_notable_event"]["kind"] == "part-restart"
    shown = capsys.readouterr().out
    assert "restart 1" in shown
    assert "warn     peers: no other learner" in shown


@pytest.mark.parametrize(("steps", "end"), [(None, "when told to"), (7, "after step 7")])
def test_a_check_says_first_what_the_line_would_do(tmp_path, steps, end):
    model, root, talk = tmp_path / "model", tmp_path / "state", io.StringIO()
    options = JoinOptions(swarm=ADDRESS, model=str(model), state=root, steps=steps, check_only=True)
    join.plan(options.layered().config, Console(talk=talk))
    rows = dict(line.split(maxsplit=1) for line in talk.getvalue().splitlines())
    assert rows["swarm"] == ADDRESS
    assert rows["state"] == f"{root} (new)"
    assert rows["model"].startswith(f"{model}, full, generator ")
    assert rows["ends"] == end
    assert not root.exists()
