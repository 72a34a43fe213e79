"""What every request has to pass before anything looks at it, and what every answer carries.

Names in the Host header are checked against those this page is known under, so that a page of somebody else's cannot
make a browser talk to this one under a name of its own (DNS rebinding). Bodies are small or refused. In public, each
address gets so many requests a second.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 64 * 1024
MAX_HEAD_BYTES = 16 * 1024
#: requests that one address may make at once, and how many come back each second (public pages only)
BURST = 120.0
PER_SECOND = 20.0
#: addresses remembered by the rate limit
ADDRESSES = 4_096

HEADERS: dict[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """`hosts`: names besides localhost and plain IP addresses under which the page may be asked for, in lower case."""

    hosts: frozenset[str] = frozenset()
    limited: bool = False


class Guard:
    """The outermost layer of the page's application."""

    def __init__(self, app: ASGIApp, rules: Rules, now: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._rules = rules
        self._buckets = Buckets(now)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, sending = Headers(scope=scope), _with_headers(send)
        if not known_host(headers.get("host", ""), self._rules.hosts):
            await refuse(sending, 421, "this page is not known under that name", "Add the name to page.hosts.")
        elif self._rules.limited and not self._buckets.take((scope.get("client") or ("?", 0))[0]):
            await refuse(sending, 429, "too many requests from this address", "Wait a second.", {"retry-after": "1"})
        elif not _short(scope):
            await refuse(sending, 431, f"the head of a request has at most {MAX_HEAD_BYTES} bytes", "Ask for less.")
        elif not _small(headers):
            await refuse(sending, 413, f"a request has at most {MAX_BODY_BYTES} bytes", "Send less.")
        else:
            await self._app(scope, _bounded(receive), sending)


def known_host(host: str, names: frozenset[str]) -> bool:
    """Whether the Host header is an IP address, localhost or one of `names`, with or without a port."""
    name, _, port = host.rpartition(":") if host.count(":") == 1 or (host.startswith("[") and "]:" in host) else (
        host, "", "")  # fmt: skip
    if port and not port.isdecimal():
        return False
    name = name.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class Buckets:
    """So many requests at once and so many a second for each address; bounded, the longest unseen are forgotten."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> bool:
        """Whether this address may have one more request now."""
        now = self._now()
        left, seen = self._left.pop(address, (BURST, now))
        left = min(BURST, left + (now - seen) * PER_SECOND)
        self._left[address] = (max(0.0, left - 1), now)
        if len(self._left) > ADDRESSES:
            self._left.popitem(last=False)
        return left >= 1


class BodyTooLarge(Exception):
    """More bytes came than a request may have."""


def _short(scope: Scope) -> bool:
    parts = (len(scope["raw_path"]), len(scope["query_string"]), *(len(k) + len(v) for k, v in scope["headers"]))
    return sum(parts) <= MAX_HEAD_BYTES


def _small(headers: Headers) -> bool:
    length = headers.get("content-length", "0")
    return length.isdecimal() and int(length) <= MAX_BODY_BYTES


def _bounded(receive: Receive) -> Receive:
    """For bodies that do not say how long they are."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY_BYTES:
            raise BodyTooLarge
        return message

    return bounded


def _with_headers(send: Send) -> Send:
    extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sending


async def refuse(
    send: Callable[[Message], Awaitable[None]], status: int, error: str, hint: str, extra: dict[str, str] | None = None
) -> None:
    """Answer with the reason and nothing else."""
    body = json.dumps({"error": error, "hint": hint}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **(extra or {})}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
