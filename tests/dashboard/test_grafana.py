"""The dashboard file for Grafana asks only for series that a node has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dashboard.serving import Served
from ftis_node import metrics

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "observe"


def test_every_series_of_the_dashboard_file_exists(page: Served):
    panels = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
    questions = [target["expr"] for panel in panels for target in panel["targets"]]
    asked = {name for question in questions for name in re.findall(r"ftis_\w+", question)}
    assert asked - set(metrics.TABLE) == {"ftis_data_age_seconds"}
    assert "ftis_data_age_seconds" in page.ask("/metrics").body.decode()


def test_the_scrape_example_names_the_default_port_and_path():
    text = (FOLDER / "prometheus.yml").read_text()
    assert "metrics_path: /metrics" in text
    assert ":8470" in text
