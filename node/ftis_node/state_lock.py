"""One process per state directory, by a lock that the kernel drops when its holder dies, however it dies.

The lock is `flock` on a file that says who holds it. Children made by fork would share the lock and keep it beyond
their parent's death, so they close their copy at birth.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from ftis_node import processes
from ftis_node.errors import NotAllowed, UsageError

_PATIENCE_SECONDS = 0.5  # `ftis-node status` holds the lock for a moment when it looks
_held: set[int] = set()


@dataclass(frozen=True, slots=True)
class Holder:
    """A process in a state directory: process id, start as Unix seconds, and what it was asked to do. `boot_id` names
    the run of the machine, `oom_kills` how many processes its kernel had killed for memory by then."""

    pid: int
    started_at: float
    command: str
    boot_id: str = ""
    oom_kills: int | None = None


class StateLock:
    """A held lock. `previous` is an earlier holder that ended without releasing it (killed, or the power went)."""

    def __init__(self, descriptor: int, previous: Holder | None) -> None:
        self._descriptor = descriptor
        self.previous = previous

    @classmethod
    def acquire(cls, path: Path, command: str) -> StateLock:
        """Take the lock, or raise NotAllowed with the holder's process id."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(
                f"cannot open {path}: {error.strerror}", hint="Check that it is yours to write."
            ) from error
        with ExitStack() as on_failure:
            on_failure.callback(os.close, descriptor)
            taken = _take(descriptor, path)
            previous = _read(descriptor)
            if not taken:
                raise _busy(path, previous)
            holder = Holder(os.getpid(), time.time(), command, processes.boot_id(), processes.oom_kills())
            _write(descriptor, holder)
            on_failure.pop_all()
        _held.add(descriptor)
        return cls(descriptor, previous)

    @staticmethod
    def holder(path: Path) -> Holder | None:
        """Who holds the lock at `path` now; None when nobody does."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(descriptor) or Holder(0, 0.0, "")
        finally:
            os.close(descriptor)
        return None

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._descriptor in _held:
            _held.discard(self._descriptor)
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)

    def __enter__(self) -> StateLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _take(descriptor: int, path: Path) -> bool:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        except OSError as error:
            raise UsageError(
                f"{path.parent} is on a file system without locks ({error.strerror})",
                hint="Use a local disk for --state.",
            ) from error


def _busy(path: Path, holder: Holder | None) -> NotAllowed:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.started_at)) if holder else "an unknown time"
    who = f"process {holder.pid} (`{holder.command}`)" if holder else "another process"
    stop = f"Stop it first (kill -INT {holder.pid})" if holder else "Stop it first"
    return NotAllowed(
        f"{path.parent} is in use by {who} since {since}", hint=f"{stop}, or give this node its own --state directory."
    )


def _read(descriptor: int) -> Holder | None:
    try:
        values = json.loads(os.pread(descriptor, 4096, 0))
        kills = values.get("oom_kills")
        return Holder(
            int(values["pid"]),
            float(values["started_at"]),
            str(values["command"]),
            str(values.get("boot_id", "")),
            None if kills is None else int(kills),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(descriptor: int, holder: Holder) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(holder)).encode()[:4096], 0)


def _drop_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)
