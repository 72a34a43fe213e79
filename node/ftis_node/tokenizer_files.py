"""Finding and reading a model's tokenizer, with errors that a person can act on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ftis_node.errors import UsageError

MODEL_CONFIG = "config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


def load_tokenizer(path: str | Path) -> tuple[Any, Path | None]:
    """The fast tokenizer of a checkpoint directory or hub name, and the directory that holds the model's own files
    (None if no configuration came with it). Raises UsageError."""
    directory = checkpoint_directory(path)
    if directory is not None:
        _check_directory(directory)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory or path))
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise _unreadable(path, directory, error) from error
    if not getattr(tokenizer, "is_fast", False):
        raise UsageError(f"{path}: its tokenizer has no fast form", hint="Convert it so that it has a tokenizer.json.")
    if tokenizer.eos_token_id is None:
        raise UsageError(
            f"{path}: its tokenizer names no end token", hint='Set "eos_token" in its tokenizer_config.json.'
        )
    return tokenizer, directory or _cached_directory(str(path))


def checkpoint_directory(path: str | Path) -> Path | None:
    """`path` as a local directory, or None where it is a model name for the hub. Raises UsageError if it can only be
    a local path and nothing is there."""
    place = Path(path).expanduser()
    if place.is_dir():
        return place
    if place.exists():
        raise UsageError(
            f"{path} is a file, not a checkpoint directory",
            hint="Name the directory that holds config.json and tokenizer.json.",
        )
    text = str(path)
    if isinstance(path, Path) or text.startswith(("/", ".", "~")) or text.count("/") != 1 or text.endswith("/"):
        raise UsageError(
            f"no model at {path}", hint="Check the path, or give a model name of the form owner/name from the hub."
        )
    return None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no such file. Raises UsageError if it is damaged."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is damaged: {error}", hint="Fetch or copy the model again.") from error
    return content if isinstance(content, dict) else {}


def _check_directory(directory: Path) -> None:
    if not any((directory / name).exists() for name in TOKENIZER_FILES):
        raise UsageError(
            f"{directory} holds no tokenizer ({', '.join(TOKENIZER_FILES)})",
            hint="Name a checkpoint directory as save_pretrained writes it, tokenizer included.",
        )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        read_json(directory / name)


def _unreadable(path: str | Path, directory: Path | None, error: BaseException) -> UsageError:
    if directory is not None:
        return UsageError(f"{path}: cannot read its tokenizer: {error}", hint="Fetch or copy the model again.")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}:
        return UsageError(
            f"model {path} is not in the local cache and HF_HUB_OFFLINE forbids fetching it",
            hint="Unset HF_HUB_OFFLINE, fetch the model beforehand, or give the path of a checkpoint directory.",
        )
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UsageError(
        f"cannot fetch the tokenizer of model {path}: {first_line}",
        hint="Check the name, the network and whether the model asks for a login; a local directory works as well.",
    )


def _cached_directory(name: str) -> Path | None:
    """Where the hub's cache keeps the configuration of a model that was just fetched; None if it has none."""
    from transformers.utils import cached_file

    try:
        found = cached_file(name, MODEL_CONFIG, _raise_exceptions_for_missing_entries=False)
    except OSError:
        return None
    return Path(found).parent if found else None
