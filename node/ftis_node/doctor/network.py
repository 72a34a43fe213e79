"""Gates about the way to others: the port, each address of the swarm with the reason why it fails, and the clock."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from ftis_node.clock import WallClock
from ftis_node.config import NodeConfig
from ftis_node.errors import FtisError
from ftis_node.health import Gate, failed, passed, unknown, warned
from ftis_node.swarm.failures import HINTS, ClockWrong
from ftis_node.swarm.joining import check_clock, reach
from ftis_node.swarm.ports import port_free
from ftis_node.swarm.rules import RecordRules
from ftis_node.swarm.settings import DhtOptions
from ftis_node.swarm.storage import RuleValidator, hash_key
from ftis_node.swarm.transport import Transport
from ftis_protocol.identity import Identity


async def network_gates(config: NodeConfig, options: DhtOptions, addresses: Sequence[str]) -> tuple[Gate, ...]:
    """Port and NAT, then one gate for every address, then the clock as the reached nodes see it. Leaves no trace."""
    port = port_gate(config, options)
    if not addresses:
        fix = "Give the invite: ftis-node doctor --swarm ftis:..."
        return (port, unknown("swarm", "no address was given", fix), unknown("clock", "nobody to compare with", fix))
    try:
        rules = RuleValidator(RecordRules(hash_key, None, WallClock()))
        transport = await Transport.open(options, port=None, validator=rules, name=Identity.create().node_id)
    except FtisError as error:
        return (port, failed("swarm", str(error), error.hint), unknown("clock", "nobody was reached", error.hint))
    try:
        found = await reach(transport, addresses, deadline=options.connect_seconds)
        gates = [passed(f"address {address}", "a node answers") for address in found.addresses]
        gates += [
            failed(f"address {attempt.address}", str(attempt.failure), HINTS[attempt.failure])
            for attempt in found.attempts
        ]
        return (port, *gates, await _clock_gate(transport, found.addresses))
    finally:
        await transport.close()


def port_gate(config: NodeConfig, options: DhtOptions) -> Gate:
    """Whether others can be let in: the port is free, and the address is one that they can dial."""
    swarm = config.swarm
    port = swarm.port or options.remembered_port() or 0
    try:
        free = port_free(swarm.host, port)
    except FtisError as error:
        return failed("port", str(error), error.hint)
    if not free:
        return warned("port", f"port {port} is taken now (by a running node?)", "Choose another with --port.")
    text = f"{swarm.host} port {port or 'chosen at the first start'}"
    if ipaddress.ip_address(swarm.host).is_loopback:
        return passed("port", f"{text}: only this machine reaches the node, as configured")
    if not swarm.announce:
        why = f"{text}; whether strangers reach it from outside shows only when the node runs"
        return unknown("port", why, "Open the TCP port in firewall and router, and name it with swarm.announce.")
    return passed("port", f"{text}, announced as {', '.join(swarm.announce)}")


async def _clock_gate(transport: Transport, reached: Sequence[str]) -> Gate:
    if not reached:
        return unknown("clock", "nobody was reached to compare with", "See the addresses above.")
    try:
        await check_clock(transport, reached)
    except ClockWrong as error:
        return failed("clock", str(error), error.hint)
    return passed("clock", f"agrees with {len(reached)} node{'s' if len(reached) > 1 else ''} of the swarm")
