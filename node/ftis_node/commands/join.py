"""`ftis-node join`: the main job. The same line again resumes."""

from __future__ import annotations

import asyncio

from ftis_node.commands.options import JoinOptions
from ftis_node.commands.running import Desk, check_model, enter, opened, remembered_manifest, run_node
from ftis_node.config import NodeConfig
from ftis_node.console import Console
from ftis_node.errors import SwarmUnreachable, UsageError
from ftis_node.state import StateDir
from ftis_node.swarm.rendezvous import resolve
from ftis_protocol.invite import Invite
from ftis_protocol.manifest import SwarmManifest


def run(options: JoinOptions, console: Console) -> None:
    """Join the swarm of an invite or address and train until stopped."""
    config = options.layered().config
    if not config.swarm.invite:
        raise UsageError("no swarm given", hint="Paste an invite or address: ftis-node join --swarm ftis:...")
    invite = Invite.parse(config.swarm.invite)
    check_model(config.model.model, console)
    if options.check_only:
        plan(config, console)
    with opened(config, "join", console) as desk:
        asyncio.run(_join(desk, invite, options.check_only))


def plan(config: NodeConfig, console: Console) -> None:
    """Say what a start with this line does."""
    state, model, train = StateDir.path_of(config.node.state_dir), config.model, config.train
    known = StateDir(state).current_swarm() if state.is_dir() else None
    rows = {
        "swarm": config.swarm.invite,
        "state": f"{state} ({'resumes swarm ' + known[0] if known else 'new'})",
        "model": f"{model.model}, {model.trainable}, generator {model.generator}",
        "batch": f"{train.groups_per_step} groups of {train.group_size}, at least {train.own_share:g} of them own",
        "exchange": "on" if config.receive.exchange else "off",
        "listens": f"{config.swarm.host} port {config.swarm.port or 'chosen and kept'}",
        "ends": f"after step {train.max_steps}" if train.max_steps else "when told to",
    }
    for title, value in rows.items():
        console.say(f"{title:<10}{value}")


async def _join(desk: Desk, invite: Invite, check_only: bool) -> None:
    desk.stop.install()
    manifest, known = await find(desk, invite)
    swarm = await enter(desk, manifest, invite.addresses, may_start_alone=known)
    try:
        await run_node(desk, swarm, check_only=check_only)
    finally:
        await swarm.close()


async def find(desk: Desk, invite: Invite) -> tuple[SwarmManifest, bool]:
    """The swarm's rules, and whether this node joined it before."""
    known = _known(desk, invite)
    return (known, True) if known else (await _ask(desk, invite), False)


def _known(desk: Desk, invite: Invite) -> SwarmManifest | None:
    """The rules of a swarm that this node joined before: it can go on even while nobody else is there."""
    swarm_id = invite.swarm_id or desk.state.pinned(invite.addresses[0])
    if swarm_id is None:
        return None
    folder = desk.state.known_swarm(swarm_id)
    return remembered_manifest(folder) if folder else None


async def _ask(desk: Desk, invite: Invite) -> SwarmManifest:
    """First time: fetch the manifest that the id names; a bare address is pinned to the swarm found there."""
    with desk.console.step(f"looking for the swarm at {', '.join(invite.addresses)}"):
        manifest = await desk.unless_stopped(resolve(invite, desk.dht_options(may_start_alone=False)))
    if invite.swarm_id is None:
        pinned = desk.state.pinned(invite.addresses[0])
        if pinned not in (None, manifest.swarm_id):
            raise SwarmUnreachable(
                f"this address led to the swarm {pinned} before, and now leads to {manifest.swarm_id}",
                hint=f"If that is meant, join with ftis:{manifest.swarm_id}@{invite.addresses[0]}",
            )
        desk.state.pin(invite.addresses[0], manifest.swarm_id)
        desk.console.say(f"the address leads to the swarm {manifest.name}, {manifest.swarm_id}; remembered")
    return manifest
