"""`ftis-node pause`, `resume` and `leave`: ask something of a running node and report its answer."""

from __future__ import annotations

import time

from ftis_node.commands.options import ReadOptions
from ftis_node.console import Console
from ftis_node.errors import NotAllowed, UsageError
from ftis_node.state import StateDir
from ftis_node.store_commands import CommandKind, CommandTable

POLL_SECONDS = 0.1


def run(kind: CommandKind, options: ReadOptions, wait_seconds: float, console: Console) -> None:
    """Put the request down and wait for the answer. UsageError when no node runs, NotAllowed when it refuses."""
    state = StateDir.existing(options.state_path())
    found = state.current_swarm()
    holder = state.holder()
    if found is None or holder is None:
        raise UsageError(f"no node is running in {state.root}", hint="`ftis-node status` tells what it did last.")
    table = CommandTable.open(found[1].database)
    try:
        number = table.ask(kind, source="the command line")
        deadline = time.monotonic() + wait_seconds
        row = table.row(number)
        while row is not None and row.done_at is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            row = table.row(number)
    finally:
        table.close()
    assert row is not None
    answered = row.done_at is not None
    outcome = row.outcome if answered else f"no answer within {wait_seconds:g} s; the request stays on the table"
    if answered and not row.ok:
        raise NotAllowed(f"the node did not {kind}: {outcome}", hint="See its log, and `ftis-node status`.")
    document = {"request": kind.value, "answered": answered, "outcome": outcome, "pid": holder.pid}
    console.document(document if options.json else outcome)
