"""`ftis-node status`: what a node does now, or did last. Reads the database beside the node, which need not run."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

from ftis_node import health, metrics
from ftis_node.commands.options import ReadOptions
from ftis_node.console import Console
from ftis_node.dashboard import documents
from ftis_node.errors import UsageError
from ftis_node.state import StateDir
from ftis_node.state_lock import Holder
from ftis_node.store import Store
from ftis_node.store_records import Event, Fact

#: events among which the last notable one is looked for
EVENTS_LOOKED_AT = 200
#: events that a later ordinary one must not hide
NOTABLE = ("start", "part-restart", "part-failed", "stalled", "unclean-end", "failed")


#: pause between two looks of `--watch`
WATCH_SECONDS = 2.0


def watch(options: ReadOptions, console: Console) -> None:
    """The status again and again until Ctrl-C: in place on a terminal, else one block or JSON line after the other."""
    screen = console.is_screen and not options.json
    with suppress(KeyboardInterrupt):
        while True:
            summary = _look(options)
            if options.json:
                console.document(json.dumps(summary, default=str))
            else:
                text = f"{as_text(summary)}\n\n{time.strftime('%H:%M:%S')}, every {WATCH_SECONDS:g} s; Ctrl-C ends"
                console.document(f"\x1b[H\x1b[J{text}" if screen else f"{text}\n")
            time.sleep(WATCH_SECONDS)


def run(options: ReadOptions, console: Console) -> None:
    """Print the status as text, or as one JSON document."""
    summary = _look(options)
    console.document(summary if options.json else as_text(summary))


def _look(options: ReadOptions) -> dict[str, Any]:
    state = StateDir.existing(options.state_path())
    found = state.current_swarm()
    if found is None:
        raise UsageError(f"the node in {state.root} never joined a swarm", hint="Join one: ftis-node join --swarm ...")
    swarm_id, folder = found
    store = Store.view(folder.database)
    try:
        return summarise(store, swarm_id, state.holder())
    finally:
        store.close()


def summarise(store: Store, swarm_id: str, holder: Holder | None) -> dict[str, Any]:
    """Everything `status` shows, as JSON values. A dead node keeps its numbers but is never called working."""
    facts, totals, latest = store.facts(), store.totals(), store.latest()
    said = facts.get(Fact.STATE, "unknown")
    begun = holder is not None and facts.get(Fact.STARTED_AT) == holder.started_at
    pid = holder.pid if holder else None
    now, events = time.time(), store.events(limit=EVENTS_LOOKED_AT)
    gates = health.node_gates(store, running=holder is not None, now=now, pid=pid) if begun or holder is None else ()
    parts = (facts.get(Fact.PARTS) or {}) if begun else {}
    noted = [event for event in events if event.kind in NOTABLE or event.level in ("warning", "error")]
    return {
        "running": holder is not None,
        "pid": holder.pid if holder else None,
        "started_at": holder.started_at if holder else None,
        "state": "stopped" if holder is None else said if begun else "starting",
        "last_state": said,
        "swarm": documents.swarm_view(store, facts, swarm_id, _role(facts)).model_dump(),
        "node": {"id": facts.get(Fact.NODE_ID), "name": facts.get(Fact.NODE_NAME), "model": facts.get(Fact.MODEL)},
        "step": facts.get(Fact.STEP, 0),
        "policy_version": facts.get(Fact.POLICY_VERSION, 0),
        "own_groups_used": int(totals.get(metrics.OWN_GROUPS_USED, 0)),
        "foreign_groups_used": int(totals.get(metrics.FOREIGN_GROUPS_USED, 0)),
        "published_groups": int(totals.get(metrics.PUBLISHED_GROUPS, 0)),
        "refused_by_reason": {
            reason: count for (verdict, reason), count in sorted(store.counts().items()) if verdict == "refused"
        },
        "peers": facts.get(Fact.PEERS, 0) if begun else None,
        "alone_since": facts.get(Fact.ALONE_SINCE) if begun else None,
        "bytes_in": _sum_of(totals, metrics.BYTES_IN),
        "bytes_out": _sum_of(totals, metrics.BYTES_OUT),
        "latest": {name: point.value for name, point in sorted(latest.items())},
        "state_since": facts.get(Fact.STATE_SINCE) if begun else None,
        "state_why": facts.get(Fact.STATE_WHY, "") if begun else "",
        "nothing_accepted_since": health.quiet_since(facts) if begun else None,
        "last_accepted_at": facts.get(Fact.ACCEPTED_AT),
        "last_used_at": facts.get(Fact.USED_AT),
        "saved_step": facts.get(Fact.SAVED_STEP, 0),
        "restarts": {name: part["restarts"] for name, part in parts.items() if part["restarts"]},
        "parts": parts,
        "gates": [gate.as_json() for gate in gates],
        "last_event": _shown(events[0]) if events else None,
        "last_notable_event": _shown(noted[0]) if noted else None,
        "age_seconds": round(time.time() - max((point.ts for point in latest.values()), default=time.time()), 1),
    }


def as_text(summary: dict[str, Any]) -> str:
    """The summary for a person, one line per matter."""
    running = f"{summary['state']} (process {summary['pid']})" if summary["running"] else _stopped(summary)
    swarm, node = summary["swarm"], summary["node"]
    refused = ", ".join(f"{reason} {count}" for reason, count in summary["refused_by_reason"].items())
    lines = {
        "node": f"{node['name'] or '?'}  {node['id'] or ''}".rstrip(),
        "swarm": f"{swarm['name'] or '?'}  {swarm['id']}",
        "nodes": _nodes(swarm) if summary["running"] else "not looked at",
        "model": node["model"] or "none",
        "state": running,
        "step": f"{summary['step']}, policy version {summary['policy_version']}",
        "groups used": f"{summary['own_groups_used']} own, {summary['foreign_groups_used']} foreign",
        "published": f"{summary['published_groups']} groups",
        "refused": refused or "none",
        "bytes": f"{summary['bytes_in']:,} in, {summary['bytes_out']:,} out",
    }
    if summary["running"]:
        alone = summary["alone_since"]
        lines["peers"] = f"{summary['peers'] or 0}" + (f", alone since {_clock(alone)}" if alone else "")
        quiet = summary["nothing_accepted_since"]
        lines["accepted"] = f"nothing of others since {_clock(quiet)}" if quiet else "nothing of others yet"
        if summary["restarts"]:
            lines["restarts"] = ", ".join(f"{name} {count}" for name, count in summary["restarts"].items())
    if summary["latest"]:
        lines["last figures"] = f"{summary['age_seconds']:.0f} s ago"
    if metrics.PASS_AT_1 in summary["latest"]:
        lines["pass@1"] = f"{summary['latest'][metrics.PASS_AT_1]:.3f} held out"
    for title, key in (("last event", "last_event"), ("last warning", "last_notable_event")):
        if summary[key] and (key == "last_event" or summary[key] != summary["last_event"]):
            lines[title] = f"{_clock(summary[key]['ts'])}  {summary[key]['text']}"
    shown = [f"{title:<13}{value}" for title, value in lines.items()]
    return "\n".join([*shown, *_ailments(summary)])


def _role(facts: dict[str, Any]) -> str:
    return "node" if facts.get(Fact.MODEL) else "seed"


def _nodes(swarm: dict[str, Any]) -> str:
    """The strip of the page in one line."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(swarm["nodes"].items())) or "none known"
    return f"{states}; {swarm['policy_steps']} policy steps, {swarm['tokens_per_second']:.0f} tokens a second together"


def _ailments(summary: dict[str, Any]) -> list[str]:
    """The gates that do not pass, each with its remedy."""
    lines = []
    for gate in summary["gates"] if summary["running"] else ():
        if gate["verdict"] != health.Verdict.PASS:
            lines += [f"{gate['verdict']:<8} {gate['name']}: {gate['why']}", f"         {gate['fix']}"]
    return ["", *lines] if lines else []


def _shown(event: Event) -> dict[str, Any]:
    return {"ts": event.ts, "level": event.level, "kind": event.kind, "text": event.text}


def _stopped(summary: dict[str, Any]) -> str:
    last = summary["last_state"]
    return "stopped" if last == "stopped" else f"stopped without saying so (last it was: {last})"


def _sum_of(totals: dict[str, float], name: str) -> int:
    return int(sum(value for series, value in totals.items() if series.partition("{")[0] == name))


def _clock(ts: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts))
