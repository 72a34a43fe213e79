"""What a run leaves behind, without the times at which it happened: two equal runs leave equal snapshots."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.states import NodeState

TIMED = {
    metrics.STEP_SECONDS,
    metrics.GENERATE_SECONDS,
    metrics.WAIT_GROUPS_SECONDS,
    metrics.LOAD_WEIGHTS_SECONDS,
    metrics.TOKENS_PER_SECOND,
    *(metrics.series(metrics.NODE_STATE, state.value) for state in NodeState),  # every start begins with "starting"
    # a card tells the speed
    metrics.series(metrics.BYTES_IN, "card"),
    metrics.series(metrics.BYTES_OUT, "card"),
}
#: facts about this very start, or about when this process looked
OF_THIS_START = {"alone_since", "state_since", "saved_step", "met_at"}
#: what the cards of the others add up to depends on when somebody looked
SWARM = "ftis_swarm_"


def weights(node: Node) -> dict[str, torch.Tensor]:
    """A copy of every trained weight."""
    return {name: p.detach().clone() for name, p in node.rooms.policy.trainable_parameters.items()}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """To the last bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def records(node: Node, *without: str) -> dict[str, Any]:
    """The node's store: every series and total but those in `without`, all verdicts, tallies and
    facts, and what is known of its own text."""
    store, left_out = node.rooms.store, TIMED.union(without)
    return {
        "series": {
            name: [(p.step, p.value) for p in store.points(name)]
            for name in store.latest()
            if name not in left_out and not name.startswith(SWARM)
        },
        "totals": {name: value for name, value in store.totals().items() if name not in left_out},
        "counts": store.counts(),
        "own text": asdict(node.rooms.judge.record),
        "verdicts": [(v.digest, v.author, v.verdict, v.reason, v.used_step) for v in store.verdicts(10_000)],
        "peers": sorted((p.node_id, p.accepted, p.refused, p.used) for p in store.peers()),
        "facts": {key: value for key, value in store.facts().items() if key not in OF_THIS_START},
    }
