"""`ftis-node create`: found a swarm, print the line that others paste, and go on as its first node."""

from __future__ import annotations

import asyncio
import time

from ftis_node.commands.options import CreateOptions, TaskOption
from ftis_node.commands.running import Desk, check_model, enter, opened, remembered_manifest, run_node, serve_seed
from ftis_node.config import NodeConfig
from ftis_node.console import Console
from ftis_node.errors import UsageError
from ftis_node.tasks.registry import build, describe
from ftis_protocol import limits
from ftis_protocol.dictionaries import newest_dictionary
from ftis_protocol.manifest import Sampling, SwarmManifest, TaskSpec
from ftis_protocol.rollout import Evidence


def run(options: CreateOptions, console: Console) -> None:
    """Found a swarm, or go on with the one founded from this state directory by the same line."""
    config = options.layered().config
    if options.with_model:
        check_model(config.model.model, console)
    elif options.model:
        raise UsageError("a seed trains no model", hint="Leave out --model, or leave out --no-model.")
    rules = _manifest(options, config, _specs(options.tasks))
    with opened(config, "create", console) as desk:
        manifest = rules.model_copy(update={"creator": desk.identity.public_key})
        asyncio.run(_create(desk, manifest, options.with_model))


async def _create(desk: Desk, wanted: SwarmManifest, with_model: bool) -> None:
    desk.stop.install()
    manifest = _founded_before(desk, wanted) or wanted
    swarm = await enter(desk, manifest, (), may_start_alone=True)
    try:
        await (run_node(desk, swarm) if with_model else serve_seed(desk, swarm))
    finally:
        await swarm.close()


def _founded_before(desk: Desk, wanted: SwarmManifest) -> SwarmManifest | None:
    """The swarm that this directory founded, if its rules are the wanted ones in everything but the date."""
    current = desk.state.current_swarm()
    known = remembered_manifest(current[1]) if current else None
    if known is None or known.model_copy(update={"created_at": wanted.created_at}) != wanted:
        return None
    desk.console.say(f"going on with the swarm {known.name}, founded here before")
    return known


def _specs(tasks: tuple[TaskOption, ...]) -> tuple[TaskSpec, ...]:
    return tuple(describe(task.name, **task.parameters) for task in tasks)


def _manifest(options: CreateOptions, config: NodeConfig, specs: tuple[TaskSpec, ...]) -> SwarmManifest:
    """The rules from the flags, the founder's key aside; what is not given follows from the tasks and from this node's
    configuration."""
    longest = max(build(spec).max_completion_tokens for spec in specs)
    sampling = Sampling(temperature=options.temperature, max_completion_tokens=options.max_tokens or longest)
    rules: dict[str, object] = {
        "name": options.name,
        "tasks": specs,
        "sampling": sampling,
        "evidence": (Evidence.NONE, *(tier for tier in options.evidence if tier is not Evidence.NONE)),
        "shard_count": limits.MAX_SHARDS,
        "creator": bytes(32),
        "created_at": int(time.time()),
        "dictionary": newest_dictionary(),
    }
    if options.slice_size is not None:
        rules["slice_size"] = options.slice_size
    manifest = SwarmManifest.model_validate(rules)
    size = config.train.group_size
    if not manifest.group_size_min <= size <= manifest.group_size_max:
        raise UsageError(f"a group of {size} cannot be exchanged", hint="Choose a group size from 2 to 64.")
    return manifest
