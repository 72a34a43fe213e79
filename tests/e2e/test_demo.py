"""The demonstration as its user runs it: real SmolLM2, real daemons, and learning that shows in the table."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.real_model]

#: what honest nodes may refuse each other: a character outside one's alphabet, or a text too long in one's own tokens
HONEST_REFUSALS = {"round_trip", "too_long"}


def test_every_node_learns_from_the_others_and_smollm2_clearly_improves() -> None:
    command = [sys.executable, "-m", "ftis_node", "demo", "--json", "--steps", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    nodes = {node["name"]: node for node in report["nodes"]}
    assert len({node["tokenizer"] for node in nodes.values()}) == 2
    for name, node in nodes.items():
        assert node["foreign_used"] > 0, name
        assert set(node["refused"]) <= HONEST_REFUSALS, name
        first, last = node["pass_at_1"]
        if node["model"].startswith("SmolLM2"):
            assert last - first >= 0.15, name
    assert report["wire"]["bytes_per_token"] > 0
