"""What `create`, `join` and `seed` have in common: state, key, log, swarm, and the way a node ends.

The order is the one a person watches: who am I, which swarm, which model and engine, then "working".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ftis_node import __version__, logfile
from ftis_node.aftermath import crash_trace
from ftis_node.app import Node, build
from ftis_node.clock import WallClock
from ftis_node.commands.first_look import check_machine, tell_aftermath
from ftis_node.commands.paging import page_token, say_where, serving, tracked
from ftis_node.config import NodeConfig
from ftis_node.console import Console
from ftis_node.dashboard.documents import Served
from ftis_node.environment import cache_dir, note_unreachable_hub
from ftis_node.errors import NotAllowed, UsageError
from ftis_node.generate.weights_folder import weights_folder
from ftis_node.learner import Places
from ftis_node.lifecycle import StopSignal
from ftis_node.loops.seeding import SeedLoop
from ftis_node.state import MEBIBYTE, StateDir, SwarmDir, write_atomically
from ftis_node.states import NodeState
from ftis_node.store import Store
from ftis_node.store_records import Fact
from ftis_node.store_schema import StoreError
from ftis_node.swarm.base import Reach, Swarm
from ftis_node.swarm.dht import DhtSwarm
from ftis_node.swarm.leftovers import clear_dead_sockets
from ftis_node.swarm.settings import DhtOptions
from ftis_node.tokenizer_files import MODEL_CONFIG, checkpoint_directory
from ftis_protocol import limits
from ftis_protocol.codec import decode, encode
from ftis_protocol.errors import ProtocolError
from ftis_protocol.identity import Identity
from ftis_protocol.invite import Invite
from ftis_protocol.manifest import SwarmManifest

REACH_NOTES = {
    Reach.CLIENT: "this node does not listen (swarm.client): it publishes and fetches through the nodes it connects "
    "to, keeps nothing for others, and nobody can join through it",
    Reach.PRIVATE: "this node has addresses of a private network only, so nodes elsewhere cannot open a connection to "
    "it; it publishes through those it reaches itself. To change that, forward a port and name it with swarm.announce",
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Desk:
    """What every running command has at hand. `stop` fires on Ctrl-C and SIGTERM; `unclean` says how the last process
    ended, if it did not say good-bye."""

    config: NodeConfig
    state: StateDir
    identity: Identity
    console: Console
    stop: StopSignal
    unclean: str = ""

    def dht_options(self, *, may_start_alone: bool) -> DhtOptions:
        """How this node meets others. With `may_start_alone` silence is no error: the node goes on looking."""
        return replace(dht_options(self.config), state_dir=self.state.root, may_start_alone=may_start_alone)

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. A stop before it is done ends the command as interrupted: nothing needs saving yet."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.stop.event.wait())
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            return working.result()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        raise KeyboardInterrupt


def dht_options(config: NodeConfig) -> DhtOptions:
    """How a node with this configuration meets others, for one that remembers nothing."""
    swarm = config.swarm
    return DhtOptions(
        host=swarm.host,
        port=swarm.port,
        announce=swarm.announce,
        relay=swarm.relay,
        connect_seconds=swarm.connect_seconds,
        retry_seconds=swarm.retry_seconds,
        client=swarm.client,
        upload_kibibytes_per_second=swarm.upload_kibibytes_per_second,
        storage_mebibytes=swarm.storage_mebibytes,
    )


def check_model(model: str | None, console: Console) -> None:
    """Tell before anything is begun that a model cannot be had: a path that leads nowhere, or a name that was never
    fetched while the hub is out of reach."""
    if not model:
        raise UsageError("no model given", hint="Name one with --model: a directory, or a name on the hub.")
    if checkpoint_directory(model) is not None or not note_unreachable_hub():
        return
    from huggingface_hub import try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(model, MODEL_CONFIG), str):
        raise UsageError(
            f"the model hub cannot be reached, and {model} was not fetched before",
            hint="Check the network, or give the directory of a checkpoint on this machine.",
        )
    console.warn("the model hub cannot be reached; going on with the model as it was fetched before")


@contextmanager
def opened(config: NodeConfig, command: str, console: Console) -> Iterator[Desk]:
    """Lock the state directory, begin the log and load (or make) the key; introduce the node."""
    state = StateDir.open(config.node.state_path, free_bytes=config.limits.disk_free_mebibytes * MEBIBYTE)
    with state.lock(command) as lock:
        log_path = logfile.begin(state.logs, config.node.log_level, json_lines=config.node.log_format == "json")
        clear_dead_sockets()
        check_machine(config, console)
        first = not state.identity.exists()
        if first:
            Identity.create().save(state.identity)
        identity = Identity.load(state.identity)
        name = config.node.name or identity.friendly_name
        config = config.model_copy(update={"node": config.node.model_copy(update={"name": name})})
        console.say(f"ftis-node {__version__}: {name}, node id {identity.node_id}")
        if first:
            console.say(f"new key {state.identity}: keep a copy, it is this node's identity")
        console.say(f"log {log_path}")
        unclean = tell_aftermath(lock, state, console)
        stop = StopSignal(config.node.stop_seconds)
        stop.last_acts.append(lock.release)  # this end has a cause that was told
        with crash_trace(state.logs):
            yield Desk(config, state, identity, console, stop, unclean)


async def enter(desk: Desk, manifest: SwarmManifest, addresses: tuple[str, ...], *, may_start_alone: bool) -> DhtSwarm:
    """Become a member: check that this version can keep the rules, remember them, and join the DHT."""
    if manifest.admission != "open":
        raise NotAllowed(
            f"the swarm {manifest.name!r} admits members only, which this version cannot prove",
            hint="Join an open swarm, or install a version with membership certificates.",
        )
    swarm = DhtSwarm(desk.identity, manifest, desk.dht_options(may_start_alone=may_start_alone), addresses)
    with desk.console.step(f"joining the swarm {manifest.name} ({manifest.swarm_id})"):
        await desk.unless_stopped(swarm.start())
    if note := REACH_NOTES.get(swarm.health.reach):
        desk.console.warn(note)
    if swarm.unanswered:
        tried = "; ".join(map(str, swarm.unanswered))
        desk.console.warn(f"no address of the invite works ({tried}); joined through addresses remembered from before")
    remember_manifest(desk, manifest)
    return swarm


def remember_manifest(desk: Desk, manifest: SwarmManifest) -> None:
    """Keep the rules that this node agreed to."""
    write_atomically(desk.state.swarm(manifest.swarm_id).manifest, encode(manifest))


def remembered_manifest(folder: SwarmDir) -> SwarmManifest | None:
    """The rules that this node agreed to when it joined, from its own disk; None before it ever did."""
    try:
        data = folder.manifest.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return decode(data, SwarmManifest, limits.MAX_MANIFEST_BYTES, limits.MAX_MANIFEST_DECOMPRESSED_BYTES)
    except ProtocolError as error:
        raise UsageError(
            f"{folder.manifest} is damaged: {error}", hint="Delete it; the swarm's other nodes have a copy."
        ) from error


async def run_node(desk: Desk, swarm: Swarm, *, check_only: bool = False) -> None:
    """Build the node on a joined swarm and let it work to its end."""
    folder = desk.state.swarm(swarm.swarm_id)
    store = open_store(desk, folder, swarm)
    say = desk.console.say
    try:
        with (
            weights_folder(desk.state.root) as weights,
            served_page(desk, store, swarm.swarm_id, "node", switched_off=check_only) as page,
            tracked(desk.config.track, store, folder.path / "tracked", desk.config.node.name),
        ):
            places = Places(folder.checkpoints, weights / "weights.safetensors", folder.path / "engine", cache_dir())
            node = await desk.unless_stopped(build(desk.config, swarm, store, places, WallClock(), say))
            try:
                if not check_only:
                    say(f"working. A friend joins with:  {join_line(swarm)}")
                    say_where(desk.console, page)
                    say("Ctrl-C stops after the running step and saves; the same line again resumes")
                    await node.run(desk.stop.event)
                    if node.dropped:
                        await _end_without(desk, swarm, store, node)
            finally:
                with desk.console.step("closing the engine"):
                    await node.close()
            if check_only:
                say("everything that joining needs is in place; nothing was trained")
            else:
                say(f"stopped at step {node.train.step}; the same line goes on from there")
    finally:
        leave(store)


async def serve_seed(desk: Desk, swarm: Swarm) -> None:
    """Keep a place to meet open, without a model."""
    store = open_store(desk, desk.state.swarm(swarm.swarm_id), swarm)
    try:
        with served_page(desk, store, swarm.swarm_id, "seed") as page:
            desk.console.say(f"the seed is up. Others join with:  {join_line(swarm)}")
            say_where(desk.console, page)
            await SeedLoop(swarm, store, desk.config.node.name).run(desk.stop.event)
    finally:
        leave(store)


@contextmanager
def served_page(
    desk: Desk, store: Store, swarm_id: str, role: str, *, switched_off: bool = False
) -> Iterator[str | None]:
    """The page of a running command; gives its address."""
    page = desk.config.page.model_copy(update={"enabled": desk.config.page.enabled and not switched_off})
    served = Served(swarm_id, role, public=page.public, writable=not page.public and role != "observer")
    token = page_token(desk.state.root / "page.token") if page.enabled and served.writable else ""
    with serving(page, store, served, desk.console, token) as address:
        yield address


def join_line(swarm: Swarm) -> str:
    """What a friend pastes."""
    return f"ftis-node join --swarm {invite_of(swarm)} --model MODEL"


def invite_of(swarm: Swarm) -> str:
    addresses = swarm.addresses[: limits.MAX_INVITE_ADDRESSES]
    return Invite(swarm.swarm_id, addresses).format() if addresses else f"(no address known yet for {swarm.swarm_id})"


def open_store(desk: Desk, folder: SwarmDir, swarm: Swarm) -> Store:
    """The node's database in this swarm, with the facts that do not depend on a model."""
    store = Store.open(folder.database)
    if store.notice:
        desk.console.warn(store.notice)
    if desk.unclean:
        store.event("unclean-end", desk.unclean, level="warning")
    holder = desk.state.holder()
    store.set_facts(
        state=NodeState.STARTING,
        started_at=holder.started_at if holder else None,
        node_id=swarm.node_id,
        name=desk.config.node.name,
        swarm_name=swarm.manifest.name,
        invite=invite_of(swarm),
        # what the process before said about itself is not true of this one
        **{Fact.STATE_SINCE: time.time(), Fact.STATE_WHY: "", Fact.BEAT_AT: None, Fact.PARTS: {}},
    )
    return store


async def _end_without(desk: Desk, swarm: Swarm, store: Store, node: Node) -> None:
    """The end of the process while a computation goes on that nothing can break off. Does not return."""
    node.rooms.verify.close()
    await swarm.close()
    leave(store)
    desk.stop.end_now(
        0,
        f"stopped at step {node.train.step}; the running step did not end within "
        f"{desk.config.node.step_seconds:g} s (node.step_seconds) and was dropped; the same line goes on from there",
    )


def leave(store: Store) -> None:
    """Whatever the reason, this process does not work any more; a disk that refuses has been reported already."""
    with suppress(StoreError):
        store.set_facts(state=NodeState.STOPPED, page_address=None)
    store.close()
