"""The procedural task families of the package reasoning-gym (extra `tasks`).

A model reasons in its own words and puts the result between <answer> tags. The package's checkers give part marks for
an answer that is merely contained, and some take nonsense for an answer, so the answer is cut out first, a score counts
only near 1, and every family must pass a short trial before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ftis_node.errors import TaskError, UsageError
from ftis_node.records import ChatMessage
from ftis_node.tasks.base import Item, Parameter, Task, draw, is_held_out
from ftis_protocol.manifest import TaskSpec

PINNED = "0.1.25"
DATASET_ITEMS = 512  # items per seed of the package; a longer slice goes on with another seed
KEPT_DATASETS = 32
RIGHT = 0.99
TRIAL_ITEMS = 8
NONSENSE = ("xyzzy", "[1", " ")
DEFAULT_TOKENS = 256
INSTRUCTION = "Think as briefly as you can, then give the final answer as <answer>your answer</answer>."
ANSWER = re.compile(r"[\s\S]*?<answer>([\s\S]*?)</answer>")

# Their items depend on the order of Python's sets, hence on the process: no two nodes would see the same ones.
UNSTABLE = frozenset(
    {
        "intermediate_integration",
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
# Executes generated programs inside this process to make its items; some of them write files.
RUNS_CODE = frozenset({"codeio"})
# What the package's checkers were seen to raise for texts they do not understand.
CHECKER_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class GymItem(Item):
    """An item with the package's own record of it, which its checker needs."""

    entry: dict[str, Any] = field(compare=False)


class ReasoningGymTask(Task):
    """Parameters: `family` (say "chain_sum"), `max_completion_tokens`, and the family's own numbers and switches."""

    VERSION = 125  # follows the package: 0.1.25

    def __init__(self, spec: TaskSpec) -> None:
        super().__init__(spec)
        settings = dict(spec.parameters)
        self.family = str(settings.pop("family", ""))
        self._max_tokens = settings.pop("max_completion_tokens", DEFAULT_TOKENS)
        if type(self._max_tokens) is not int or self._max_tokens < 1:
            raise UsageError(
                f"max_completion_tokens of task {spec.name!r} is {self._max_tokens!r}", hint="Give a whole number."
            )
        self._settings = tuple(sorted(settings.items()))
        _check_family(self.family, settings)
        self._try_out()

    @property
    def max_completion_tokens(self) -> int:
        return int(self._max_tokens)

    @property
    def stop_pattern(self) -> str:
        """The first closing tag settles the answer."""
        return r"[\s\S]*?</answer>"

    def item(self, seed: int, index: int) -> GymItem:
        """See Task.item: a held-out question is replaced by the one of the next seed."""
        chunk, position = divmod(index, DATASET_ITEMS)
        attempt = 0
        while True:
            item = self._made(draw("train", seed, chunk, attempt), position)
            if not is_held_out(self.family, item.key):
                return item
            attempt += 1

    def held_out(self, count: int) -> tuple[Item, ...]:
        """See Task.held_out. A small family may yield fewer: the search ends after 64 draws for each item asked."""
        found: dict[str, Item] = {}
        for number in range(64 * count):
            if len(found) >= count:
                break
            chunk, position = divmod(number, DATASET_ITEMS)
            item = self._made(draw("probe", chunk), position)
            if is_held_out(self.family, item.key):
                found.setdefault(item.key, item)
        return tuple(found.values())

    def score(self, item: Item, text: str) -> float:
        """1.0 if the first pair of answer tags holds the answer by the package's own checker, which must not raise."""
        match = ANSWER.match(text)
        answer = match[1].strip() if match else ""
        if not answer:
            return 0.0
        assert isinstance(item, GymItem), "an item of another task"
        try:
            marks = self._dataset(0).score_answer(answer=answer, entry=item.entry)
        except CHECKER_ERRORS as error:
            raise TaskError(
                f"the checker of {self.family} failed: {type(error).__name__}: {error}",
                hint="Leave this family out of the swarm's tasks.",
            ) from error
        return 1.0 if _is_right(marks) else 0.0

    def _dataset(self, seed: int) -> Any:
        return _dataset(self.family, self._settings, seed)

    def _made(self, seed: int, position: int) -> GymItem:
        entry = self._dataset(seed % 2**31)[position]
        question = str(entry["question"])
        return GymItem(
            key=f"{self.family}:{draw('question', question):016x}",
            messages=(ChatMessage(role="user", content=f"{question}\n\n{INSTRUCTION}"),),
            prefill="",
            answer=str(entry["answer"]),
            question=question,
            entry=entry,
        )

    def _try_out(self) -> None:
        """Refuse a family whose own answers do not score, or where nonsense scores or makes the checker raise."""
        try:
            for position in range(TRIAL_ITEMS):
                item = self._made(1, position)
                if item.entry["answer"] is None:
                    raise _unfit(self.family, "its items carry no answer")
                if not self.score(item, _tagged(item.answer)):
                    raise _unfit(self.family, "its own answer does not score")
                if any(self.score(item, _tagged(text)) for text in NONSENSE):
                    raise _unfit(self.family, "nonsense scores as right")
        except (TaskError, ImportError, *CHECKER_ERRORS) as error:
            raise _unfit(self.family, str(error)) from error


def _tagged(answer: str) -> str:
    return f"<answer>{answer}</answer>"


def _is_right(marks: object) -> bool:
    if isinstance(marks, bool) or not isinstance(marks, int | float):
        raise TaskError(f"the checker returned {marks!r}", hint="Leave this family out of the swarm's tasks.")
    return marks >= RIGHT


def _unfit(family: str, reason: str) -> UsageError:
    return UsageError(f"reasoning-gym family {family!r} cannot be used: {reason}", hint="Choose another family.")


def _check_family(family: str, settings: dict[str, Parameter]) -> None:
    """Raises UsageError for a missing package, another version of it, and unknown families or settings."""
    try:
        installed = version("reasoning-gym")
    except PackageNotFoundError:
        installed = "missing"
    if installed != PINNED:
        raise UsageError(
            f"this task needs reasoning-gym {PINNED}, here it is {installed}",
            hint=f"pip install 'reasoning-gym=={PINNED}' (or ftis-node with its extra `tasks`).",
        )
    from reasoning_gym.factory import DATASETS

    if family not in DATASETS:
        raise UsageError(f"reasoning-gym has no family {family!r}", hint=_nearest(family, DATASETS, "families"))
    if family in RUNS_CODE:
        raise _unfit(family, "making an item runs program text from a data file")
    if family in UNSTABLE:
        raise _unfit(family, "its items differ from process to process")
    own = {f.name for f in fields(DATASETS[family][1])} - {"seed", "size"}
    for name in settings:
        if name not in own:
            raise UsageError(f"family {family!r} has no setting {name!r}", hint=_nearest(name, own, "settings"))


def _nearest(name: str, known: Iterable[str], what: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=3)
    return f"Did you mean {' or '.join(near)}?" if near else f"Its {what}: {', '.join(sorted(known))}."


@lru_cache(maxsize=KEPT_DATASETS)
def _dataset(family: str, settings: tuple[tuple[str, Parameter], ...], seed: int) -> Any:
    """One of the package's datasets. Raises UsageError for settings that the family refuses."""
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(family, seed=seed, size=DATASET_ITEMS, **dict(settings))
    except (AssertionError, TypeError, ValueError) as error:
        raise UsageError(
            f"reasoning-gym family {family!r} refuses its settings: {error or 'out of range'}",
            hint="Correct the parameters of the task; the family's defaults always work.",
        ) from error
