"""Tasks by name. Others come in through the entry-point group `ftis_node.tasks`.

A swarm may list one kind of task several times with other parameters: "arithmetic:products" is of kind "arithmetic",
and the part behind the colon only keeps the names apart.
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from importlib.metadata import entry_points

from ftis_node.errors import UsageError
from ftis_node.records import Prompt
from ftis_node.tasks.base import Item, Parameter, Task
from ftis_protocol.manifest import TaskSpec
from ftis_protocol.rollout import PromptRef

ENTRY_POINT_GROUP = "ftis_node.tasks"

# Known without any installed metadata, so that a source tree on the path is enough.
BUILT_IN = {
    "arithmetic": "ftis_node.tasks.arithmetic:ArithmeticTask",
    "reasoning-gym": "ftis_node.tasks.reasoning_gym:ReasoningGymTask",
    "written-sums": "ftis_node.tasks.sums:WrittenSumsTask",
}


def names() -> tuple[str, ...]:
    """The kinds of task this node knows, sorted."""
    return tuple(sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))}))


def build(spec: TaskSpec) -> Task:
    """The task that `spec` describes. Raises UsageError for an unknown kind, version or parameter."""
    return _class_of(spec.name)(spec)


def describe(name: str, **parameters: Parameter) -> TaskSpec:
    """The spec of a task as this node has it, for a new swarm. Raises UsageError as `build` does."""
    spec = TaskSpec(name=name, version=_class_of(name).VERSION, parameters=parameters)
    build(spec)
    return spec


def prompt_of(task: Task, item: Item, ref: PromptRef, author: str) -> Prompt:
    """What a model is asked for `item`; `author` is the node whose slice `ref` points into, "" for held-out items."""
    return Prompt(
        ref=ref,
        author=author,
        item_key=item.key,
        messages=item.messages,
        prefill=item.prefill,
        stop_pattern=task.stop_pattern,
        max_tokens=task.max_completion_tokens,
    )


def _class_of(name: str) -> type[Task]:
    kind = name.partition(":")[0]
    target = BUILT_IN.get(kind)
    if target is not None:
        module, _, attribute = target.partition(":")
        found = getattr(importlib.import_module(module), attribute)
    else:
        found = _plugged_in(name, kind)
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise UsageError(f"task {kind!r} is not a task class", hint="Its entry point must name a subclass of Task.")
    return found


def _plugged_in(name: str, kind: str) -> object:
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=kind):
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"task {kind!r} cannot be loaded: {error}", hint=f"Install {entry.dist and entry.dist.name} again."
            ) from error
    near = get_close_matches(kind, names(), n=1)
    raise UsageError(
        f"there is no task {name!r}",
        hint=f"Did you mean {near[0]!r}?" if near else f"Known tasks: {', '.join(names())}.",
    )
