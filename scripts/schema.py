#!/usr/bin/env python3
"""Writes docs/protocol.schema.json: the messages of the protocol as JSON Schema, made from the models.

python scripts/schema.py           write it
python scripts/schema.py --check   exit 1 when it is not current

It describes messages as JSON (byte strings in hexadecimal, as in tests/vectors). What a schema cannot say, such as that
a group's completions carry what its tier asks, is in docs/protocol.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "protocol")]

from ftis_protocol.envelope import KINDS  # noqa: E402
from ftis_protocol.limits import PROTOCOL_VERSION  # noqa: E402

PATH = ROOT / "docs" / "protocol.schema.json"


class _HexBytes(GenerateJsonSchema):
    """Byte strings are text of two hexadecimal digits a byte."""

    def bytes_schema(self, schema: core_schema.BytesSchema) -> dict[str, Any]:
        least, most = schema.get("min_length", 0), schema.get("max_length")
        counted = f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"
        return {"type": "string", "pattern": f"^([0-9a-f]{{2}}){counted}$"}


def document() -> str:
    """The schema file, as this version makes it."""
    models = [(rule.model, "validation") for rule in KINDS.values()]
    references, definitions = models_json_schema(models, schema_generator=_HexBytes)
    kinds = {kind.name.lower(): references[rule.model, "validation"] for kind, rule in KINDS.items()}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Messages of the F-TIS protocol, version {PROTOCOL_VERSION}",
        "description": "Written by scripts/schema.py from the models in ftis_protocol; docs/protocol.md has the rest.",
        "oneOf": [{"title": name, **reference} for name, reference in kinds.items()],
        **definitions,
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    current = PATH.exists() and PATH.read_text(encoding="utf-8") == document()
    if not current and "--check" not in arguments:
        PATH.write_text(document(), encoding="utf-8")
    words = "current" if current else "not current" if "--check" in arguments else "written"
    print(f"docs/{PATH.name}: {words}")
    return int(words == "not current")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
