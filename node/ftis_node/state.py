"""Where a node keeps what must survive it, and the lock that lets only one process use it.

    <state>/identity.key  p2p.key  lock  current  pins.json  logs/
    <state>/swarms/<swarm id>/manifest.bin  node.db  checkpoints/

Keys and logs belong to the machine, everything learned belongs to one swarm. `current` names the swarm joined last;
`pins.json` remembers which swarm an address led to the first time.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ftis_node.errors import UsageError
from ftis_node.state_lock import Holder, StateLock

MEBIBYTE = 1024 * 1024
_DEFAULT_FREE_BYTES = 64 * MEBIBYTE
_ANOTHER = "Choose another directory with --state, or node.state_dir in the configuration."


@dataclass(frozen=True, slots=True)
class SwarmDir:
    """What this node knows of one swarm."""

    path: Path

    @property
    def manifest(self) -> Path:
        """The manifest's sealed bytes as first accepted."""
        return self.path / "manifest.bin"

    @property
    def database(self) -> Path:
        return self.path / "node.db"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"


@dataclass(frozen=True, slots=True)
class StateDir:
    """The directory of one node. `open` creates what is missing; `existing` only looks."""

    root: Path

    @classmethod
    def open(cls, root: Path, *, free_bytes: int = _DEFAULT_FREE_BYTES) -> StateDir:
        """Create or reuse the directory; UsageError when it cannot be written or has less than `free_bytes` left."""
        root = _expanded(root)
        with _explained(root):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (root / "logs", root / "swarms"):
                folder.mkdir(exist_ok=True)
            probe = root / f".write-test-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        state = cls(root)
        state.require_free(free_bytes)
        return state

    @classmethod
    def existing(cls, root: Path) -> StateDir:
        """The directory of a node that was started before; UsageError when there is none."""
        root = _expanded(root)
        if not (root / "swarms").is_dir():
            raise UsageError(f"there is no node in {root}", hint="Give the node's directory with --state.")
        return cls(root)

    @staticmethod
    def path_of(root: Path) -> Path:
        """`root` as an absolute path, `~` resolved; touches nothing."""
        return _expanded(root)

    def require_free(self, free_bytes: int) -> None:
        """UsageError when the disk has less than `free_bytes` left (checked again before large files)."""
        free = shutil.disk_usage(self.root).free
        if free < free_bytes:
            raise UsageError(
                f"{self.root} needs {free_bytes / MEBIBYTE:.0f} MiB of free disk, {free / MEBIBYTE:.0f} MiB are left",
                hint="Free some disk space, or " + _ANOTHER[0].lower() + _ANOTHER[1:],
            )

    @property
    def identity(self) -> Path:
        return self.root / "identity.key"

    @property
    def p2p_key(self) -> Path:
        return self.root / "p2p.key"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def lock(self, command: str) -> StateLock:
        """Become the only process in this directory; NotAllowed names the process that already is."""
        return StateLock.acquire(self.root / "lock", command)

    def holder(self) -> Holder | None:
        """The process that uses the directory now."""
        return StateLock.holder(self.root / "lock")

    def swarm(self, swarm_id: str) -> SwarmDir:
        """The directory of a swarm, created if missing, and from now on the current one."""
        assert swarm_id.isalnum(), swarm_id
        found = SwarmDir(self.root / "swarms" / swarm_id)
        with _explained(found.path):
            found.checkpoints.mkdir(parents=True, exist_ok=True)
            write_atomically(self.root / "current", swarm_id.encode())
        return found

    def known_swarm(self, swarm_id: str) -> SwarmDir | None:
        """The directory of a swarm that was joined before, or None; touches nothing."""
        assert swarm_id.isalnum(), swarm_id
        found = SwarmDir(self.root / "swarms" / swarm_id)
        return found if found.path.is_dir() else None

    def current_swarm(self) -> tuple[str, SwarmDir] | None:
        """Id and directory of the swarm joined last, or None before the first join."""
        try:
            swarm_id = (self.root / "current").read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        found = SwarmDir(self.root / "swarms" / swarm_id)
        return (swarm_id, found) if swarm_id.isalnum() and found.path.is_dir() else None

    def pinned(self, address: str) -> str | None:
        """The swarm id that a bare address led to the first time."""
        return self._pins().get(address)

    def pin(self, address: str, swarm_id: str) -> None:
        """Remember where an address leads, so that another swarm there is noticed."""
        with _explained(self.root):
            write_atomically(self.root / "pins.json", json.dumps({**self._pins(), address: swarm_id}).encode())

    def _pins(self) -> dict[str, str]:
        path = self.root / "pins.json"
        try:
            pins = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            pins = None
        if not isinstance(pins, dict):
            raise UsageError(f"{path} is damaged", hint="Delete it; the next join pins its swarm again.")
        return {str(address): str(swarm_id) for address, swarm_id in pins.items()}


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file so that a reader, or a node killed half-way, meets the old content or the new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _expanded(root: Path) -> Path:
    try:
        return root.expanduser().absolute()
    except RuntimeError:
        raise UsageError(f"cannot tell the home directory in {root}", hint=_ANOTHER) from None


class _explained:
    """Turns what the file system refuses into a UsageError about `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        reasons = {
            errno.ENOSPC: ("the disk is full", "Free some disk space."),
            errno.EROFS: ("the file system is read-only", _ANOTHER),
            errno.EACCES: ("this user may not write there", _ANOTHER),
            errno.EEXIST: ("it is a file, not a directory", _ANOTHER),
            errno.ENOTDIR: ("a part of the path is a file, not a directory", _ANOTHER),
        }
        why, hint = reasons.get(error.errno or 0, (error.strerror or str(error), _ANOTHER))
        raise UsageError(f"cannot use {self._path} for the node's state: {why}", hint=hint) from error
