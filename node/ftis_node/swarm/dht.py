"""The swarm over a distributed hash table: joining, guarding the transport, coming back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random

from ftis_node.errors import FtisError
from ftis_node.swarm.addresses import AddressBook, announceable, out_of_reach, parse_endpoint, peer_id_of
from ftis_node.swarm.base import PeerCard, Reach
from ftis_node.swarm.dht_board import DhtBoard
from ftis_node.swarm.failures import Attempt, IdentityInUse, JoinFailed, probe_tcp
from ftis_node.swarm.flow import MEBIBYTE, Limits
from ftis_node.swarm.joining import Reached, check_clock, reach
from ftis_node.swarm.member import BoardSwarm
from ftis_node.swarm.ports import choose_port
from ftis_node.swarm.rules import RecordRules
from ftis_node.swarm.settings import DhtOptions
from ftis_node.swarm.storage import BoundedStorage, RuleValidator, hash_key
from ftis_node.swarm.transport import DIAL_SECONDS, Transport, ensure_key
from ftis_protocol.identity import Identity
from ftis_protocol.manifest import SwarmManifest

WATCH_SECONDS = 2.0
_FIRST_RETRY_SECONDS = 2.0
_JITTER = 0.3
# How often a connected node dials entrances again: after a split each part is well connected, but only with itself.
REUNITE_SECONDS = 60.0
_REUNITE_DIALS = 4
# The daemon of a holder that was just killed answers for about a second more.
_HOLDER_PATIENCE = (0.0, 1.5, 1.5)

log = logging.getLogger(__name__)


class DhtSwarm(BoardSwarm):
    """`addresses` are those of the invite; addresses of earlier runs are tried as well. Runs in real time only."""

    def __init__(
        self,
        identity: Identity,
        manifest: SwarmManifest,
        options: DhtOptions,
        addresses: Sequence[str] = (),
        *,
        rng: Random | None = None,
    ) -> None:
        limits = Limits(options.upload_kibibytes_per_second)
        self._dht = DhtBoard(options.call_seconds, limits)
        super().__init__(self._dht, identity, manifest, rng=rng)
        self._limits, limits.limited = limits, self.limited
        # What arrives over the network meets the rules first, so they are where most refusals happen.
        self._rules = RecordRules(hash_key, manifest, self._clock, self.refused)
        self._options = options
        self._invited = tuple(addresses)
        self._book = AddressBook(options.peers_path)
        self._storage = BoundedStorage(options.storage_mebibytes * MEBIBYTE, self.limited)
        self._rebuilds = 0
        #: addresses of the invite that did not answer, when only remembered ones led into the swarm
        self.unanswered: tuple[Attempt, ...] = ()
        self._changing = asyncio.Lock()
        self._closed = False

    @property
    def _restarts(self) -> int:
        return self._rebuilds

    @property
    def _reach(self) -> Reach:
        if self._options.client:
            return Reach.CLIENT
        hidden = not self._options.loopback and out_of_reach(self.addresses, self._book)
        return Reach.PRIVATE if hidden else Reach.LISTENING

    async def start(self) -> None:
        async with self._changing, AsyncExitStack() as on_failure:
            on_failure.push_async_callback(self._dht.close)
            await self._join()
            on_failure.pop_all()
        await super().start()

    async def _join(self) -> None:
        had_key = self._options.key_path is not None and self._options.key_path.exists()
        known = self._known_addresses()
        if self._options.key_path is not None and not self._options.client:
            peer_id = await asyncio.to_thread(ensure_key, self._options.key_path)
            if had_key and known:
                await self._refuse_second_holder(peer_id, known)
        transport, reached = await self._open(known)
        if reached.addresses and not set(reached.addresses) & set(self._invited):
            self.unanswered = tuple(a for a in reached.attempts if a.address in self._invited)
        if reached.addresses:
            await check_clock(transport, reached.addresses)
            await self._refuse_second_node(transport)
        elif not self._options.may_start_alone:
            attempts = [attempt for attempt in reached.attempts if attempt.address in self._invited]
            if attempts:
                raise JoinFailed(attempts)

    async def _refuse_second_holder(self, peer_id: str, known: Sequence[str]) -> None:
        """Two daemons with one key confuse every node they talk to. A throw-away daemon without a key looks first."""
        for patience in _HOLDER_PATIENCE:
            await asyncio.sleep(patience)
            probe = await self._transport(None, f"{self.node_id}/probe")
            try:
                others = [address for address in known if peer_id_of(address) != peer_id]
                await reach(probe, others, deadline=min(DIAL_SECONDS, self._options.connect_seconds))
                if not await probe.finds(peer_id):
                    return
            finally:
                await probe.close()
        raise IdentityInUse(f"a running node has the peer id {peer_id}")

    async def _refuse_second_node(self, transport: Transport) -> None:
        """The same node key behind another peer id: a copy of the identity file on a second host."""
        await self.peers()
        here = {endpoint.transport for endpoint in map(parse_endpoint, self.addresses) if endpoint is not None}
        mine = [card for card in self._roster.living(self._clock.now()) if card.node_id == self.node_id]
        for address in mine[0].card.addresses if mine else ():
            endpoint = parse_endpoint(address)
            if endpoint is None or endpoint.peer_id == transport.peer_id or endpoint.transport in here:
                continue
            if await probe_tcp(endpoint.host, endpoint.port) is None:
                raise IdentityInUse(f"a node with the id {self.node_id} runs at {address}")

    def _known_addresses(self) -> list[str]:
        return list(dict.fromkeys((*self._invited, *self._book)))

    async def _transport(self, port: int | None, name: str) -> Transport:
        return await Transport.open(
            self._options,
            port=port,
            validator=RuleValidator(self._rules),
            name=name,
            storage=self._storage if port is not None else None,
            limits=self._limits,
        )

    async def _open(self, known: Sequence[str]) -> tuple[Transport, Reached]:
        """Start a transport and dial `known`."""
        port = None if self._options.client else await choose_port(self._options)
        transport = await self._transport(port, self.node_id)
        self._dht.transport = transport
        if port is not None:
            self._options.remember_port(port)
            visible = self._options.announced(transport.peer_id) or await transport.visible_addresses()
            self._dht.announced = announceable(visible, loopback=self._options.loopback)
        reached = await reach(transport, known, deadline=self._options.connect_seconds)
        self._book.add(reached.addresses)
        self._book.save()
        return transport, reached

    async def peers(self) -> tuple[PeerCard, ...]:
        living = await super().peers()
        self._book.add(address for peer in living for address in peer.card.addresses)
        return living

    async def restart(self) -> None:
        """Rebuild the transport with every address ever seen; what this node stores for others is kept."""
        async with self._changing:
            if self._closed:
                return
            self._rebuilds += 1
            log.warning("the transport died; restarting it (restart %d)", self._rebuilds)
            await self._dht.close()
            await self._open(self._known_addresses())

    async def watch(self) -> None:
        patience = waited = 0.0
        while not self._closed:
            await asyncio.sleep(WATCH_SECONDS)
            waited += WATCH_SECONDS
            transport = self._dht.transport
            healthy = transport is not None and await transport.alive()
            if transport is not None and healthy and self._dht.connections:
                patience = 0.0
                self._book.save()
                if waited >= REUNITE_SECONDS:
                    waited = 0.0
                    await self._reunite(transport)
            elif waited >= patience:
                # Jitter: nodes that lost the same entrance at the same moment do not all come back at one.
                patience = min(max(2 * patience, _FIRST_RETRY_SECONDS), self._options.retry_seconds)
                patience *= self._rng.uniform(1 - _JITTER, 1)
                waited = 0.0
                await self._recover(transport if healthy else None)

    async def _recover(self, transport: Transport | None) -> None:
        """Dial again through a working transport, or build a new one. Failure is logged; the next turn tries again."""
        if transport is None:
            try:
                await self.restart()
            except FtisError as error:
                log.warning("the transport could not be restarted: %s", error)
            return
        async with self._changing:
            reached = await reach(transport, self._known_addresses(), deadline=self._options.connect_seconds)
            if reached.addresses:
                log.info("reached the swarm again through %s", reached.addresses[0])

    async def _reunite(self, transport: Transport) -> None:
        """Dial the way in and a few others, most of which are connected already: a node that came back with an empty
        address book waits to be found."""
        known = self._known_addresses()
        some = self._rng.sample(known, min(len(known), _REUNITE_DIALS))
        async with self._changing:
            reached = await reach(transport, (*self._invited[:_REUNITE_DIALS], *some), deadline=DIAL_SECONDS)
        self._book.add(reached.addresses)

    async def close(self) -> None:
        self._closed = True
        async with self._changing:
            self._book.save()
            await super().close()
