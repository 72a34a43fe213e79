"""What a node learned leaves it as an ordinary model, with a card; and it is measured against what it began with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.asking import Ask
from e2e.living import TASK
from ftis_node.cli import main
from swarm.dht_arena import over_the_network

pytestmark = over_the_network

QUICK = {"FTIS_MODEL__GENERATOR": "transformers", "FTIS_TRAIN__PROBE_ITEMS": "8", "FTIS_TRAIN__LEARNING_RATE": "0.001"}


def test_a_checkpoint_leaves_as_a_model(
    ask: Ask, taught: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(taught["ann"])
    assert main(["export", "--state", str(tmp_path / "none"), "--out", str(tmp_path / "x")]) == 2
    assert "there is no node" in capsys.readouterr().err
    answer = ask("create", "--name", "sums", "--task", TASK, "--steps", "2", "--model", model, **QUICK)
    assert answer.code == 0, answer.talk
    line = ["export", "--state", str(answer.state), "--dtype", "float32", "--json", "--out"]
    assert main([*line, str(tmp_path / "model")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["step"], facts["base_model"], facts["swarm"]) == (2, model, "sums")
    card = (tmp_path / "model" / "README.md").read_text()
    assert card.startswith(f'---\nbase_model: "{model}"\nlibrary_name: "transformers"')
    for part in ("sums", "arithmetic", "2 batches", f"{facts['pass_at_1_last']:.3f} at step 2"):
        assert part in card

    assert main([*line, str(tmp_path / "model")]) == 2
    assert "not empty" in capsys.readouterr().err
    assert main([*line, str(tmp_path / "adapter"), "--adapter"]) == 2
    assert "no adapter" in capsys.readouterr().err

    measure = ["eval", "--count", "16", "--generator", "transformers", "--json"]
    assert main([*measure, "--state", str(answer.state)]) == 0
    of_node = json.loads(capsys.readouterr().out)
    assert main([*measure, "--model", str(tmp_path / "model"), "--task", TASK, "--baseline", model]) == 0
    of_export = json.loads(capsys.readouterr().out)
    assert of_node["right"] == of_export["right"]
    assert of_node["paired"] == of_export["paired"]
    paired = of_node["paired"]
    assert paired["items"] == 16
    assert paired["difference"] == (of_node["right"] - of_node["baseline"]["right"]) / 16
    low, high = paired["interval_95"]
    assert low <= paired["difference"] <= high
