"""From the line a person pasted to the rules of a swarm."""

from __future__ import annotations

from ftis_node.clock import WallClock
from ftis_node.swarm.dht_board import DhtBoard
from ftis_node.swarm.discovery import find_manifest
from ftis_node.swarm.failures import JoinFailed
from ftis_node.swarm.joining import check_clock, reach
from ftis_node.swarm.rules import RecordRules
from ftis_node.swarm.settings import DhtOptions
from ftis_node.swarm.storage import RuleValidator, hash_key
from ftis_node.swarm.transport import Transport
from ftis_protocol.identity import Identity
from ftis_protocol.invite import Invite
from ftis_protocol.manifest import SwarmManifest


async def resolve(invite: Invite, options: DhtOptions) -> SwarmManifest:
    """Ask the nodes at the invite's addresses for the swarm's manifest, as a guest that leaves no trace.

    Raises `SwarmUnreachable` (`JoinFailed` with a reason per address when none answers), `ClockWrong`, `UsageError`
    when a bare address leads to several swarms, and `ProtocolError` (MANIFEST) for rules that are not the swarm's.
    """
    rules = RecordRules(hash_key, None, WallClock())
    guest = Identity.create().node_id
    transport = await Transport.open(options, port=None, validator=RuleValidator(rules), name=guest)
    board = DhtBoard(options.call_seconds)
    board.transport = transport
    try:
        reached = await reach(transport, invite.addresses, deadline=options.connect_seconds)
        if not reached.addresses:
            raise JoinFailed(reached.attempts)
        await check_clock(transport, reached.addresses)
        return await find_manifest(board, invite.swarm_id)
    finally:
        await board.close()
