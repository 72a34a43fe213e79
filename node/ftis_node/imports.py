"""Care taken around heavy third-party imports.

transformers imports torchvision, torchaudio and torchcodec when it finds them. A build that does not match the torch
beside it fails there with errors that name neither cause nor remedy ("operator torchvision::nms does not exist").
Text needs none of the three, so a broken one is made to look absent.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

OPTIONAL_EXTRAS = ("torchvision", "torchaudio", "torchcodec")

# What a mismatched binary package raises while it is imported: missing operators, shared objects or names.
_BROKEN_BUILD = (ImportError, OSError, RuntimeError, AttributeError)


def guard_broken_extras(names: Iterable[str] = OPTIONAL_EXTRAS) -> tuple[str, ...]:
    """Hide those of `names` that are installed but cannot be imported; return the hidden ones.

    Call it before the first import of transformers or vllm. Costs one look at the import path when they are absent.
    """
    hidden = []
    for name in names:
        if name in sys.modules:
            if sys.modules[name] is None:
                hidden.append(name)
            continue
        if importlib.util.find_spec(name) is None:
            continue
        try:
            importlib.import_module(name)
        except _BROKEN_BUILD:
            _hide(name)
            hidden.append(name)
    return tuple(hidden)


def _hide(name: str) -> None:
    """Forget `name` and its submodules, and make every later import or search for it say "not installed"."""
    for loaded in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
        del sys.modules[loaded]
    sys.modules[name] = None  # type: ignore[assignment]


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing its own progress bars between the lines of this program."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
