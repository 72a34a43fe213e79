"""`ftis-node config show`: every setting, its value and who set it."""

from __future__ import annotations

import json
from typing import Any

from ftis_node.commands.options import ConfigOptions
from ftis_node.console import Console, table
from ftis_node.layering import CONFIG_FORMAT, DEFAULT, Layered, fields


def show(options: ConfigOptions, console: Console) -> None:
    """Print all settings with their sources; with `toml` those that differ from the defaults, as a file."""
    layered = options.layered()
    values = {key: _value(layered, key) for key in fields()}
    if options.json:
        console.document({key: {"value": value, "source": layered.source(key)} for key, value in values.items()})
    elif options.toml:
        console.document(_toml({key: value for key, value in values.items() if layered.source(key) != DEFAULT}))
    else:
        rows = [(key, _shown(value), layered.source(key)) for key, value in values.items()]
        console.document(table(("key", "value", "set by"), rows))


def _value(layered: Layered, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(layered.config, section).model_dump(mode="json")[name]


def _shown(value: Any) -> str:
    return "none" if value is None or value in ("", [], ()) else json.dumps(value).strip('"')


def _toml(values: dict[str, Any]) -> str:
    """JSON's spelling of text, numbers, lists and booleans is valid TOML; what is None is left out."""
    lines, sections = [f"format = {CONFIG_FORMAT}"], dict.fromkeys(key.partition(".")[0] for key in values)
    for section in sections:
        lines += ["", f"[{section}]"]
        lines += [
            f"{key.partition('.')[2]} = {json.dumps(value)}"
            for key, value in values.items()
            if key.startswith(f"{section}.") and value is not None
        ]
    return "\n".join(lines)
