"""The line that a person pastes to join: a swarm's id and addresses of nodes that are in it.

    ftis:SWARMID@/ip4/203.0.113.7/tcp/4001/p2p/PEERID,/dns4/node.example/tcp/4001/p2p/PEERID

A bare address (or several, separated by commas) is accepted as well; the swarm is then whichever is announced there.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from ftis_protocol import limits
from ftis_protocol.canonical import ID_CHARS, raw_id
from ftis_protocol.errors import InviteError

SCHEME = "ftis:"
EXAMPLE_ADDRESS = "/ip4/203.0.113.7/tcp/4001/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6", "dnsaddr")
_PORTS = ("tcp", "udp")
_FLAGS = ("quic", "quic-v1", "ws", "wss", "tls", "noise", "webtransport", "p2p-circuit")
_PEER_ID = re.compile(r"[1-9A-HJ-NP-Za-km-z]{32,80}|b[a-z2-7]{40,100}")
_HOST_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")


@dataclass(frozen=True, slots=True)
class Invite:
    """`swarm_id` is None for bare addresses. Building one checks all its parts (InviteError)."""

    swarm_id: str | None
    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.swarm_id is not None and raw_id(self.swarm_id) is None:
            raise InviteError(
                f"{_shown(self.swarm_id)} is not a swarm id",
                f"A swarm id has {ID_CHARS} characters, a to z and 2 to 7. Copy the whole line that `create` printed.",
            )
        if not self.addresses:
            raise InviteError("the invite has no address", f"Put one after the @, such as {EXAMPLE_ADDRESS}")
        if len(self.addresses) > limits.MAX_INVITE_ADDRESSES:
            raise InviteError(
                f"the invite has {len(self.addresses)} addresses",
                f"Keep at most {limits.MAX_INVITE_ADDRESSES} of them.",
            )
        for address in self.addresses:
            check_address(address)

    @classmethod
    def parse(cls, text: str) -> Invite:
        """Read a pasted line; blanks, line breaks and quotes around it do no harm."""
        line = text.strip().strip("'\"`<>").strip()
        if not line:
            raise InviteError("the invite is empty", f"Paste the line that `create` printed: {SCHEME}SWARMID@ADDRESS")
        if line.startswith("/"):
            return cls(None, _addresses(line))
        if not line.lower().startswith(SCHEME):
            raise InviteError(
                f"{_shown(line)} is neither an invite nor an address",
                f"An invite begins with {SCHEME}, an address with a slash, such as {EXAMPLE_ADDRESS}",
            )
        swarm_id, at, addresses = line[len(SCHEME) :].partition("@")
        if not at:
            raise InviteError("the invite has no @", f"Its form is {SCHEME}SWARMID@ADDRESS; it may have been cut off.")
        return cls(swarm_id.strip().lower(), _addresses(addresses))

    def format(self) -> str:
        """The line to paste; `parse` gives an equal invite back."""
        addresses = ",".join(self.addresses)
        return addresses if self.swarm_id is None else f"{SCHEME}{self.swarm_id}@{addresses}"


def check_address(address: str) -> None:
    """Raise InviteError, naming the faulty part, unless `address` is a libp2p multiaddr that ends in a peer id."""
    if len(address) > limits.MAX_ADDRESS or not address.isascii() or not address.isprintable() or " " in address:
        raise InviteError(f"the address {_shown(address)} is too long or holds odd characters", _LOOKS_LIKE)
    if not address.startswith("/"):
        raise InviteError(f"the address {_shown(address)} does not begin with a slash", _LOOKS_LIKE)
    parts = address[1:].split("/")
    names: list[str] = []
    while parts:
        name = parts.pop(0)
        names.append(name)
        if name not in _FLAGS:
            _check_part(name, parts.pop(0) if parts else "", address)
    _check_order(names, address)


_LOOKS_LIKE = f"An address looks like {EXAMPLE_ADDRESS}"


def _check_part(name: str, value: str, address: str) -> None:
    if name in _HOSTS:
        if not _is_host(name, value):
            raise InviteError(f"{_shown(value)} in {_shown(address)} is not a host for /{name}", _LOOKS_LIKE)
    elif name in _PORTS:
        if not re.fullmatch(r"[1-9][0-9]{0,4}", value, re.ASCII) or int(value) > 65535:
            raise InviteError(
                f"{_shown(value)} in {_shown(address)} is not a port", "A port is a number from 1 to 65535."
            )
    elif name == "p2p":
        if not _PEER_ID.fullmatch(value):
            raise InviteError(
                f"{_shown(value)} in {_shown(address)} is not a peer id", "It follows /p2p/; copy it without a gap."
            )
    else:
        raise InviteError(f"/{_shown(name)} in {_shown(address)} is unknown", _LOOKS_LIKE)


def _check_order(names: list[str], address: str) -> None:
    if names[0] not in (*_HOSTS, "p2p"):
        raise InviteError(f"{_shown(address)} does not begin with a host", _LOOKS_LIKE)
    if names[0] in _HOSTS[:-1] and not set(names[1:2]) & set(_PORTS):
        raise InviteError(f"{_shown(address)} has no port", "Add /tcp/PORT after the host.")
    if names[-1] != "p2p":
        raise InviteError(f"{_shown(address)} has no peer id at its end", "Add /p2p/PEERID: a node prints it at start.")
    if names == ["p2p"]:
        raise InviteError(f"{_shown(address)} names a peer, but no way to reach it", _LOOKS_LIKE)


def _is_host(name: str, value: str) -> bool:
    if name in ("ip4", "ip6"):
        try:
            return ipaddress.ip_address(value).version == int(name[2:]) and "%" not in value
        except ValueError:
            return False
    return _HOST_NAME.fullmatch(value) is not None


def _addresses(text: str) -> tuple[str, ...]:
    pieces = [piece.strip() for piece in text.split(",")]
    return tuple(dict.fromkeys(piece for piece in pieces if piece))


def _shown(text: str) -> str:
    """Foreign text in a message: short, and without anything a terminal would obey."""
    short = text if len(text) <= 80 else text[:77] + "..."
    return ascii(short)[1:-1] or "(nothing)"
