"""Directories that are made once: written aside and renamed into place, so that a half-made one is never seen."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, after `make` has filled it unless it was there before.

    Two processes may do this at once: both work, one rename wins and the other result is thrown away. If `make`
    raises, nothing is left behind.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        make(aside)
        aside.chmod(0o755)
        try:
            os.rename(aside, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target
