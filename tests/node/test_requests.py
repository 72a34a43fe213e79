"""What an operator asks of a running node: through the table, by command line, and what a node does about it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from ftis_node import cli
from ftis_node.clock import StepClock
from ftis_node.errors import UsageError
from ftis_node.loops.requests import RequestDesk
from ftis_node.state import StateDir
from ftis_node.states import NodeState, StateMachine
from ftis_node.store import Store
from ftis_node.store_commands import COMMANDS_KEPT, CommandKind, CommandTable
from ftis_node.store_schema import MIGRATIONS


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir.open(tmp_path / "state")


@pytest.fixture
def store(state: StateDir):
    opened = Store.open(state.swarm("swarmid").database)
    yield opened
    opened.close()


@pytest.fixture
def table(store: Store):
    opened = CommandTable.open(store.path)
    yield opened
    opened.close()


@pytest.fixture
def machine(store: Store) -> StateMachine:
    made = StateMachine(store, StepClock())
    made.begin_work()
    return made


def test_a_request_waits_until_it_is_answered(table: CommandTable) -> None:
    number = table.ask(CommandKind.TRUST, "the page", node_id="peer")
    (row,) = table.waiting()
    assert (row.id, row.kind, row.arguments, row.source) == (number, "trust", {"node_id": "peer"}, "the page")
    table.answer(number, "done")
    assert table.waiting() == ()
    answered = table.row(number)
    assert answered is not None
    assert (answered.ok, answered.outcome) == (True, "done")


def test_old_requests_go(table: CommandTable) -> None:
    for _ in range(3):
        table.ask(CommandKind.PAUSE, "x")
    last = table.ask(CommandKind.PAUSE, "x")
    table.answer(last + COMMANDS_KEPT - 1, "far ahead")
    assert [row.id for row in table.recent()] == [last]


def test_where_there_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no database"):
        CommandTable.open(tmp_path / "none.db")
    sqlite3.connect(tmp_path / "other.db").close()
    with pytest.raises(UsageError, match="schema 0"):
        CommandTable.open(tmp_path / "other.db")


def test_a_database_of_the_version_before_gets_the_table(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    with sqlite3.connect(path) as old:
        old.executescript(MIGRATIONS[0] + "PRAGMA user_version = 1;")
        old.execute("INSERT INTO facts VALUES ('step', '7', 0)")
    old.close()
    with pytest.raises(UsageError, match="schema 1"):
        CommandTable.open(path)
    store = Store.open(path)
    table = CommandTable.open(path)
    assert (store.fact("step"), table.waiting()) == (7, ())
    table.close()
    store.close()


class TestDesk:
    def desk(self, store: Store, machine: StateMachine, said: list[dict[str, str]], stop: asyncio.Event) -> RequestDesk:
        return RequestDesk(store, machine, stop, said.append)

    def test_pause_outlives_the_process(self, store: Store, table: CommandTable, machine: StateMachine) -> None:
        desk = self.desk(store, machine, [], asyncio.Event())
        table.ask(CommandKind.PAUSE, "me")
        desk.serve()
        assert (machine.state, machine.paused) == (NodeState.PAUSED, True)
        desk.close()
        again = StateMachine(store, StepClock())
        again.begin_work()
        desk = self.desk(store, again, [], asyncio.Event())
        desk.begin()
        assert again.state is NodeState.PAUSED
        table.ask(CommandKind.RESUME, "me")
        desk.serve()
        assert again.state is NodeState.ALONE
        assert store.fact("paused") is None
        desk.close()

    def test_what_nobody_took_up_is_answered_at_the_next_start(
        self, store: Store, table: CommandTable, machine: StateMachine
    ) -> None:
        number, stop = table.ask(CommandKind.LEAVE, "me"), asyncio.Event()
        desk = self.desk(store, machine, [], stop)
        desk.begin()
        row = table.row(number)
        assert row is not None
        assert (row.ok, "not running" in row.outcome, stop.is_set()) == (False, True, False)
        table.ask(CommandKind.LEAVE, "me")
        desk.serve()
        assert stop.is_set()
        desk.close()

    def test_opinions_and_unknown_requests(self, store: Store, table: CommandTable, machine: StateMachine) -> None:
        said: list[dict[str, str]] = []
        desk = self.desk(store, machine, said, asyncio.Event())
        table.ask(CommandKind.BLOCK, "me", node_id="bad")
        table.ask(CommandKind.TRUST, "me", node_id="good")
        table.ask(CommandKind.FORGET, "me", node_id="bad")
        nameless = table.ask(CommandKind.BLOCK, "me")
        with sqlite3.connect(store.path) as db:
            db.execute("INSERT INTO commands (ts, kind, arguments, source) VALUES (0, 'dance', '{}', 'x')")
        desk.serve()
        assert said == [{"bad": "block"}, {"bad": "block", "good": "trust"}, {"good": "trust"}]
        row, dance = table.row(nameless), table.recent(1)[0]
        assert row is not None
        assert (row.ok, dance.ok, "no request 'dance'" in dance.outcome) == (False, False, True)
        desk.close()


class TestCommandLine:
    def test_without_a_node(self, state: StateDir, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["pause", "--state", str(state.root)]) == 2
        assert "no node is running" in capsys.readouterr().err

    def test_an_answer_that_does_not_come(
        self, state: StateDir, store: Store, table: CommandTable, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with state.lock("join"):
            assert cli.main(["pause", "--state", str(state.root), "--wait", "0", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["request"], shown["answered"]) == ("pause", False)
        assert table.waiting()[0].kind == "pause"

    def test_peers_and_invite(self, state: StateDir, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        store.peer_seen("peer-id-0123456789", name="otter", model="tiny")
        assert cli.main(["peers", "--state", str(state.root)]) == 0
        assert "otter" in capsys.readouterr().out
        assert cli.main(["peers", "--state", str(state.root), "--json"]) == 0
        (peer,) = json.loads(capsys.readouterr().out)
        assert (peer["name"], peer["living"]) == ("otter", True)
        assert cli.main(["invite", "--state", str(state.root)]) == 2
        assert "knows no address" in capsys.readouterr().err
        store.set_facts(invite="ftis:abc@/ip4/127.0.0.1/tcp/1/p2p/Qm", swarm_name="sums")
        assert cli.main(["invite", "--state", str(state.root)]) == 0
        assert "join --swarm ftis:abc@" in capsys.readouterr().out
