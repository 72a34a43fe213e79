"""Curves for those who keep them elsewhere: TensorBoard, Weights & Biases or Trackio, fed from the node's own database.

Off by default. A thread follows the database as the page does, so a tracker that hangs or fails delays nothing else:
its trouble is one line in the log, and it ends.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from ftis_node.dashboard.source import DataUnavailable, Source
from ftis_node.errors import UsageError
from ftis_node.store_series import Fresh, fresh

log = logging.getLogger(__name__)

Kind = Literal["none", "tensorboard", "wandb", "trackio"]
#: kind -> the package that it needs
PACKAGES: dict[str, str] = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}
FOLLOW_SECONDS = 2.0
VALUES_AT_ONCE = 5_000


class Tracker(Protocol):
    """Where values go. `log` gets all values of one step, or several times some of them."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in a folder."""

    def __init__(self, folder: Path, project: str, run: str) -> None:
        self._writer = _library("tensorboard").SummaryWriter(str(folder / project / run))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Run:
    """A run of a library that follows the interface of wandb: `init`, `log`, `finish`."""

    def __init__(self, kind: str, folder: Path, project: str, run: str) -> None:
        self._library = _library(kind)
        options: dict[str, Any] = {"dir": str(folder)} if kind == "wandb" else {}
        folder.mkdir(parents=True, exist_ok=True)
        self._library.init(project=project, name=run, **options)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._library.log(dict(values), step=step)

    def close(self) -> None:
        self._library.finish()


def _library(kind: str) -> Any:
    package = PACKAGES[kind]
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"tracking with {kind} needs the package {package}", hint=f"pip install {package}, or set track.to to none."
        ) from error


def open_tracker(kind: Kind, folder: Path, project: str, run: str) -> Tracker | None:
    """The tracker of that kind; None for "none". Raises UsageError when its package is missing."""
    if kind == "none":
        return None
    return TensorBoard(folder, project, run) if kind == "tensorboard" else Run(kind, folder, project, run)


class Follower:
    """Hands every new value of a database to a tracker until closed."""

    def __init__(self, tracker: Tracker, source: Source, after: int) -> None:
        self._tracker = tracker
        self._source = source
        self._after = after
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="tracker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand over what is left and end."""
        self._over.set()
        self._thread.join(2 * FOLLOW_SECONDS)

    def _follow(self) -> None:
        last = False
        while not last:
            last = self._over.wait(FOLLOW_SECONDS)
            try:
                self._hand_over()
            except DataUnavailable:
                continue
            except (OSError, ValueError, RuntimeError) as error:
                log.warning("the tracker failed and is left out from here on: %s", error)
                return
        with suppress(OSError, ValueError, RuntimeError):
            self._tracker.close()

    def _hand_over(self) -> None:
        values = self._source.read(lambda store: fresh(store, self._after, VALUES_AT_ONCE))
        steps: dict[int, dict[str, float]] = {}
        for value in values:
            steps.setdefault(value.step, {})[plain_name(value)] = value.value
        for step, found in sorted(steps.items()):
            self._tracker.log(step, found)
        if values:
            self._after = values[-1].id


def plain_name(value: Fresh) -> str:
    """A series' name without the characters that trackers dislike: `name{label="x"}` becomes `name/x`."""
    name, _, label = value.name.partition("{")
    return f"{name}/{label.partition(chr(34))[2].partition(chr(34))[0]}" if label else name
