"""The shape of the code: which room imports what, what a light start loads, and how long things may get."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "node" / "ftis_node", ROOT / "protocol" / "ftis_protocol")
SOURCES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
ALL_PYTHON = SOURCES + sorted((ROOT / "scripts").rglob("*.py")) + sorted((ROOT / "tests").rglob("*.py"))

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}

# The two places that may catch everything: what supervises the loops, and the edge of the web server.
BROAD_EXCEPT_ALLOWED = ("ftis_node/app.py", "ftis_node/dashboard/api.py")

PROTOCOL_MAY_IMPORT = {"pydantic", "pydantic_core", "msgpack", "zstandard", "cryptography", "ftis_protocol"}
HEAVY = (
    "torch", "transformers", "vllm", "hivemind", "peft", "numpy", "safetensors", "accelerate", "gguf",
    "reasoning_gym", "starlette", "uvicorn", "pebble",
)  # fmt: skip


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _run(code: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that sees the two packages of this checkout."""
    search = f"import sys; sys.path[:0] = {[str(package.parent) for package in PACKAGES]!r}\n"
    return subprocess.run([sys.executable, "-c", search + code], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_rooms_import_only_what_lies_below_them() -> None:
    code = "from importlinter.cli import lint_imports_command as run; run(['--no-logo', '--no-cache'])"
    result = _run(code)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("module", ["ftis_protocol.envelope", "ftis_node.cli"])
def test_a_light_start_loads_nothing_heavy(module: str) -> None:
    code = f"import {module}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    result = _run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_the_protocol_needs_four_libraries() -> None:
    foreign = {
        f"{_name(path)}: {module}"
        for path in SOURCES
        if "ftis_protocol" in path.parts
        for module in _imported(path)
        if module not in PROTOCOL_MAY_IMPORT and module not in sys.stdlib_module_names
    }
    assert not foreign


def _imported(path: Path) -> Iterator[str]:
    """Top-level names of everything a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0]


def test_everything_is_caught_in_two_places_at_most() -> None:
    found = [f"{_name(path)}:{line}" for path in SOURCES for line in _broad_excepts(path)]
    misplaced = [place for place in found if not any(allowed in place for allowed in BROAD_EXCEPT_ALLOWED)]
    assert not misplaced
    assert len(found) <= 2


def _broad_excepts(path: Path) -> Iterator[int]:
    """Lines of handlers that catch everything."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        broad = any(kind is None or getattr(kind, "id", "") in {"Exception", "BaseException"} for kind in caught)
        if broad:
            yield node.lineno


def test_files_stay_short() -> None:
    lengths = {_name(path): len(path.read_text().splitlines()) for path in ALL_PYTHON}
    assert not {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}


def test_functions_stay_short() -> None:
    too_long = {
        f"{_name(path)}:{node.name}": length
        for path in ALL_PYTHON
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not too_long


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert not [_name(path) for path in SOURCES if path.stem in VAGUE_NAMES or path.parent.name in VAGUE_NAMES]
