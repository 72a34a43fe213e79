"""A task whose checker does what the text says; it stands for foreign checkers that misbehave."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

import numpy as np

from ftis_node.errors import UsageError
from ftis_node.tasks.base import Item, Task


class Unpicklable(Exception):
    """Cannot be built again from its arguments, so it must not travel between processes as an object."""

    def __init__(self, first: str, *, second: str) -> None:
        super().__init__(first)
        self.second = second


RETURNED: dict[str, Any] = {
    "one": 1.0,
    "true": True,
    "numpy": np.float32(1.0),
    "none": None,
    "text": "1.0",
    "array": np.array([1.0, 0.0]),
    "nan": float("nan"),
    "infinite": float("inf"),
    "negative": -1.0,
    "two": 2,
}


class HostileTask(Task):
    """Scores by name: see RETURNED and `score`."""

    VERSION: ClassVar[int] = 1
    max_completion_tokens = 4
    stop_pattern = None

    def item(self, seed: int, index: int) -> Item:
        return Item(key=f"{seed}/{index}", messages=(), prefill="", answer="", question="")

    def held_out(self, count: int) -> tuple[Item, ...]:
        return tuple(self.item(-1, number) for number in range(count))

    def score(self, item: Item, text: str) -> float:
        if text in RETURNED:
            return RETURNED[text]  # type: ignore[no-any-return]
        match text:
            case "raise":
                raise Unpicklable("no", second="idea")
            case "usage":
                raise UsageError("not here", hint="elsewhere")
            case "exit":
                sys.exit(3)
            case "die":
                os._exit(9)
            case "hang":
                while True:
                    pass
            case "stuck":  # one long call inside C, which no Python signal handler interrupts
                return float(len(str(7 ** (10**9))))
            case "torch":
                return float("torch" in sys.modules or "transformers" in sys.modules)
            case "pid":
                return os.getpid() / 2**32
            case _:
                return 0.0
