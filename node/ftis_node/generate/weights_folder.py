"""Where weights and an engine's meeting files lie: in memory where the system offers it, and only while the node lives.

Each folder holds a lock that its node keeps. A folder whose lock is free belongs to a node that was killed; the next
node of the same user removes it, whatever state directory the dead one had. 500 MB of weights that nobody reads are
500 MB less for those who live.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "ftis-weights-"
LOCK = "lock"


@contextmanager
def weights_folder(state_root: Path, base: Path | None = None) -> Iterator[Path]:
    """A folder for one run of the node in `state_root`, gone afterwards; folders of dead nodes go first."""
    base = base or (SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir()))
    own = f"{PREFIX}{hashlib.blake2b(bytes(state_root), digest_size=6).hexdigest()}-"
    sweep(base, certainly_dead=own)
    folder = Path(tempfile.mkdtemp(prefix=own, dir=base))
    try:
        with open(folder / LOCK, "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(base: Path, certainly_dead: str = "") -> list[Path]:
    """Removes the folders of dead nodes, and those whose name begins with `certainly_dead`: the caller holds the state
    directory that they belong to. Returns what was removed."""
    gone = []
    for folder in base.glob(f"{PREFIX}*"):
        if (certainly_dead and folder.name.startswith(certainly_dead)) or _abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(folder)
    return gone


def _abandoned(folder: Path) -> bool:
    try:
        with open(folder / LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:  # held, of another user, or without a lock: just being made, or by an older version
        return False
