"""One p2pd daemon and the hash-table node on it, inside the caller's asyncio loop; every wait has a deadline of ours.

hivemind's own process wrapper is not used: it loses values over a few kilobytes. Closing and `alive` reach into private
parts (`_client`, `_child`, tasks), because hivemind has no public way to see that its daemon died, and hangs when it is
closed after that.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ftis_node.errors import FtisError, UsageError
from ftis_node.swarm.addresses import parse_endpoint, peer_id_of
from ftis_node.swarm.flow import Limits
from ftis_node.swarm.gate import Gate
from ftis_node.swarm.hive import (
    DHTID,
    P2P,
    DHTNode,
    DHTProtocol,
    Multiaddr,
    P2PDaemonError,
    P2PHandlerError,
    PeerID,
    PingRequest,
    connect,
    identify,
    start_daemons_apart,
)
from ftis_node.swarm.settings import DhtOptions
from ftis_node.swarm.storage import MAX_CACHED_BYTES, BoundedStorage, RuleValidator

REPLICAS = 5
# Neighbours from whose distance the size of the network is estimated; a routing table knows the nearest twenty.
NEIGHBOURS = 20
DIAL_SECONDS = 8.0
ALIVE_SECONDS = 3.0
CLOSE_SECONDS = 3.0
RPC_SECONDS = 4.0
START_SECONDS = 30.0
# What a call through a dead or confused daemon may raise.
TRANSPORT_ERRORS = (TimeoutError, OSError, EOFError, P2PDaemonError, P2PHandlerError)


def ensure_key(path: Path) -> str:
    """The peer id of the transport key at `path`, which is made when missing. Written aside first: a crash leaves no
    half of a key."""
    if not path.exists():
        draft = path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        P2P.generate_identity(str(draft))
        os.replace(draft, path)
    try:
        peer_id: str = PeerID.from_identity(path.read_bytes()).to_base58()
    except (OSError, ValueError, TypeError, DecodeError) as error:
        raise UsageError(
            f"the transport key {path} cannot be used: {error}",
            hint="Remove it: a new one is made at the next start, and with it a new address for this node.",
        ) from error
    return peer_id


class Transport:
    """A running daemon with a hash-table node. Made by `open`, ended by `close`."""

    def __init__(self, p2p: P2P, node: DHTNode, options: DhtOptions, *, client: bool) -> None:
        self.node = node
        self.client = client
        self._p2p = p2p
        self._options = options

    @classmethod
    async def open(
        cls,
        options: DhtOptions,
        *,
        port: int | None,
        validator: RuleValidator,
        name: str,
        storage: BoundedStorage | None = None,
        limits: Limits | None = None,
    ) -> Transport:
        """Start a daemon on `port` (None: do not listen, only ask). `name` decides the place in the hash table;
        `storage` carries over what an earlier transport of this process held, `limits` bounds what peers may ask."""
        start_daemons_apart()
        arguments = cls._arguments(options, port)
        try:
            p2p = await _start_daemon(arguments)
        except P2PDaemonError as error:
            raise FtisError(f"the transport did not start: {error}", hint="Check host, port and p2p.key.") from error
        async with AsyncExitStack() as on_failure:
            on_failure.push_async_callback(_stop_daemon, p2p)
            async with asyncio.timeout(START_SECONDS):
                node = await DHTNode.create(
                    p2p=p2p,
                    node_id=DHTID.generate(source=name),
                    num_replicas=REPLICAS,
                    wait_timeout=RPC_SECONDS,
                    # One key per message: several full dictionaries together would exceed what a message may be.
                    chunk_size=1,
                    parallel_rpc=64,
                    cache_locally=False,
                    cache_nearest=0,
                    cache_on_store=False,
                    reuse_get_requests=False,  # it would remember every key ever asked for
                    client_mode=port is None,
                    record_validator=validator,
                )
                if port is not None:
                    await Gate(node.protocol, limits or Limits()).install()
            on_failure.pop_all()
        node.protocol.storage = BoundedStorage() if storage is None else storage
        node.protocol.cache = BoundedStorage(MAX_CACHED_BYTES)
        return cls(p2p, node, options, client=port is None)

    @staticmethod
    def _arguments(options: DhtOptions, port: int | None) -> dict[str, object]:
        wide = not options.loopback
        arguments: dict[str, object] = {
            "nat_port_map": wide and port is not None,
            "auto_nat": wide,
            "use_relay": wide and options.relay,
            "use_auto_relay": wide and options.relay and port is not None,
            "startup_timeout": START_SECONDS,
            "check_if_identity_free": False,  # the probe in `dht` keeps to our deadlines
            "dht_mode": "server" if port is not None else "client",
        }
        if port is None:
            return {**arguments, "host_maddrs": None, "no_listen": True}
        if options.key_path is not None:
            arguments["identity_path"] = str(options.key_path)
        if options.announce:
            arguments["announce_maddrs"] = [address.partition("/p2p/")[0] for address in options.announce]
        return {**arguments, "host_maddrs": [options.listen(port)]}

    @property
    def peer_id(self) -> str:
        return str(self._p2p.peer_id.to_base58())

    @property
    def connections(self) -> int:
        """Nodes in the routing table."""
        return len(self.node.protocol.routing_table.uid_to_peer_id)

    @property
    def network_size(self) -> float:
        """Nodes of the whole hash table, this one included. Where the routing table cannot hold them all it is an
        estimate from how close the nearest ones are, good to about a quarter."""
        table, here = self.node.protocol.routing_table, self.node.node_id
        near = table.get_nearest_neighbors(here, NEIGHBOURS)
        if len(near) < NEIGHBOURS:
            return len(near) + 1.0
        farthest = float(here.xor_distance(near[-1][0]))
        return max(len(near) + 1.0, (NEIGHBOURS - 1) * float(DHTID.MAX) / farthest)

    async def visible_addresses(self) -> tuple[str, ...]:
        """Multiaddrs with peer id that the daemon believes to be reachable at."""
        with suppress(ValueError, *TRANSPORT_ERRORS):
            async with asyncio.timeout(ALIVE_SECONDS):
                return tuple(str(address) for address in await self._p2p.get_visible_maddrs(latest=True))
        return ()

    async def alive(self) -> bool:
        """Whether the daemon answers a trivial question within seconds."""
        if self._p2p._child.returncode is not None:
            return False
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                await identify(self._p2p)
        except TRANSPORT_ERRORS:
            return False
        return True

    async def dial(self, address: str, *, deadline: float = DIAL_SECONDS) -> str | None:
        """Connect to a node and get to know it. None on success, else the transport's error text (empty: time-out)."""
        peer, endpoint = peer_id_of(address), parse_endpoint(address)
        if peer is None:
            return "malformed"
        where = [Multiaddr(endpoint.transport if endpoint else address.rpartition("/p2p/")[0])]
        try:
            async with asyncio.timeout(deadline):
                peer_id = PeerID.from_base58(peer)
                await connect(self._p2p, peer_id, where)
                answered = await self.node.protocol.call_ping(peer_id)
        except TimeoutError:
            return ""
        except (ValueError, *TRANSPORT_ERRORS) as error:
            return str(error) or type(error).__name__
        return None if answered is not None else "connected, but it does not answer as a node of a swarm"

    async def clock_offset(self, peer: str) -> float | None:
        """This machine's clock minus the peer's, seconds; None when it does not say. Half of the round trip is taken
        off."""
        asked = time.time()
        try:
            async with asyncio.timeout(RPC_SECONDS):
                stub = DHTProtocol.get_stub(self.node.protocol, PeerID.from_base58(peer))
                answer = await stub.rpc_ping(PingRequest(validate=False), timeout=RPC_SECONDS)
        except TRANSPORT_ERRORS:
            return None
        theirs = float(answer.dht_time)
        return (asked + time.time()) / 2 - theirs if theirs > 0 else None

    async def finds(self, peer: str) -> bool:
        """Whether a node with that peer id is up somewhere, as far as the nodes dialled so far can tell."""
        try:
            async with asyncio.timeout(RPC_SECONDS):
                await connect(self._p2p, PeerID.from_base58(peer), [])
        except TRANSPORT_ERRORS:
            return False
        return True

    async def settle(self) -> None:
        """Meet the neighbours: fill the routing table around this node's own place."""
        with suppress(*TRANSPORT_ERRORS):
            async with asyncio.timeout(RPC_SECONDS):
                await self.node.find_nearest_nodes([self.node.node_id])

    async def close(self) -> None:
        """Stop node and daemon; works on a dead daemon too."""
        self.node.is_alive = False
        if await self.alive():
            with suppress(*TRANSPORT_ERRORS):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.node.protocol.shutdown()
        await _stop_daemon(self._p2p)


async def _start_daemon(arguments: dict[str, object]) -> P2P:
    """A daemon whose start were interrupted half-way would outlive us: let it come up, then stop it."""
    starting = asyncio.ensure_future(P2P.create(**arguments))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(P2PDaemonError):
            await _stop_daemon(await starting)
        raise


async def _stop_daemon(p2p: P2P) -> None:
    child, client = p2p._child, p2p._client
    control = client.control if client is not None else None
    tasks = [p2p._listen_task, *((control._read_task, control._write_task) if control is not None else ())]
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await p2p.shutdown()
    except TimeoutError:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    # Their failures are part of a daemon's death; unread, they would be reported at exit.
    reader = p2p._reader_task
    await asyncio.gather(*(task for task in (*tasks, reader) if task is not None), return_exceptions=True)
