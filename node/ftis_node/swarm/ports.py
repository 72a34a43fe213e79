"""Choosing the port to listen on. The transport would share a taken port with its owner and steal half the calls."""

from __future__ import annotations

import asyncio
import logging
import socket

from ftis_node.swarm.failures import PortTaken
from ftis_node.swarm.settings import DhtOptions

# The transport of a killed process lives on for about a second.
_PATIENCE_SECONDS = 3.0
_STEP_SECONDS = 0.1

log = logging.getLogger(__name__)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def port_free(host: str, port: int) -> bool:
    """True when a listener on `host`:`port` would be alone."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def free_port(host: str) -> int:
    """A port nobody listens on at this moment. OSError when `host` is not an address of this machine."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


async def _becomes_free(host: str, port: int) -> bool:
    for _ in range(int(_PATIENCE_SECONDS / _STEP_SECONDS)):
        if port_free(host, port):
            return True
        await asyncio.sleep(_STEP_SECONDS)
    return False


async def choose_port(options: DhtOptions) -> int:
    """The port asked for, or the one of the last run, or a free one. `PortTaken` when the one asked for is taken; a
    remembered one that is taken is replaced, and the change is logged, because the node's address changes with it."""
    if options.port:
        if not await _becomes_free(options.host, options.port):
            raise PortTaken(options.host, options.port)
        return options.port
    remembered = options.remembered_port()
    if remembered is not None:
        if await _becomes_free(options.host, remembered):
            return remembered
        log.warning("port %d of the last run is taken now; this node's address changes", remembered)
    return free_port(options.host)
