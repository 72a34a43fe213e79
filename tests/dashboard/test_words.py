"""Every word of the page is explained: in its own list, and in docs/metrics.md."""

from __future__ import annotations

import re
from pathlib import Path

from ftis_node import metrics
from ftis_node.dashboard.app import STATIC
from ftis_node.dashboard.layout import SECTIONS, WORDS, layout
from ftis_node.policy import ftis_fates
from ftis_node.store_rollouts import VERDICTS

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_curve_is_one_of_the_table_and_in_the_docs():
    for section in SECTIONS:
        for chart in section.charts:
            for line in chart.lines:
                for name in (line.series, *(line.band or ())):
                    assert metrics.metric_of(name)
                assert f"| {chart.title} | {line.label} | `{line.series}`" in DOCS


def test_every_word_and_verdict_is_in_the_docs():
    for word, meaning in {**WORDS, **{f"`{key}`": text for key, text in VERDICTS.items()}}.items():
        assert f"| {word} | {meaning} |" in DOCS


def test_every_label_that_the_page_writes_is_explained():
    scripts = {path.name: path.read_text() for path in STATIC.glob("*.js")}
    tiles = re.findall(r'put\("\w+", "([^"]+)"', scripts["page.js"])
    columns = [name for heads in re.findall(r"const heads = \[(.*?)\];", scripts["lists.js"], re.DOTALL)
               for name in re.findall(r'"([^"]+)"', heads)]  # fmt: skip
    assert len(tiles) > 10
    assert len(columns) > 15
    assert set(tiles) | set(columns) <= set(WORDS)


def test_every_fate_of_a_completion_has_a_word():
    told = set(re.findall(r'"(\w+)"', Path(ftis_fates.__file__).read_text().partition("def _fate")[2]))
    assert told <= set(VERDICTS)


def test_an_observer_has_no_learning_to_show():
    assert [section["key"] for section in layout("observer")["sections"]] == ["swarm"]
