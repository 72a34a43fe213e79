"""One configuration out of four layers: defaults < TOML file < environment < flags, and where each value came from.

An environment variable names section and key: `FTIS_TRAIN__GROUP_SIZE=8`; lists are separated by commas. A key that no
section knows is an error with the nearest known one as a hint, never ignored.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from ftis_node.config import NodeConfig
from ftis_node.errors import UsageError

ENVIRONMENT_PREFIX = "FTIS_"
#: the form of the files that this version reads; a file may name its own with `format = 1` before its sections
CONFIG_FORMAT = 1
DEFAULT = "default"

# Flags that are not called like their key.
FLAG_NAMES = {
    "swarm.invite": "--swarm",
    "node.state_dir": "--state",
    "node.log_level": "--verbose",
    "train.max_steps": "--steps",
}


@dataclass(frozen=True, slots=True)
class Layered:
    """The configuration, and for each `section.key` who set it: `default`, a file, a variable or a flag."""

    config: NodeConfig
    sources: dict[str, str]

    def source(self, key: str) -> str:
        """Who set `section.key`."""
        return self.sources[key]


@cache
def fields() -> dict[str, FieldInfo]:
    """`section.key` -> its definition, in the order of the sections."""
    return {
        f"{section}.{key}": info
        for section, field in NodeConfig.model_fields.items()
        for key, info in field.annotation.model_fields.items()  # type: ignore[union-attr]
    }


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Layered:
    """Merge the layers. `flags` maps `section.key` to a value; None means that the flag was not given.

    Raises UsageError for a file that cannot be read, an unknown key, or a value that does not fit.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys(fields(), DEFAULT)
    layers = [*_from_file(file), *_from_environment(environment or {}), *_from_flags(flags or {})]
    for key, value, source in layers:
        values[key] = value
        sources[key] = source
    return Layered(_build(values, sources), sources)


def _build(values: Mapping[str, Any], sources: Mapping[str, str]) -> NodeConfig:
    nested: dict[str, dict[str, Any]] = {section: {} for section in NodeConfig.model_fields}
    for dotted, value in values.items():
        section, _, key = dotted.partition(".")
        nested[section][key] = value
    try:
        return NodeConfig.model_validate(nested)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][:2])
        if where in sources:
            raise _misfit(where, first["input"], sources[where], error) from None
        given = sorted({source for key, source in sources.items() if key.startswith(where) and source != DEFAULT})
        raise UsageError(
            f"section [{where}] ({', '.join(given)}): {first['msg'].removeprefix('Value error, ')}",
            hint=f"Correct the value; docs/config.md lists every key of [{where}].",
        ) from None


def _from_file(file: Path | None) -> Iterator[tuple[str, Any, str]]:
    """(key, value, source) of each line of a TOML file; values must have their TOML type."""
    if file is None:
        return
    content = _read(file)
    _check_format(file, content.pop("format", CONFIG_FORMAT))
    for section, table in content.items():
        if section not in NodeConfig.model_fields:
            raise _unknown(section, str(file))
        if not isinstance(table, dict):
            raise UsageError(f"{file}: {section} must be a section", hint=f"Write [{section}] with keys below it.")
        for key, value in table.items():
            name = f"{section}.{key}"
            if name not in fields():
                raise _unknown(name, str(file))
            yield name, _checked(name, value, str(file), _strict(name)), str(file)


def _check_format(file: Path, found: object) -> None:
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise UsageError(f"{file}: format = {found!r} is not a number of a format", hint=f"Write {CONFIG_FORMAT}.")
    if found > CONFIG_FORMAT:
        raise UsageError(
            f"{file} has format {found}, written for a newer ftis-node; this one reads up to {CONFIG_FORMAT}",
            hint="Update ftis-node, or write the file anew with `ftis-node config show --toml`.",
        )


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="Check the path given to --config.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not text in UTF-8", hint="Save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not valid TOML: {error}", hint='Strings need quotes: name = "otter".') from None


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".", 1)
        if name in fields():
            yield name, _parsed(name, text, variable), variable
        elif "." in name or get_close_matches(name, _bare_keys(), cutoff=0.85):
            raise _unknown(name, variable)


def _from_flags(flags: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    for name, value in flags.items():
        assert name in fields(), name
        if value is not None:
            yield name, value, FLAG_NAMES.get(name, "--" + name.partition(".")[2].replace("_", "-"))


def _parsed(name: str, text: str, variable: str) -> Any:
    """The value that the text of a variable stands for."""
    annotation = fields()[name].annotation
    if NoneType in get_args(annotation) and text.lower() in ("", "none"):
        return None
    if get_origin(annotation) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return _checked(name, text, variable, _adapter(name).validate_strings)


def _checked(name: str, value: Any, source: str, validate: Callable[[Any], Any]) -> Any:
    try:
        return validate(value)
    except ValidationError as error:
        raise _misfit(name, value, source, error) from None


def _misfit(name: str, value: Any, source: str, error: ValidationError) -> UsageError:
    return UsageError(
        f"{name} = {value!r} ({source}): the value {_expected(error.errors()[0])}",
        hint=f"{name}: {fields()[name].description}",
    )


# What does not fit, in words; {} takes what pydantic names as the bound.
_EXPECTED = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text in quotes",
    "tuple_type": "must be a list",
    "path_type": "must be a path",
}


def _expected(error: Any) -> str:
    """What a value must be, without a library's wording."""
    if (words := _EXPECTED.get(error["type"])) is not None:
        return words.format(**error.get("ctx", {}))
    return str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ").replace("should", "must")


def _unknown(name: str, source: str) -> UsageError:
    nearest = _nearest(name)
    if source.startswith(ENVIRONMENT_PREFIX):
        nearest = nearest and ENVIRONMENT_PREFIX + nearest.replace(".", "__").upper()
        message = f"unknown variable {source}"
    else:
        message = f"unknown key {name} in {source}"
    return UsageError(message, hint=f"Did you mean {nearest}?" if nearest else "docs/config.md lists every key.")


def _nearest(name: str) -> str:
    """The key or section meant by a misspelt one, also when it stands in the wrong section; empty when none is near."""
    known = (*NodeConfig.model_fields, *fields())
    bare = name.rpartition(".")[2]
    alike = get_close_matches(bare, _bare_keys(), n=1, cutoff=0.8)
    by_key = [each for each in known if "." in each and each.rpartition(".")[2] in alike]
    return next(iter(by_key or get_close_matches(name, known, n=1, cutoff=0.6)), "")


@cache
def _bare_keys() -> tuple[str, ...]:
    return tuple(name.partition(".")[2] for name in fields())


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    annotation: Any = fields()[name].annotation
    metadata = tuple(fields()[name].metadata)
    return TypeAdapter(Annotated[(annotation, *metadata)] if metadata else annotation)


def _strict(name: str) -> Callable[[Any], Any]:
    """Validation of a TOML value: its type must fit as it is ("4" is no number), but a list serves as a tuple."""
    return lambda value: _adapter(name).validate_json(json.dumps(to_jsonable_python(value)), strict=True)
