"""The bench of real peers, small: everything published is found, entrances may die, newcomers come in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"

pytestmark = pytest.mark.swarm


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_eight_peers_lose_nothing_and_outlive_their_entrances(tmp_path: Path) -> None:
    report = tmp_path / "8.json"
    run("swarm.py", "8", "--steps", "2", "--step-seconds", "6", "--kill", "0.3", "--json", str(report))
    result = json.loads(report.read_text())
    assert result["published"] == result["visible"] == result["fetched"] == 16
    assert result["refused"] == result["limited"] == {}
    assert result["size_estimates"] == [8, 8, 8]
    kill = result["kill"]
    assert kill["killed"] == 3
    assert kill["living_readable_after_renewal"] == kill["frames_of_living"] > 0
    assert [newcomer["joined"] for newcomer in kill["newcomers"]] == [True] * 3
    assert all(newcomer["reads"] == "10/10" for newcomer in kill["newcomers"])

    compared = run("scale.py", "--check", str(report))
    row = json.loads(compared.replace("'", '"'))
    for kind in ("payload", "control"):
        assert 0.5 < row[f"{kind} simulated"] / row[f"{kind} real"] < 2.0


def test_what_a_node_pays_does_not_grow_with_the_swarm() -> None:
    lines = run("scale.py", "--nodes", "100", "400").splitlines()
    small, large = (json.loads(line.replace("'", '"')) for line in lines)
    assert large["payload_bytes_per_node_step"] < 1.1 * small["payload_bytes_per_node_step"]
    assert large["control_bytes_per_node_step"] < 1.4 * small["control_bytes_per_node_step"]
    assert large["hungry_share"] < 0.1
