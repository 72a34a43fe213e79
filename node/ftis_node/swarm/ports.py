"""Choosing the port to listen on. The transport would share a taken port with its owner and steal half the calls."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from ftis_node.errors import UsageError
from ftis_node.swarm.failures import PortTaken
from ftis_node.swarm.settings import DhtOptions

# The transport of a killed process lives on for about a second.
_PATIENCE_SECONDS = 3.0
_STEP_SECONDS = 0.1

log = logging.getLogger(__name__)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def port_free(host: str, port: int) -> bool:
    """True when a listener on `host`:`port` would be alone. `UsageError` when nobody may listen there."""
    return _listened(host, port) is not None


def free_port(host: str) -> int:
    """A port nobody listens on at this moment. `UsageError` when `host` is not an address of this machine."""
    port = _listened(host, 0)
    assert port is not None, "the system hands out free ports only"
    return port


def _listened(host: str, port: int) -> int | None:
    """Listen for an instant; the port, or None when it is taken."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            raise UsageError(
                f"this machine cannot listen on {host} port {port}: {error.strerror}",
                hint="Listen on 0.0.0.0 or an address of this machine, and on a port above 1023.",
            ) from error
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
