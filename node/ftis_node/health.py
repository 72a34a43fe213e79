"""Gates: what must hold for a node to be of use, each with its verdict, the reason and what to do about it.

A gate is `pass`, `warn` (works, but worse than it could), `fail` (cannot work) or `unknown` (could not be looked at,
which is never called good). The doctor examines a machine before a node runs; `node_gates` judges a running one from
what it wrote into its own store, so `status`, /readyz and the page all say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ftis_node import metrics
from ftis_node.processes import is_stopped
from ftis_node.store import Store
from ftis_node.store_records import Fact

#: a running node writes a sign of life every few seconds; older than this, its process does not run
SILENT_SECONDS = 20.0
#: without an accepted group for so long a node with peers asks itself why
NOTHING_ACCEPTED_SECONDS = 300.0


class Verdict(StrEnum):
    """How a gate stands, best first."""

    PASS = "pass"
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate: `why` is one sentence with the facts, `fix` what to do (empty for one that passes)."""

    name: str
    verdict: Verdict
    why: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.fix or self.verdict is Verdict.PASS, f"gate {self.name}: {self.verdict} without a fix"

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def passed(name: str, why: str) -> Gate:
    return Gate(name, Verdict.PASS, why)


def warned(name: str, why: str, fix: str) -> Gate:
    return Gate(name, Verdict.WARN, why, fix)


def failed(name: str, why: str, fix: str) -> Gate:
    return Gate(name, Verdict.FAIL, why, fix)


def unknown(name: str, why: str, fix: str) -> Gate:
    return Gate(name, Verdict.UNKNOWN, why, fix)


def worst(gates: Iterable[Gate]) -> Verdict:
    """The worst verdict among the gates; `pass` for none."""
    order = list(Verdict)
    return max((gate.verdict for gate in gates), key=order.index, default=Verdict.PASS)


def node_gates(store: Store, *, running: bool, now: float, pid: int | None = None) -> tuple[Gate, ...]:
    """The gates of a node, judged from its store. `running`: a process, `pid` if known, holds its state directory. The
    first gate that does not pass answers "why is it not useful"."""
    facts, totals = store.facts(), store.totals()
    process = _process_gate(facts, running, now, pid)
    if not running:
        return (process,)
    return (process, _state_gate(facts), *_part_gates(facts), _peers_gate(facts, now), _accepted_gate(facts, now),
            _training_gate(facts, totals))  # fmt: skip


def _process_gate(facts: Mapping[str, Any], running: bool, now: float, pid: int | None) -> Gate:
    if not running:
        why = f"no process holds the state directory; the last one was {facts.get(Fact.STATE, 'never started')}"
        return failed("process", why, "Start it with the line that it was started with; it resumes.")
    if pid is not None and is_stopped(pid):
        return failed("process", f"process {pid} was stopped by a signal", f"kill -CONT {pid}")
    beat = facts.get(Fact.BEAT_AT)
    if beat is None:
        return unknown("process", "the process has just begun", "Wait a moment and look again.")
    if now - beat > SILENT_SECONDS:
        why = f"the process has not given a sign of life for {now - beat:.0f} s"
        return failed("process", why, "It is stopped (kill -CONT) or hangs: kill it and start it again; it resumes.")
    return passed("process", f"alive {max(0.0, now - beat):.0f} s ago")


_STATE_FIXES = {
    "degraded": "See the gates of its parts below, and the log.",
    "paused": "ftis-node resume (or wait for the hours set in limits.hours).",
    "draining": "Nothing: it saves and leaves.",
    "stopped": "Start it again; it resumes.",
}


def _state_gate(facts: Mapping[str, Any]) -> Gate:
    state, why = str(facts.get(Fact.STATE, "unknown")), str(facts.get(Fact.STATE_WHY) or "")
    text = f"{state}: {why}" if why else state
    if state == "working":
        return passed("state", text)
    if state in ("starting", "joining"):
        return unknown("state", text, "Wait until it works; `status` shows what it waits for.")
    if state == "alone":
        return warned("state", text, "Give others the join line, or check the addresses of the swarm (doctor).")
    return warned("state", text, _STATE_FIXES.get(state, "See the log."))


_PART_FIXES = {
    "dht": "Check the network and the swarm's addresses (ftis-node doctor); it is restarted by itself.",
    "engine": "Free memory or cores; after several restarts use --generator transformers.",
    "trainer": "See the log; restart the node, it resumes from its last checkpoint.",
    "verify": "The task's checker fails or hangs: see the log, and report the task.",
    "page": "Check the page's port in the configuration; training goes on without it.",
}


def _part_gates(facts: Mapping[str, Any]) -> list[Gate]:
    """One gate for each part that the node reports (see supervision)."""
    gates = []
    for name, part in (facts.get(Fact.PARTS) or {}).items():
        text = f"{part['state']}" + (f": {part['why']}" if part.get("why") else "")
        if part.get("last_act"):
            text += f"; last useful act: {part['last_act']}"
        fix = _PART_FIXES.get(name, "See the log.")
        if part["state"] in ("working", "idle"):
            gates.append(passed(name, text))
        elif part["state"] == "starting":
            gates.append(unknown(name, text, "Wait a moment."))
        else:
            gates.append((failed if part["state"] == "failed" else warned)(name, text, fix))
    return gates


def _peers_gate(facts: Mapping[str, Any], now: float) -> Gate:
    alone = facts.get(Fact.ALONE_SINCE)
    if alone is None and facts.get(Fact.PEERS):
        return passed("peers", f"{facts[Fact.PEERS]} other nodes show a valid card")
    if alone is None:
        return unknown("peers", "nobody was asked yet", "Wait a moment.")
    why = f"no other learner for {max(0.0, now - alone):.0f} s; the node trains by itself"
    return warned("peers", why, "Give others the join line; with an old invite ask the swarm for a fresh one.")


def _accepted_gate(facts: Mapping[str, Any], now: float) -> Gate:
    since = quiet_since(facts)
    accepted = facts.get(Fact.ACCEPTED_AT)
    if accepted is not None and now - accepted <= NOTHING_ACCEPTED_SECONDS:
        return passed("accepted", f"a group of another node was accepted {max(0.0, now - accepted):.0f} s ago")
    if since is None or now - since <= NOTHING_ACCEPTED_SECONDS:
        return unknown("accepted", "no group of another node was accepted yet", "Wait a few minutes.")
    why = f"nothing of others was accepted for {now - since:.0f} s"
    return warned("accepted", why, "Look at `refused` in status: each reason code is explained in docs/protocol.md.")


def quiet_since(facts: Mapping[str, Any]) -> float | None:
    """Since when nothing of others was accepted: the last acceptance, or the start of this process."""
    moments = [facts.get(Fact.ACCEPTED_AT), facts.get(Fact.STARTED_AT)]
    return max((moment for moment in moments if moment is not None), default=None)


def _training_gate(facts: Mapping[str, Any], totals: Mapping[str, float]) -> Gate:
    own, foreign = totals.get(metrics.OWN_GROUPS_USED, 0), totals.get(metrics.FOREIGN_GROUPS_USED, 0)
    step = facts.get(Fact.STEP, 0)
    if own + foreign == 0:
        return unknown("training", f"step {step}: no group has moved weights yet", "Wait for the first mixed group.")
    return passed("training", f"step {step}: {own:.0f} own and {foreign:.0f} foreign groups moved weights")
