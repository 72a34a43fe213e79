"""Where a node stands in its walk: all that a resumed run needs beside weights, optimiser and random states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from ftis_node.admission.judge import OwnRecord
from ftis_node.loops.prompts import Cursor
from ftis_node.records import TrainGroup

_RECORD = TypeAdapter(OwnRecord)
_GROUPS: TypeAdapter[tuple[TrainGroup, ...]] = TypeAdapter(
    tuple[TrainGroup, ...], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
)


@dataclass(frozen=True, slots=True)
class Position:
    """`step` counts batches, `cursor` is the next own prompt, `record` what is known of own text, `waiting` the
    admitted foreign groups that were not drawn yet."""

    step: int = 0
    cursor: Cursor | None = None
    record: OwnRecord = field(default_factory=OwnRecord)
    waiting: tuple[TrainGroup, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        cursor = self.cursor and {"slot": self.cursor.slot, "next_index": dict(self.cursor.next_index)}
        return {
            "step": self.step,
            "cursor": cursor,
            "record": _RECORD.dump_python(self.record, mode="json"),
            "waiting": _GROUPS.dump_json(self.waiting).decode(),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Position:
        """What `as_json` gave; the beginning for an empty mapping. What an older version did not store starts anew."""
        cursor = stored.get("cursor")
        return cls(
            step=int(stored.get("step", 0)),
            cursor=Cursor(cursor["slot"], cursor["next_index"]) if cursor else None,
            record=_RECORD.validate_python(stored.get("record", {})),
            waiting=_GROUPS.validate_json(stored.get("waiting", "[]")),
        )
