"""A task that a random model half knows, so that groups have unlike rewards without any teaching."""

from __future__ import annotations

from typing import ClassVar

from ftis_node.records import ChatMessage
from ftis_node.tasks.base import Item, Task, draw, read_parameters
from ftis_protocol.manifest import TaskSpec

HELD_OUT_ITEMS = 64


class LettersTask(Task):
    """A text is right when its first character's code point is even, and odd for an item with an odd number.

    Completions of `tokens` tokens, no stop rule. `alike` gives every text the same reward; `fault` makes the checker
    fail, "always" or on "odd items".
    """

    VERSION: ClassVar[int] = 1

    def __init__(self, spec: TaskSpec) -> None:
        super().__init__(spec)
        chosen = read_parameters(spec, {"tokens": 3, "fault": "", "alike": False})
        self._tokens, self._fault, self._alike = int(chosen["tokens"]), chosen["fault"], chosen["alike"]

    @property
    def max_completion_tokens(self) -> int:
        return self._tokens

    @property
    def stop_pattern(self) -> None:
        return None

    def item(self, seed: int, index: int) -> Item:
        return _item(f"item {draw(seed, index) % 10**6}")

    def held_out(self, count: int) -> tuple[Item, ...]:
        return tuple(_item(f"held out {number}") for number in range(min(count, HELD_OUT_ITEMS)))

    def score(self, item: Item, text: str) -> float:
        if self._fault == "always" or (self._fault == "odd items" and item.answer == "odd"):
            raise ZeroDivisionError("the checker has a mistake")
        return 1.0 if self._alike or is_right(item, text) else 0.0


def is_right(item: Item, text: str) -> bool:
    """What `score` says, for tests to count by hand."""
    return bool(text) and (ord(text[0]) % 2 == 1) == (item.answer == "odd")


def _item(question: str) -> Item:
    message = ChatMessage(role="user", content=question)
    answer = "odd" if question[-1] in "13579" else "even"
    return Item(key=question, messages=(message,), prefill="", answer=answer, question=question)
