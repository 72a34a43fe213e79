"""The rules that all nodes of one swarm share. Their hash is the swarm's id, so they can never change.

A manifest that cannot work is refused where it is made, with the reason, and again by everyone who reads it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from ftis_protocol import limits
from ftis_protocol.canonical import pack, short_id
from ftis_protocol.errors import ManifestError
from ftis_protocol.fields import Count, Label, Record, TaskName, Text
from ftis_protocol.rollout import Evidence

ParameterName = Annotated[Label, Field(min_length=1, max_length=limits.MAX_PARAMETER_NAME)]


def _never_an_int(value: Any) -> Any:
    """Without this an int out of range would come back as the nearest float."""
    if not isinstance(value, float):
        raise ValueError("not a float")
    return value


ParameterValue = (
    bool
    | Annotated[int, Field(ge=-limits.MAX_COUNT, le=limits.MAX_COUNT)]
    | Annotated[float, BeforeValidator(_never_an_int)]
    | Annotated[Text, Field(max_length=limits.MAX_PARAMETER_TEXT)]
)


class _Rules(Record):
    """A part of a manifest: whatever is wrong with it is a ManifestError that names the field."""

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or cls.__name__
            raise ManifestError(
                f"the swarm's {field} cannot be used: {first['msg']}", "Correct that value and found the swarm again."
            ) from error


class TaskSpec(_Rules):
    """A task all members can draw items from and verify: its name, the version of its code, and its parameters."""

    name: TaskName
    version: Count
    parameters: dict[ParameterName, ParameterValue] = Field(default_factory=dict, max_length=limits.MAX_TASK_PARAMETERS)

    def __hash__(self) -> int:
        return hash((self.name, self.version, tuple(sorted(self.parameters.items()))))


class Sampling(_Rules):
    """How shared completions are sampled. Only the plain distribution of the model is allowed: anything that reshapes
    it makes every importance ratio wrong at the receiver, who cannot notice."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_completion_tokens: Annotated[int, Field(ge=1, le=limits.MAX_COMPLETION_TOKENS)]

    @model_validator(mode="after")
    def _undistorted(self) -> Self:
        for name, value, plain in (
            ("temperature", self.temperature, 1.0),
            ("top_p", self.top_p, 1.0),
            ("top_k", self.top_k, 0),
        ):
            if value != plain:
                raise ManifestError(
                    f"{name} {value:g} reshapes what a model would say: importance ratios between nodes would be wrong",
                    f"Leave {name} at {plain:g}.",
                )
        return self


class SwarmManifest(_Rules):
    """What a node agrees to by joining. `creator` is the founder's public key, `created_at` Unix seconds; a slot lasts
    `slot_seconds` and gives every node `slice_size` items of each task; presence and offers spread over `shard_count`
    dictionaries. `dictionary` is the digest of the text that frames may be compressed with, "" for none; it is left out
    of the canonical form then, so that swarms older than dictionaries keep their ids."""

    protocol_version: int = limits.PROTOCOL_VERSION
    name: Annotated[Label, Field(min_length=1, max_length=limits.MAX_SWARM_NAME)]
    tasks: Annotated[tuple[TaskSpec, ...], Field(min_length=1, max_length=limits.MAX_MANIFEST_TASKS)]
    sampling: Sampling
    group_size_min: Annotated[int, Field(ge=limits.MIN_GROUP_SIZE, le=limits.MAX_GROUP_SIZE)] = limits.MIN_GROUP_SIZE
    group_size_max: Annotated[int, Field(ge=limits.MIN_GROUP_SIZE, le=limits.MAX_GROUP_SIZE)] = limits.MAX_GROUP_SIZE
    evidence: tuple[Annotated[Evidence, Field(strict=False)], ...] = (Evidence.NONE,)
    admission: Literal["open", "members"] = "open"
    slot_seconds: Annotated[int, Field(ge=limits.MIN_SLOT_SECONDS, le=limits.MAX_SLOT_SECONDS)] = 30
    slice_size: Annotated[int, Field(ge=1, le=limits.MAX_SLICE_SIZE)] = 64
    shard_count: Annotated[int, Field(ge=1, le=limits.MAX_SHARDS)] = 1
    dictionary: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""
    creator: Annotated[bytes, Field(min_length=32, max_length=32)]
    created_at: Count

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.protocol_version != limits.PROTOCOL_VERSION:
            raise ManifestError(
                f"the swarm speaks protocol {self.protocol_version}, this software {limits.PROTOCOL_VERSION}",
                "Install the version of ftis-node that the swarm uses.",
            )
        if self.group_size_min > self.group_size_max:
            raise ManifestError(
                f"group_size_min {self.group_size_min} is above group_size_max {self.group_size_max}", "Swap the two."
            )
        named = [(task.name, task.version) for task in self.tasks]
        if len(set(named)) != len(named):
            raise ManifestError("a task is listed twice in the same version", "List every task once.")
        if len(set(self.evidence)) != len(self.evidence) or Evidence.NONE not in self.evidence:
            raise ManifestError(
                "the evidence tiers must be distinct and include 'none'",
                "Text with its reward alone is always allowed.",
            )
        return self

    @model_serializer(mode="wrap")
    def _without_empty_dictionary(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        if not self.dictionary:
            del fields["dictionary"]
        return fields

    @property
    def swarm_id(self) -> str:
        """26 characters that name exactly these rules."""
        return short_id(pack(self.model_dump(mode="python")))

    def task(self, name: str, version: int) -> TaskSpec | None:
        """The spec of that task, or None when this swarm does not have it."""
        return next((spec for spec in self.tasks if (spec.name, spec.version) == (name, version)), None)
