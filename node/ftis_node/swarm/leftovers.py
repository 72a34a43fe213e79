"""What daemons of killed processes leave in the temporary directory: sockets that nobody answers."""

from __future__ import annotations

import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PATTERN = "hivemind-p2p*.sock"
#: a daemon that starts makes its socket a moment before it listens
YOUNG_SECONDS = 60.0


def clear_dead_sockets(folder: Path | None = None) -> int:
    """Remove the sockets of daemons that do not run any more; returns how many."""
    removed = 0
    for path in (folder or Path(tempfile.gettempdir())).glob(PATTERN):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > YOUNG_SECONDS and _dead(path):
                path.unlink()
                removed += 1
    return removed


def _dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
