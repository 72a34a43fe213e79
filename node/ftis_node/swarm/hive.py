"""The one place that imports hivemind, and what has to be put right about that.

Importing it brings torch along, renames the log level WARNING, prints by itself, and makes torch share tensors through
files in this process. From here on it speaks through the node's log, about errors only.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Sequence
from contextlib import closing
from functools import partial

with warnings.catch_warnings():
    # hivemind scripts an activation function of its mixture-of-experts part at import; nothing here uses it.
    warnings.filterwarnings("ignore", message="`torch.jit.script`", category=DeprecationWarning)
    from hivemind.dht.node import DHTNode
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
    from hivemind.dht.validation import DHTRecord, RecordValidatorBase
    from hivemind.p2p import P2P, P2PContext, P2PDaemonError, P2PHandlerError, PeerID
    from hivemind.p2p.p2p_daemon_bindings.control import raise_if_failed, read_pbmsg_safe, write_pbmsg
    from hivemind.proto.dht_pb2 import (
        NOT_FOUND,
        FindRequest,
        FindResponse,
        PingRequest,
        PingResponse,
        StoreRequest,
        StoreResponse,
    )
    from hivemind.proto.p2pd_pb2 import ConnectRequest, Request, Response
    from hivemind.utils.logging import use_hivemind_log_handler
    from hivemind.utils.multiaddr import Multiaddr
    from hivemind.utils.timed_storage import TimedStorage

use_hivemind_log_handler("nowhere")
logging.addLevelName(logging.WARNING, "WARNING")
logging.getLogger("hivemind").setLevel(logging.ERROR)

__all__ = [
    "DHTID",
    "NOT_FOUND",
    "P2P",
    "DHTLocalStorage",
    "DHTNode",
    "DHTProtocol",
    "DHTRecord",
    "DictionaryDHTValue",
    "FindRequest",
    "FindResponse",
    "Multiaddr",
    "P2PContext",
    "P2PDaemonError",
    "P2PHandlerError",
    "PeerID",
    "PingRequest",
    "PingResponse",
    "RecordValidatorBase",
    "StoreRequest",
    "StoreResponse",
    "TimedStorage",
    "connect",
    "identify",
    "start_daemons_apart",
]


def start_daemons_apart() -> None:
    """Give every process that the running loop starts a process group of its own. Ctrl-C on a terminal goes to a whole
    group, and without its daemon a node could not say good-bye; hivemind has no setting for it."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop.subprocess_exec, partial):
        loop.subprocess_exec = partial(loop.subprocess_exec, process_group=0)  # type: ignore[method-assign]


async def _ask(p2p: P2P, request: Request) -> None:
    """One question to the daemon on a connection of its own, which is closed however this ends. hivemind's version
    leaves it open when the caller's patience is over."""
    reader, writer = await p2p._client.control.daemon_connector.open_connection()
    with closing(writer):
        await write_pbmsg(writer, request)
        response = Response()
        await read_pbmsg_safe(reader, response)
    raise_if_failed(response)


async def connect(p2p: P2P, peer_id: PeerID, addresses: Sequence[Multiaddr]) -> None:
    """Make the daemon dial a peer, at `addresses` or wherever it can be found. P2PDaemonError says why it could not."""
    where = [address.to_bytes() for address in addresses]
    await _ask(p2p, Request(type=Request.CONNECT, connect=ConnectRequest(peer=peer_id.to_bytes(), addrs=where)))


async def identify(p2p: P2P) -> None:
    """Return if the daemon answers at all."""
    await _ask(p2p, Request(type=Request.IDENTIFY))
