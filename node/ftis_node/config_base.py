"""What a section of the configuration is made of."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def setting(default: Any, meaning: str, *, unit: str = "", **bounds: Any) -> Any:
    """One key: its default, what it means and its unit (empty for text and switches)."""
    return Field(default=default, description=meaning, json_schema_extra={"unit": unit}, **bounds)


class Section(BaseModel):
    """A group of keys: frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
