"""Multiaddrs: taking them apart, choosing which to announce, remembering those of peers between runs."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HOST_PROTOCOLS = frozenset({"ip4", "ip6", "dns", "dns4", "dns6"})
MAX_REMEMBERED = 256
MAX_ADDRESS_CHARS = 256
MAX_ANNOUNCED = 4


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A TCP multiaddr in parts; `transport` is the address without its peer id."""

    host: str
    port: int
    peer_id: str
    transport: str


def parse_endpoint(address: str) -> Endpoint | None:
    """Take `/ip4/HOST/tcp/PORT/p2p/PEER` apart; None for anything else, relayed and QUIC addresses included."""
    parts = address.split("/")
    if len(parts) != 7 or parts[0] or len(address) > MAX_ADDRESS_CHARS:
        return None
    _, protocol, host, tcp, port, p2p, peer_id = parts
    well_formed = protocol in HOST_PROTOCOLS and tcp == "tcp" and p2p == "p2p" and host and peer_id.isalnum()
    if not well_formed or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return None
    return Endpoint(host, int(port), peer_id, f"/{protocol}/{host}/tcp/{port}")


def peer_id_of(address: str) -> str | None:
    """The last `/p2p/` component of any multiaddr, relayed ones included."""
    _, found, peer_id = address.rpartition("/p2p/")
    return peer_id if found and peer_id.isalnum() else None


def _reach(address: str) -> int:
    """0 public or a name, 1 private network, 2 this machine only."""
    endpoint = parse_endpoint(address)
    if endpoint is None:
        return 0
    try:
        ip = ipaddress.ip_address(endpoint.host)
    except ValueError:
        return 2 if endpoint.host == "localhost" else 0
    if ip.is_loopback or ip.is_unspecified or ip.is_link_local:
        return 2
    return 1 if ip.is_private else 0


def is_loopback(host: str) -> bool:
    """True when `host` names this machine only."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def announceable(addresses: Iterable[str], *, loopback: bool) -> tuple[str, ...]:
    """Which of a node's addresses strangers should see, best first.

    Public ones when there are any, else those of the private network, and this machine's own only in a swarm that
    lives on loopback: an unreachable address costs every reader a dial.
    """
    ranked = sorted((_reach(address), place, address) for place, address in enumerate(dict.fromkeys(addresses)))
    allowed = [(reach, address) for reach, _, address in ranked if loopback or reach < 2]
    if not allowed:
        return ()
    best = allowed[0][0]
    return tuple(address for reach, address in allowed if reach == best)[:MAX_ANNOUNCED]


def out_of_reach(own: Iterable[str], others: Iterable[str]) -> bool:
    """True when none of `own` addresses means anything outside a private network while some of the swarm lies there:
    those nodes cannot open a connection to this one."""
    return min(map(_reach, own), default=0) > 0 and any(_reach(address) == 0 for address in others)


class AddressBook:
    """Addresses of peers, newest last, bounded, kept in one small JSON file. A broken file is an empty book."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, None] = dict.fromkeys(self._read())
        self._saved = tuple(self._known)

    def _read(self) -> Sequence[str]:
        if self._path is None:
            return ()
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ()
        return [a for a in found if isinstance(a, str) and parse_endpoint(a)] if isinstance(found, list) else ()

    def __iter__(self) -> Iterator[str]:  # newest first: they are the likeliest to be alive
        return iter(tuple(reversed(self._known)))

    def __len__(self) -> int:
        return len(self._known)

    def add(self, addresses: Iterable[str]) -> None:
        """Remember `addresses` as just seen; malformed ones are left out, the oldest make room."""
        for address in addresses:
            if parse_endpoint(address):
                self._known.pop(address, None)
                self._known[address] = None
        while len(self._known) > MAX_REMEMBERED:
            del self._known[next(iter(self._known))]

    def save(self) -> None:
        """Write the file if anything changed, in one step: a crash leaves the old or the new one."""
        if self._path is None or tuple(self._known) == self._saved:
            return
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(list(self._known), indent=0), encoding="utf-8")
        os.replace(draft, self._path)
        self._saved = tuple(self._known)
