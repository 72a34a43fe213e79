#!/usr/bin/env python3
"""Writes the pages of docs/ that are made from the code: cli.md, config.md and metrics.md.

python scripts/docs.py           write them
python scripts/docs.py --check   exit 1 and name those that are not current
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer.main

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "node"), str(ROOT / "protocol")]

from ftis_node import layering, metrics  # noqa: E402
from ftis_node.cli import app  # noqa: E402
from ftis_node.config import NodeConfig  # noqa: E402
from ftis_node.dashboard import layout  # noqa: E402
from ftis_node.store_rollouts import VERDICTS  # noqa: E402

_HELP_WIDTH = 100
_NOTE = "<!-- Written by scripts/docs.py; change the code and run it again. -->"


def pages() -> dict[str, str]:
    """File name in docs/ -> its content."""
    return {"cli.md": cli_page(), "config.md": config_page(), "metrics.md": metrics_page()}


def cli_page() -> str:
    lines = [
        "# Command line",
        _NOTE,
        "Flags win over environment variables, those over the file given with `--config`, and that over the defaults "
        "([config.md](config.md)). Remarks go to stderr, documents to stdout.",
        _table(
            ("Exit code", "Meaning"),
            [
                ("0", "done; also after the first Ctrl-C or SIGTERM to a node at work, which saves and says good-bye"),
                ("1", "our bug, or a part that gave up for the stated reason"),
                ("2", "a flag, file, model, task, key or invite that cannot work as given"),
                ("3", "a check of the machine failed"),
                ("4", "not allowed by the swarm or the operator"),
                ("5", "the swarm cannot be reached; the same command may work later"),
                ("130", "interrupted before there was anything to save, or at once by a second signal"),
            ],
        ),
    ]
    for name, command, context in _commands(typer.main.get_command(app), None, "ftis-node"):
        lines += [f"## {name}", f"```text\n{command.get_help(context).rstrip()}\n```"]
    return "\n\n".join(lines) + "\n"


def _commands(command: Any, parent: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    context = command.context_class(
        command, info_name=name.rpartition(" ")[2], parent=parent, terminal_width=_HELP_WIDTH,
        help_option_names=["-h", "--help"],
    )  # fmt: skip
    yield name, command, context
    for key, child in getattr(command, "commands", {}).items():
        yield from _commands(child, context, f"{name} {key}")


def config_page() -> str:
    lines = [
        "# Configuration",
        _NOTE,
        "A key can be set in a TOML file (`--config node.toml`), by an environment variable or, for the common ones, "
        "by a flag. The variable of `train.group_size` is `FTIS_TRAIN__GROUP_SIZE`; its lists are separated by "
        "commas, and `none` or nothing stands for none. A key that does not exist is an error.",
        '```toml\n[model]\nmodel = "./my-model"\n\n[train]\ngroup_size = 8\nown_share = 0.5\n```',
    ]
    for section, field in NodeConfig.model_fields.items():
        annotation: Any = field.annotation
        rows = [_config_row(key, info) for key, info in annotation.model_fields.items()]
        lines += [f"## [{section}]", annotation.__doc__, _table(("Key", "Default", "Unit", "Allowed", "Meaning"), rows)]
    lines += [
        "## Flags with another name",
        _table(("Flag", "Key"), [(f"`{flag}`", f"`{key}`") for key, flag in layering.FLAG_NAMES.items()]),
    ]
    return "\n\n".join(lines) + "\n"


def _config_row(key: str, info: Any) -> tuple[str, ...]:
    return (
        f"`{key}`",
        _shown(info.default),
        info.json_schema_extra["unit"],
        _allowed(info),
        info.description,
    )


def _shown(value: Any) -> str:
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _allowed(info: Any) -> str:
    """The choices or bounds of a key, in words."""
    annotation = info.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    choices = [choice for choice in get_args(annotation) if isinstance(choice, str)]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "max_length": "characters at most"}
    bounds = [
        f"{getattr(rule, name)} {word}" if name == "max_length" else f"{word} {getattr(rule, name)}"
        for rule in info.metadata
        for name, word in words.items()
        if getattr(rule, name, None) is not None
    ]
    if annotation is bool:
        return "`true`, `false`"
    return ", ".join([*bounds, *(["a list"] if "tuple" in str(annotation) else [])])


def metrics_page() -> str:
    rows = [
        (
            f"`{metric.name}`",
            metric.kind.value,
            metric.unit,
            f"`{metric.label}`" if metric.label else "",
            metric.meaning,
        )
        for metric in metrics.TABLE.values()
    ]
    lines = [
        "# Metrics",
        _NOTE,
        "Names and units follow Prometheus. A counter only grows and survives restarts; a gauge is a value at an "
        "optimiser step. Log-probabilities are natural, so divergences are in nats, per token of this node's own "
        "tokenizer.",
        _table(("Name", "Kind", "Unit", "Label", "Meaning"), rows),
        "`/metrics` adds `ftis_node_info` (1, with version and swarm as labels) and `ftis_data_age_seconds` (time "
        "since the node last wrote anything; it grows when the node hangs).",
        *_page_words(),
    ]
    return "\n\n".join(lines) + "\n"


def _page_words() -> list[str]:
    """The words of the page: its curves, its tiles and columns, and what can become of a completion."""
    lines = [
        "## Curves of the page",
        "The x axis of all curves is the optimiser step, the wall time, or the completion tokens that this node had "
        "sampled by then. What a node samples while it works towards a step counts at that step.",
    ]
    for section in layout.SECTIONS:
        rows = [
            (
                chart.title,
                line.label,
                f"`{line.series}`" + (", 10th to 90th percentile shaded" if line.band else ""),
            )
            for chart in section.charts
            for line in chart.lines
        ]
        lines += [f"### {section.title}", section.question, _table(("Chart", "Curve", "Series"), rows)]
    lines += ["## Words of the page", _table(("Word", "Meaning"), list(layout.WORDS.items()))]
    verdicts = [(f"`{word}`", meaning) for word, meaning in VERDICTS.items()]
    return [*lines, "## What became of a completion", _table(("Verdict", "Meaning"), verdicts)]


def _table(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headers, tuple("---" for _ in headers), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main(arguments: list[str]) -> int:
    stale = []
    for name, content in pages().items():
        path = ROOT / "docs" / name
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(f"docs/{name}")
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content, encoding="utf-8")
    print(f"{'not current' if '--check' in arguments else 'written'}: {', '.join(stale) or 'none'}")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
