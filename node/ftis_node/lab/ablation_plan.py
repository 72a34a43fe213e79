"""What an ablation is to do, read from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from ftis_node.config_base import Section
from ftis_node.errors import UsageError
from ftis_node.lab.arms import ARMS, Arm
from ftis_node.lab.styles import Style
from ftis_node.lab.tiny import Alphabet
from ftis_node.tasks.base import Parameter
from ftis_node.tasks.registry import build
from ftis_protocol.manifest import TaskSpec

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


BRIEF_SUMS: Mapping[str, Parameter] = {"digits": 3, "max_tokens": 24, "brief": True}


class TaskTable(Section):
    """[task]: a name and its parameters, at the version that this node has."""

    name: str = "written-sums"
    version: int = 1
    parameters: dict[str, Parameter] = Field(default_factory=lambda: dict(BRIEF_SUMS))

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(name=self.name, version=self.version, parameters=self.parameters)


class ModelTable(Section):
    """[[model]]: a checkpoint (`path`), or a tiny transformer of `layers` and `hidden` numbers that is taught the task
    in `style` until it is right with the probability `goal`. `learning_rate` None takes the ablation's."""

    name: str
    path: Path | None = None
    layers: Count = 2
    hidden: Annotated[int, Field(ge=32, multiple_of=32)] = 64
    style: Style = "direct"
    alphabet: Alphabet = "ascii"
    goal: Annotated[float, Field(gt=0, lt=1)] = 0.2
    teach_seed: Annotated[int, Field(ge=0)] = 0
    teach_batch_items: Count = 64
    teach_learning_rate: Rate = 2e-3
    teach_max_steps: Count = 3000
    teach_noise: Annotated[float, Field(ge=0, lt=1)] = 0.0
    learning_rate: Rate | None = None
    trainable: Literal["full", "lora"] = "full"


#: unlike in size and in style: one answers at once or pretends to work it out, the other notes the sum of each column
TINY_PAIR = (
    ModelTable(
        name="undecided",
        layers=2,
        hidden=64,
        style="undecided",
        goal=0.12,
        teach_batch_items=128,
        teach_learning_rate=3e-3,
    ),
    ModelTable(name="columns", layers=3, hidden=96, style="columns", teach_noise=0.1),
)


class AblationPlan(Section):
    """[ablation] and the tables beside it. In every arm a node samples `own_groups` groups of `group_size` completions
    a round; foreign groups, at most `foreign_groups`, come on top. Results are means over the `last_rounds`."""

    rounds: Count = 60
    last_rounds: Count = 20
    own_groups: Count = 16
    foreign_groups: Count = 16
    group_size: Annotated[int, Field(ge=2, le=64)] = 8
    learning_rate: Rate = 3e-4
    warmup_rounds: Annotated[int, Field(ge=0)] = 0
    held_out_items: Count = 256
    threads: Count = 1
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0, 1, 2), min_length=1)
    arms: tuple[str, ...] = Field(default=tuple(ARMS), min_length=1)
    task: TaskTable = Field(default_factory=TaskTable)
    models: tuple[ModelTable, ...] = Field(default=TINY_PAIR, min_length=1)
    arm_table: dict[str, Arm] = Field(default_factory=lambda: dict(ARMS))

    @model_validator(mode="after")
    def _consistent(self) -> AblationPlan:
        unknown = [name for name in self.arms if name not in self.arm_table]
        if unknown:
            near = get_close_matches(unknown[0], self.arm_table, n=1)
            raise ValueError(
                f"there is no arm {unknown[0]!r}; " + (f"did you mean {near[0]!r}?" if near else "see docs")
            )
        if len({model.name for model in self.models}) < len(self.models):
            raise ValueError("two models have the same name")
        return self


def read_plan(path: Path | None, **changes: Any) -> AblationPlan:
    """The plan of a file (None: the tiny pair with all arms), overlaid with those `changes` that are not None.

    Raises UsageError for a file that cannot be read, an unknown key, a value out of range and an unknown task.
    """
    tables = _tables(path) if path is not None else {}
    fields: dict[str, Any] = {**tables.pop("ablation", {}), **{k: v for k, v in changes.items() if v is not None}}
    named = {"task": "task", "model": "models"}
    for table, key in named.items():
        if table in tables:
            fields[key] = tables.pop(table)
    fields["arm_table"] = _arm_table(tables.pop("arm", {}))
    if tables:
        raise UsageError(f"{path}: there is no table [{next(iter(tables))}]", hint="docs/ablate.md lists the tables.")
    try:
        plan = AblationPlan.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{path or 'ablation'}: {place + ': ' if place else ''}{first['msg']}",
            hint="docs/ablate.md lists the keys.",
        ) from error
    build(plan.task.spec)
    return plan


def _tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="Give a TOML file as in docs/ablate.md.") from error


def _arm_table(given: Mapping[str, Any]) -> dict[str, Any]:
    """The built-in arms and those of the file: [arm.NAME] starts from the arm that `like` names, or from its own."""
    table: dict[str, Any] = {name: arm.model_dump() for name, arm in ARMS.items()}
    for name, keys in given.items():
        keys = dict(keys)
        like = keys.pop("like", name if name in ARMS else "f-tis-token")
        if like not in ARMS:
            raise UsageError(f"[arm.{name}]: there is no arm {like!r}", hint=f"Choose one of {', '.join(ARMS)}.")
        table[name] = {**ARMS[like].model_dump(), **keys}
    return table
