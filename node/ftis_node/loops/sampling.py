"""What a node takes of what it is offered: how much, and in which order. Pure decisions, shared with the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from ftis_node.swarm.base import PeerOffer

#: foreign groups kept ready, in steps' worth: one to be drawn, one to choose from
STEPS_IN_HAND = 2


def appetite(groups_per_step: int) -> int:
    """Foreign groups a node wants to have waiting."""
    return STEPS_IN_HAND * groups_per_step


def fair_order(offers: Iterable[PeerOffer], wanted: Callable[[PeerOffer], bool], rng: Random) -> list[PeerOffer]:
    """The wanted offers, round robin over their authors and the freshest frame of each first. Which author comes first
    is drawn from `rng`, whatever order the board gave. A frame that is offered twice comes once."""
    by_peer: dict[str, list[PeerOffer]] = {}
    digests: set[bytes] = set()
    for offer in sorted(offers, key=lambda o: (o.node_id, o.slot, o.frame.policy_version, o.frame.digest)):
        if offer.frame.digest not in digests and wanted(offer):
            digests.add(offer.frame.digest)
            by_peer.setdefault(offer.node_id, []).append(offer)
    peers = list(by_peer)
    rng.shuffle(peers)
    chosen = []
    while any(by_peer.values()):
        chosen += [by_peer[peer].pop() for peer in peers if by_peer[peer]]
    return chosen
