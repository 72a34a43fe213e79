"""What a task is: items by number, a held-out part that is never trained on, and a checker.

A prompt travels as (task, version, slot, index). Every node turns that into the same item, so everything here is a
function of numbers and content alone: draws come from blake2b, never from `hash()` or a library's random generator.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from numbers import Real
from typing import Any, ClassVar

from ftis_node.errors import TaskError, UsageError
from ftis_node.records import ChatMessage
from ftis_protocol.manifest import TaskSpec

Parameter = int | float | str | bool

HELD_OUT_ONE_IN = 4  # share of all item contents that is kept for probes


@dataclass(frozen=True, slots=True)
class Item:
    """One question with its answer.

    `key`: canonical content; items that differ only in form (commuted operands) share it. `messages` and `prefill`:
    the prompt before any chat template. `answer` never leaves the node. `question`: for people and logs.
    """

    key: str
    messages: tuple[ChatMessage, ...]
    prefill: str
    answer: str
    question: str


class Task(ABC):
    """A family of items. Subclasses set VERSION and are built from the swarm's TaskSpec.

    VERSION rises whenever the same numbers would give another item, another score or another held-out part.
    """

    VERSION: ClassVar[int]

    def __init__(self, spec: TaskSpec) -> None:
        if spec.version != self.VERSION:
            raise UsageError(
                f"task {spec.name!r} is version {spec.version} in this swarm, but this node has version {self.VERSION}",
                hint="Install the release of ftis-node that the swarm uses.",
            )
        self.name: str = spec.name
        self.version: int = spec.version
        self.parameters: Mapping[str, Parameter] = dict(spec.parameters)

    @property
    @abstractmethod
    def max_completion_tokens(self) -> int:
        """Cap on a completion, in tokens of whichever model answers."""

    @property
    @abstractmethod
    def stop_pattern(self) -> str | None:
        """Regular expression, matched from the start of a completion: it ends with the token that first matches."""

    @abstractmethod
    def item(self, seed: int, index: int) -> Item:
        """The training item at `index` of the slice that `seed` opens; equal on every machine."""

    @abstractmethod
    def held_out(self, count: int) -> tuple[Item, ...]:
        """The first `count` held-out items in a fixed order, all of them if there are fewer. `item` draws none."""

    @abstractmethod
    def score(self, item: Item, text: str) -> float:
        """Reward of a completion in [0, 1]. Raises TaskError if the checker itself fails; that is never a zero."""


def draw(*parts: object) -> int:
    """A 64-bit number that depends only on the printed form of `parts`."""
    return int.from_bytes(blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest())


def is_held_out(family: str, content: str) -> bool:
    """Whether an item with this canonical content belongs to the part that is never trained on."""
    return draw("held-out", family, content) % HELD_OUT_ONE_IN == 0


def checked_reward(value: object) -> float:
    """`value` as a reward. Raises TaskError for everything but a finite real number in [0, 1].

    True and False count as 1 and 0 and numpy scalars as the number they hold; None, text and arrays are no rewards.
    """
    unwrap: Callable[[], Any] | None = getattr(value, "item", None)
    if unwrap is not None and getattr(value, "shape", None) == ():
        value = unwrap()
    if not isinstance(value, Real):
        raise TaskError(f"the checker returned {value!r}, which is not a number", hint="Fix the task's score().")
    reward = float(value)
    if not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
        raise TaskError(f"the checker returned {reward}, outside 0 to 1", hint="Fix the task's score().")
    return reward


def read_parameters(spec: TaskSpec, defaults: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """`defaults` overlaid with the parameters of `spec`. Raises UsageError for an unknown name or a wrong type."""
    from difflib import get_close_matches

    chosen = dict(defaults)
    for name, value in spec.parameters.items():
        if name not in defaults:
            near = get_close_matches(name, defaults, n=1)
            known = f"Did you mean {near[0]!r}?" if near else f"It takes: {', '.join(defaults)}."
            raise UsageError(f"task {spec.name!r} has no parameter {name!r}", hint=known)
        if type(value) is not type(defaults[name]):
            wanted = type(defaults[name]).__name__
            raise UsageError(
                f"parameter {name!r} of task {spec.name!r} is {value!r}", hint=f"Give it a value of type {wanted}."
            )
        chosen[name] = value
    return chosen
