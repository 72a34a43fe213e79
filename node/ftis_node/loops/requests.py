"""What the operator asks of a running node, taken up from the table of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ftis_node.states import StateMachine
from ftis_node.store import Store
from ftis_node.store_commands import CommandKind, CommandRow, CommandTable
from ftis_node.store_records import Fact

OPERATOR = "operator"
Opinions = Callable[[dict[str, str]], None]


class RequestDesk:
    """Reads the table, does what is asked, and answers. `opinions` is told whom the operator trusts or blocks. Use as
    a context manager around the life of a node."""

    def __init__(self, store: Store, states: StateMachine, stop: asyncio.Event, opinions: Opinions) -> None:
        self._store = store
        self._states = states
        self._stop = stop
        self._opinions = opinions
        self._table = CommandTable.open(store.path)

    def begin(self) -> None:
        """Answer what an earlier process never took up, and go on being paused if it was."""
        for row in self._table.waiting():
            self._table.answer(row.id, "the node was not running; ask again", ok=False)
        if why := self._store.fact(Fact.PAUSED):
            self._states.pause(OPERATOR, why)

    def serve(self) -> None:
        """Take up everything that waits."""
        for row in self._table.waiting():
            try:
                outcome, ok = self._do(CommandKind(row.kind), row)
            except ValueError:
                outcome, ok = f"this version knows no request {row.kind!r}", False
            self._store.event("request", f"{row.kind} (asked by {row.source}): {outcome}")
            self._table.answer(row.id, outcome, ok=ok)

    def close(self) -> None:
        self._table.close()

    def _do(self, kind: CommandKind, row: CommandRow) -> tuple[str, bool]:
        if kind is CommandKind.PAUSE:
            why = f"paused by {row.source}"
            self._store.set_facts(**{Fact.PAUSED: why})
            self._states.pause(OPERATOR, why)
            return "paused; a running step is finished first", True
        if kind is CommandKind.RESUME:
            self._store.set_facts(**{Fact.PAUSED: None})
            self._states.resume(OPERATOR)
            return f"the node is {self._states.state}", True
        if kind is CommandKind.LEAVE:
            self._stop.set()
            return "the node saves, says good-bye and ends", True
        return self._judge_peer(kind, str(row.arguments.get("node_id", "")))

    def _judge_peer(self, kind: CommandKind, node_id: str) -> tuple[str, bool]:
        if not node_id:
            return "no node_id was given", False
        opinions = dict(self._store.fact(Fact.OPINIONS) or {})
        opinions.pop(node_id, None)
        if kind is not CommandKind.FORGET:
            opinions[node_id] = kind.value
        self._store.set_facts(**{Fact.OPINIONS: opinions})
        self._opinions(opinions)
        return f"{node_id}: {opinions.get(node_id, 'no opinion')}", True
