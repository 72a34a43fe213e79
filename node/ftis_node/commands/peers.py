"""`ftis-node peers` and `ftis-node invite`: whom this node knows, and how others come to it."""

from __future__ import annotations

import time
from dataclasses import asdict

from ftis_node.commands.options import ReadOptions
from ftis_node.console import Console, table
from ftis_node.errors import UsageError
from ftis_node.state import StateDir
from ftis_node.store import Store
from ftis_protocol.limits import CARD_LIFETIME_SECONDS


def run(options: ReadOptions, console: Console) -> None:
    """Print every peer this node has met, the most recently seen first."""
    store = _store(options)
    try:
        peers, opinions = store.peers(), store.fact("opinions") or {}
    finally:
        store.close()
    now = time.time()
    if options.json:
        console.document(
            [
                {
                    **asdict(peer),
                    "living": now - peer.last_seen <= CARD_LIFETIME_SECONDS,
                    "opinion": opinions.get(peer.node_id, ""),
                }
                for peer in peers
            ]
        )
        return
    rows = [
        (
            peer.name or "?",
            peer.node_id[:12],
            peer.model or "none",
            f"{peer.accepted}",
            f"{peer.refused}",
            f"{peer.used}",
            f"{max(0.0, now - peer.last_seen):.0f} s ago",
        )
        for peer in peers
    ]
    headers = ("name", "id", "model", "accepted", "refused", "used", "last seen")
    console.document(table(headers, rows) if rows else "this node has not met another one yet")


def invite(options: ReadOptions, console: Console) -> None:
    """Print the invite that the node wrote down at its last start."""
    store = _store(options)
    try:
        line, name = store.fact("invite"), store.fact("swarm_name")
    finally:
        store.close()
    if not line or "@" not in line:
        raise UsageError("this node knows no address under which others reach it", hint="Start it; then ask again.")
    console.document(
        {"invite": line, "swarm": name} if options.json else f"ftis-node join --swarm {line} --model MODEL"
    )


def _store(options: ReadOptions) -> Store:
    state = StateDir.existing(options.state_path())
    found = state.current_swarm()
    if found is None:
        raise UsageError(f"the node in {state.root} never joined a swarm", hint="Join one: ftis-node join --swarm ...")
    return Store.view(found[1].database)
