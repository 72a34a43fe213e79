"""`ftis-node dashboard`: the page of a swarm without taking part in it. No model, no card, a history of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ftis_node.commands.join import find
from ftis_node.commands.options import DashboardOptions
from ftis_node.commands.running import Desk, leave, open_store, opened, remember_manifest, served_page
from ftis_node.console import Console
from ftis_node.errors import UsageError
from ftis_node.loops.observing import ObserveLoop
from ftis_node.swarm.dht import DhtSwarm
from ftis_protocol.invite import Invite


def run(options: DashboardOptions, console: Console) -> None:
    """Watch the swarm and show it until stopped."""
    config = options.layered().config
    if not config.swarm.invite:
        raise UsageError("no swarm given", hint="Paste an invite or address: ftis-node dashboard --swarm ftis:...")
    invite = Invite.parse(config.swarm.invite)
    with opened(config, "dashboard", console) as desk:
        asyncio.run(_watch(desk, invite))


async def _watch(desk: Desk, invite: Invite) -> None:
    desk.stop.install()
    manifest, known = await find(desk, invite)
    how = replace(desk.dht_options(may_start_alone=known), client=True)
    swarm = DhtSwarm(desk.identity, manifest, how, invite.addresses)
    try:
        with desk.console.step(f"looking at the swarm {manifest.name} ({manifest.swarm_id})"):
            await desk.unless_stopped(swarm.start())
        remember_manifest(desk, manifest)
        store = open_store(desk, desk.state.swarm(manifest.swarm_id), swarm)
        try:
            with served_page(desk, store, swarm.swarm_id, "observer") as address:
                if address is None:
                    raise UsageError("an observer without a page shows nothing", hint="Choose a free port with --port.")
                desk.console.say(f"watching. The page is at {address}", page=address)
                await ObserveLoop(swarm, store).run(desk.stop.event)
        finally:
            leave(store)
    finally:
        await swarm.close()
