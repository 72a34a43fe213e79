"""Loop two: tell the swarm that we live, read a bounded random sample of offers, fetch frames, admit their groups.

What one round costs depends on this node's own appetite, not on the size of the swarm. Whatever a peer does ends as a
counted verdict; a swarm that does not answer is an event, and training goes on alone.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Sequence

from ftis_node import __version__, metrics
from ftis_node.admission.admit import Admitted
from ftis_node.loops.census import Census
from ftis_node.loops.ledger import SwarmLedger
from ftis_node.loops.retries import Retries
from ftis_node.loops.rooms import Rooms
from ftis_node.loops.sampling import appetite, fair_order
from ftis_node.states import NodeState
from ftis_node.store_cards import note_own_card
from ftis_node.store_records import Fact
from ftis_node.swarm.base import PeerCard, PeerOffer
from ftis_protocol import limits
from ftis_protocol.errors import ProtocolError
from ftis_protocol.presence import NodeCard, PeerTally

log = logging.getLogger(__name__)

#: how often a node that has company looks who is there; cards are renewed every 20 s
PRESENCE_SECONDS = 5.0
#: peers whose tally a card carries
TALLIES_SHOWN = 32


class ExchangeLoop:
    """Foreign side of the walk. `once` is one round; the app decides how often."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._announced_at = float("-inf")
        self._met_at = float("-inf")
        self._census = Census(rooms.store, rooms.clock, rooms.swarm.node_id)
        self._alone_since: float | None = rooms.clock.now()
        self._retries = Retries()
        self._ledger = SwarmLedger(rooms.store)
        rooms.states.changed.append(self._card_is_old)

    async def once(self) -> None:
        """One round; never raises for what peers or the network do."""
        with self._rooms.parts.doing("dht", "meeting the swarm", self._heard):
            await self._announce_when_due()
            await self._meet()
            if not self._rooms.states.paused:
                await self._gather()
            if renewed := await self._rooms.swarm.renew():
                self._rooms.store.count(metrics.RENEWED, renewed)
            self._ledger.book(self._rooms.swarm)

    async def announce(self) -> None:
        """Publish the card at once."""
        self._announced_at = float("-inf")
        await self._announce_when_due()

    def _heard(self) -> bool:
        """Whether the swarm answered anything lately; a round in silence is of no use."""
        age = self._rooms.swarm.health.last_success_age
        return age is not None and age <= limits.CARD_RENEW_SECONDS

    def _card_is_old(self, _state: NodeState) -> None:
        """The next round publishes a card with the new state."""
        self._announced_at = float("-inf")

    async def _announce_when_due(self) -> None:
        now = self._rooms.clock.now()
        if now - self._announced_at >= limits.CARD_RENEW_SECONDS:
            self._announced_at = now
            try:
                card = self._card()
                stored = await self._rooms.swarm.announce(card)
                note_own_card(self._rooms.store, self._rooms.swarm.node_id, card)
            except ProtocolError as failure:
                self._rooms.store.event("announce-failed", str(failure), level="warning")
                return
            if not stored:
                self._rooms.store.event("announce-failed", "no node of the swarm stored the card", level="warning")

    def _card(self) -> NodeCard:
        rooms = self._rooms
        totals, latest = rooms.store.totals(), rooms.store.latest()
        speed, score = latest.get(metrics.TOKENS_PER_SECOND), latest.get(metrics.PASS_AT_1)
        tallies = {
            peer.node_id: PeerTally(accepted=peer.accepted, refused=peer.refused)
            for peer in rooms.store.peers(TALLIES_SHOWN)
        }
        return NodeCard(
            name=rooms.config.node.name,
            role="node",
            state=rooms.states.state,
            model=rooms.policy.name,
            parameters=rooms.policy.parameter_count,
            tokenizer=rooms.policy.codec.fingerprint,
            trainable=rooms.policy.trainable,
            policy_version=rooms.policy.version,
            tokens_per_second=speed.value if speed else 0.0,
            groups_published=int(totals.get(metrics.PUBLISHED_GROUPS, 0)),
            groups_used=int(totals.get(metrics.FOREIGN_GROUPS_USED, 0)),
            pass_at_1=score.value if score else None,
            peers=tallies,
            addresses=rooms.swarm.addresses,
            software=f"ftis-node {__version__}",
        )

    async def _meet(self) -> None:
        now = self._rooms.clock.now()
        if self._alone_since is None and now - self._met_at < PRESENCE_SECONDS:
            return
        self._met_at = now
        peers = await self._rooms.swarm.peers()
        for peer in peers:
            self._rooms.store.peer_seen(
                peer.node_id, name=peer.card.name, model=peer.card.model, addresses=peer.card.addresses
            )
        self._census.note(peers, int(self._rooms.store.fact(Fact.STEP, 0)))
        self._note_peers(peers)

    def _note_peers(self, peers: Sequence[PeerCard]) -> None:
        """Keep "alone since" true: alone means that no other node with a model shows a valid card."""
        learners = [p for p in peers if p.card.role == "node"]
        if learners:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = self._rooms.clock.now()
        self._rooms.store.set_facts(peers=len(peers), alone_since=self._alone_since)
        self._rooms.states.learners = len(learners)

    async def _gather(self) -> None:
        """Fetch and admit frames until the foreign side holds what the next steps can use."""
        rooms = self._rooms
        enough = appetite(rooms.config.receive.groups_per_step)
        if not rooms.config.receive.exchange or self._in_hand >= enough:
            return
        for offer in self._choose(await rooms.swarm.offers()):
            if self._in_hand >= enough:
                break
            sealed = await rooms.swarm.fetch(offer.frame.digest)
            if sealed is None:
                self._missed(offer.frame.digest)
                continue
            rooms.store.remember(offer.frame.digest)  # fetched once, also over a restart
            self._retries.found(offer.frame.digest)
            rooms.store.count(metrics.FETCHED_FRAMES)
            rooms.store.count(metrics.series(metrics.BYTES_IN, "frame"), len(sealed))
            self._keep(await rooms.admission.admit(sealed, offer.node_id), offer.node_id)

    def _missed(self, digest: bytes) -> None:
        """Nobody had the frame: it is asked for again later, a few times."""
        store = self._rooms.store
        store.count(metrics.MISSING_FRAMES)
        if self._retries.missed(digest, self._rooms.clock.now()):
            store.remember(digest)
            store.count(metrics.LOST_FRAMES)

    @property
    def _in_hand(self) -> int:
        """Waiting groups that could train as things stand; those for a rescue that nobody needs do not count."""
        useful = self._rooms.judge.useful
        return sum(
            useful(g.prompt.ref.task, g.prompt.ref.version, g.right, len(g.completions))
            for g in self._rooms.foreign.waiting
        )

    def _choose(self, offers: Sequence[PeerOffer]) -> list[PeerOffer]:
        """Offers worth fetching, in a fair order that follows from the seed and the time alone."""
        now = self._rooms.clock.now()
        rng = random.Random(f"{self._rooms.config.train.seed}/exchange/{now}")
        return fair_order(offers, lambda offer: self._wanted(offer, now), rng)

    def _wanted(self, offer: PeerOffer, now: float) -> bool:
        rooms, digest = self._rooms, offer.frame.digest
        return (
            offer.node_id not in (rooms.swarm.node_id, *rooms.admission.blocked)
            and any(rooms.judge.useful(g.task, g.version, g.right, g.size) for g in offer.frame.groups)
            and self._retries.due(digest, now)
            and not rooms.store.seen(digest)
        )

    def _keep(self, admitted: Admitted, author: str) -> None:
        store = self._rooms.store
        for group in admitted.groups:
            self._rooms.foreign.add(group)
            store.verdict(group.digest, author, group.task, "rescue_only" if group.all_right else "admitted")
        store.count(metrics.FOREIGN_ADMITTED, len(admitted.groups))
        if admitted.groups:
            store.set_facts(**{Fact.ACCEPTED_AT: self._rooms.clock.now()})
        store.count(metrics.FOREIGN_TOKENS, sum(group.token_count for group in admitted.groups))
        reasons: Counter[str] = Counter()
        for verdict in admitted.refused:
            reasons[verdict.reason.value] += 1
            charge = verdict.broken_promise
            store.verdict(verdict.digest, author, verdict.task, "refused", verdict.reason.value, charge=charge)
            log.info("refused a group of %s: %s (%s)", author, verdict.reason.value, verdict.detail)
        for reason, count in reasons.items():
            store.count(metrics.series(metrics.FOREIGN_REFUSED, reason), count)
