"""The page beside a running node, seed or observer: made, announced, and closed with it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from ftis_node.config_page import PageSection, TrackSection
from ftis_node.console import Console
from ftis_node.dashboard.app import page_app
from ftis_node.dashboard.documents import Served
from ftis_node.dashboard.guard import Rules
from ftis_node.dashboard.server import PageServer, Place
from ftis_node.dashboard.source import DataUnavailable, Source
from ftis_node.dashboard.tracking import Follower, open_tracker
from ftis_node.errors import UsageError
from ftis_node.store import Store
from ftis_node.store_commands import CommandKind, CommandTable
from ftis_node.store_log import newest
from ftis_node.store_schema import StoreError

#: fact: where the page of this node answers, or None
PAGE_ADDRESS = "page_address"
#: fact: the port that it had, taken again at the next start
PAGE_PORT = "page_port"


@contextmanager
def serving(page: PageSection, store: Store, served: Served, console: Console, token: str = "") -> Iterator[str | None]:
    """The page while the block runs; gives its address, or None where it is switched off or cannot listen: that is a
    warning, never a reason to stop."""
    if not page.enabled:
        yield None
        return
    source = Source(store.path)
    rules = Rules(frozenset(name.lower() for name in page.hosts), limited=page.public)
    ask = partial(ask_node, store.path) if served.writable else None
    app = page_app(source, served, token=token, ask=ask, rules=rules)
    try:
        server = PageServer.start(Place(page.host, _port(page, store)), app)
    except UsageError as error:
        console.warn(f"no page: {error}. {error.hint}")
        yield None
        return
    store.set_facts(**{PAGE_ADDRESS: server.address, PAGE_PORT: [page.port, server.port]})
    try:
        yield server.address
    finally:
        server.close()
        source.close()


def ask_node(database: Path, kind: str, node_id: str) -> int:
    """Put a request of the page down for the node; its number. Raises DataUnavailable."""
    try:
        with closing(CommandTable.open(database)) as table:
            return table.ask(CommandKind(kind), "page", **({"node_id": node_id} if node_id else {}))
    except (UsageError, StoreError) as error:
        raise DataUnavailable(str(error)) from error


@contextmanager
def tracked(track: TrackSection, store: Store, folder: Path, run: str) -> Iterator[None]:
    """The configured tracker while the block runs. Raises UsageError when its package is missing."""
    tracker = open_tracker(track.to, folder, track.project, run)
    if tracker is None:
        yield
        return
    source = Source(store.path)
    follower = Follower(tracker, source, newest(store)[0])
    try:
        yield
    finally:
        follower.close()
        source.close()


def _port(page: PageSection, store: Store) -> int:
    """The port of the last run, if the same one was asked for then: open pages find the node again."""
    asked, had = store.fact(PAGE_PORT) or (None, None)
    return int(had) if asked == page.port and had else page.port


def say_where(console: Console, address: str | None) -> None:
    """One line that tells where to look."""
    if address:
        console.say(f"page {address}", page=address)


def page_token(path: Path) -> str:
    """The secret that the page's actions need: made once, readable by the node's user only."""
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(24)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
        return token
