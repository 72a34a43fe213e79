"""`ftis-node seed`: a meeting point of an existing swarm, without a model."""

from __future__ import annotations

import asyncio

from ftis_node.commands.join import find
from ftis_node.commands.options import SeedOptions
from ftis_node.commands.running import Desk, enter, opened, serve_seed
from ftis_node.console import Console
from ftis_node.errors import UsageError
from ftis_protocol.invite import Invite


def run(options: SeedOptions, console: Console) -> None:
    """Join the swarm and serve it until stopped."""
    config = options.layered().config
    if not config.swarm.invite:
        raise UsageError("no swarm given", hint="Paste an invite, or found a swarm: ftis-node create --no-model ...")
    invite = Invite.parse(config.swarm.invite)
    with opened(config, "seed", console) as desk:
        asyncio.run(_serve(desk, invite))


async def _serve(desk: Desk, invite: Invite) -> None:
    desk.stop.install()
    manifest, known = await find(desk, invite)
    swarm = await enter(desk, manifest, invite.addresses, may_start_alone=known)
    try:
        await serve_seed(desk, swarm)
    finally:
        await swarm.close()
