"""Pages made from the code are current, and complete."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ftis_node import layering, metrics

ROOT = Path(__file__).resolve().parents[2]


def _pages() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("ftis_docs", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


@pytest.fixture(scope="module")
def pages():
    return _pages()


@pytest.mark.parametrize("name", ["cli.md", "config.md", "metrics.md"])
def test_current(pages, name):
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == pages[name], "run: python scripts/docs.py"


def test_every_metric_is_listed_once():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for name, metric in metrics.TABLE.items():
        assert page.partition("## Curves of the page")[0].count(f"`{name}`") == 1
        assert metric.meaning in page


def test_every_key_is_listed():
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    for name, info in layering.fields().items():
        section, _, key = name.partition(".")
        part = page.partition(f"## [{section}]")[2].partition("\n## ")[0]
        (row,) = [line for line in part.splitlines() if line.startswith(f"| `{key}` ")]
        assert info.description.replace("|", "\\|") in row


def test_metric_names_follow_their_kind():
    for name, metric in metrics.TABLE.items():
        assert name.startswith("ftis_")
        assert name.endswith("_total") == (metric.kind is metrics.Kind.COUNTER), name
        if metric.unit in ("seconds", "bytes", "ratio", "nats"):
            ending = name.removesuffix("_total")
            assert metric.unit in ending or "mean" in ending, name
