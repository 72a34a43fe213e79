"""Who is in the swarm, written down: everybody's newest card, and the sums that follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from ftis_node import metrics
from ftis_node.clock import Clock
from ftis_node.states import NodeState
from ftis_node.store import Store
from ftis_node.store_cards import Heard, cards, note_cards
from ftis_node.swarm.base import PeerCard
from ftis_protocol.limits import CARD_RENEW_SECONDS
from ftis_protocol.presence import NodeCard

#: a card may claim any word; what is none of ours is counted here
OTHER_STATE = "other"


class Census:
    """Keeps cards at every look and a point of the swarm's curves as often as cards are renewed."""

    def __init__(self, store: Store, clock: Clock, own_id: str = "") -> None:
        self._store = store
        self._clock = clock
        self._own_id = own_id
        self._added_up_at = float("-inf")

    def note(self, peers: Sequence[PeerCard], step: int) -> None:
        """Write down who is there; `step` is the place on the x axis (this node's optimiser step)."""
        note_cards(self._store, [Heard(peer.node_id, peer.card, peer.issued_at) for peer in peers], self._own_id)
        now = self._clock.now()
        if now - self._added_up_at >= CARD_RENEW_SECONDS:
            self._added_up_at = now
            self._store.metric(step, swarm_metrics(row.card for row in cards(self._store) if row.present))


def swarm_metrics(present: Iterable[NodeCard]) -> dict[str, float]:
    """The swarm's series from the cards of those who are there; seeds and observers do not count."""
    nodes = [card for card in present if card.role == "node"]
    words = {state.value for state in NodeState}
    states = Counter(card.state if card.state in words else OTHER_STATE for card in nodes)
    scores = [card.pass_at_1 for card in nodes if card.pass_at_1 is not None]
    values = {
        metrics.series(metrics.SWARM_NODES, state): float(states[state]) for state in sorted({*words, OTHER_STATE})
    }
    values |= {
        metrics.SWARM_SPEED: float(sum(card.tokens_per_second for card in nodes)),
        metrics.SWARM_STEPS: float(sum(card.policy_version for card in nodes)),
        metrics.SWARM_PUBLISHED: float(sum(card.groups_published for card in nodes)),
        metrics.SWARM_USED: float(sum(card.groups_used for card in nodes)),
    }
    if scores:
        values[metrics.SWARM_PASS_AT_1] = fmean(scores)
    return values
