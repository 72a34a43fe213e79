"""How a node meets others over the network, and what it remembers of that between runs.

<state>/p2p.key     the transport's own key; its peer id is part of the address that others keep
<state>/p2p.json    the port chosen at first start
<state>/peers.json  addresses of peers seen lately
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ftis_node.swarm.addresses import is_loopback


@dataclass(frozen=True, slots=True)
class DhtOptions:
    """`state_dir` None remembers nothing: a new peer id and port every time. `host` is the IP address to listen on, a
    loopback one keeps everything on this machine; `port` 0 takes a free one and keeps it. `announce` replaces the
    addresses told to others. Times in seconds: `connect_seconds` for one attempt to join, `call_seconds` for one
    question to the network, `retry_seconds` for the longest pause between two attempts to reach a lost swarm.
    `may_start_alone` lets `start` succeed when no address answers; `watch` then goes on trying. A `client` does not
    listen and stores nothing for others. `upload_kibibytes_per_second` caps the records this node sends (0: no cap),
    `storage_mebibytes` what it keeps for others.
    """

    state_dir: Path | None = None
    host: str = "0.0.0.0"
    port: int = 0
    announce: tuple[str, ...] = ()
    relay: bool = True
    connect_seconds: float = 30.0
    call_seconds: float = 10.0
    retry_seconds: float = 300.0
    may_start_alone: bool = False
    client: bool = False
    upload_kibibytes_per_second: float = 0.0
    storage_mebibytes: int = 256

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def key_path(self) -> Path | None:
        return None if self.state_dir is None else self.state_dir / "p2p.key"

    @property
    def peers_path(self) -> Path | None:
        return None if self.state_dir is None else self.state_dir / "peers.json"

    def announced(self, peer_id: str) -> tuple[str, ...]:
        """The addresses of `announce`, each with a peer id: nobody knows its own before the first start."""
        return tuple(a if "/p2p/" in a else f"{a}/p2p/{peer_id}" for a in self.announce)

    def listen(self, port: int) -> str:
        """The multiaddr to listen on."""
        return f"/ip{6 if ':' in self.host else 4}/{self.host}/tcp/{port}"

    def remembered_port(self) -> int | None:
        """The port of the last run; None when there was none, or its note is unreadable."""
        if self.state_dir is None:
            return None
        with suppress(OSError, ValueError, TypeError, KeyError):
            port = json.loads((self.state_dir / "p2p.json").read_text(encoding="utf-8"))["port"]
            if isinstance(port, int) and 0 < port < 65536:
                return port
        return None

    def remember_port(self, port: int) -> None:
        """Note the port for the next run, in one step."""
        if self.state_dir is None or self.remembered_port() == port:
            return
        draft = self.state_dir / "p2p.json.new"
        draft.write_text(json.dumps({"port": port}), encoding="utf-8")
        os.replace(draft, self.state_dir / "p2p.json")
