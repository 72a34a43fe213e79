"""What runs inside a verifying process: plain functions that turn texts into rewards, or into a reason why not.

Whatever a checker does, only numbers and text leave this process: an exception object of a foreign library may not
survive the way back, and would take the pool's reading thread with it.
"""

from __future__ import annotations

import signal
from functools import lru_cache
from types import TracebackType

from ftis_node.tasks.base import Item, Task, checked_reward
from ftis_node.tasks.registry import build
from ftis_protocol.manifest import TaskSpec

# Either the rewards, in order, or what went wrong.
Outcome = tuple[float, ...] | str

KEPT_TASKS = 16
KEPT_HELD_OUT = 16


class Contained:
    """Runs foreign code and keeps what it raises, SystemExit included, as text in `failure`."""

    failure: str | None = None

    def __enter__(self) -> Contained:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is not None:
            self.failure = f"{type(error).__name__}: {error}"
        return True


def prepare() -> None:
    """Make SIGTERM end the process at once: a handler in Python would wait for a checker that is stuck in C."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def score_item(spec: TaskSpec, seed: int, index: int, texts: tuple[str, ...]) -> Outcome:
    """Rewards of the completions of one training item."""
    with Contained() as contained:
        task = _task(spec)
        return _scores(task, task.item(seed, index), texts)
    return contained.failure or "no reward"


def score_held_out(spec: TaskSpec, count: int, answers: tuple[tuple[int, str], ...]) -> Outcome:
    """Rewards of (position, text) pairs, where position points into `held_out(count)`."""
    with Contained() as contained:
        items = _held_out(spec, count)
        return tuple(reward for at, text in answers for reward in _scores(_task(spec), items[at], (text,)))
    return contained.failure or "no reward"


def _scores(task: Task, item: Item, texts: tuple[str, ...]) -> tuple[float, ...]:
    return tuple(checked_reward(task.score(item, text)) for text in texts)


@lru_cache(maxsize=KEPT_TASKS)
def _task(spec: TaskSpec) -> Task:
    return build(spec)


@lru_cache(maxsize=KEPT_HELD_OUT)
def _held_out(spec: TaskSpec, count: int) -> tuple[Item, ...]:
    return _task(spec).held_out(count)
