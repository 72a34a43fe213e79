"""From a plan to an engine: what the configuration says reaches the process that samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftis_node.config import ModelSection
from ftis_node.errors import EngineError
from ftis_node.generate import vllm_process
from ftis_node.generate.choose import Choice
from ftis_node.generate.jobs import Proof
from ftis_node.learner import Places, open_policy, start_generator
from ftis_node.planning import EnginePlan


class Recorder:
    """Stands where an engine's process would be started."""

    gap = 0.0

    def __init__(self, *arguments: Any) -> None:
        Recorder.arguments = arguments
        Recorder.proofs = []

    def score(self, proof: Proof) -> float:
        self.proofs.append(proof)
        return self.gap

    def close(self) -> None:
        """Holds nothing."""


@pytest.fixture
def start(monkeypatch, tiny_models, tmp_path: Path):
    monkeypatch.setattr(vllm_process, "EngineKeeper", Recorder)
    monkeypatch.setattr("ftis_node.learner.choose_generator", lambda *_: Choice("vllm", "it is there"))
    monkeypatch.setattr("ftis_node.planning.cores", lambda: 4)
    monkeypatch.setattr("ftis_node.learner.learner_threads", lambda: 3)
    places = Places(tmp_path / "checkpoints", tmp_path / "w" / "w.safetensors", tmp_path / "engine", tmp_path / "cache")
    said: list[str] = []

    def make(**keys: Any) -> tuple[Any, list[str]]:
        model = ModelSection(model=str(tiny_models[0]), device="cpu", **keys)
        plan = EnginePlan("own", "beside the learner")
        return start_generator(model, open_policy(model, 0), places, said.append, plan, lambda kind, text: None), said

    return make


def test_settings_reach_the_engines_process(start, tiny_models, tmp_path: Path):
    generator, said = start(request_seconds=7.0, running_requests="abort", kv_cache_mebibytes=32)
    settings, version, care, alarm, _ = Recorder.arguments
    assert (settings.model_dir, settings.dtype, settings.kv_cache_bytes) == (tiny_models[0], "float32", 32 << 20)
    assert (version, alarm) == (0, 0.05)
    assert (care.threads, care.request_seconds, care.log_path) == (1, 7.0, tmp_path / "engine.log")
    assert care.tokenizer == generator._codec.fingerprint
    assert generator._running == "abort"
    assert "generator vllm: it is there; beside the learner" in said


def test_the_first_weights_are_checked_too(start, monkeypatch):
    start()
    (proof,) = Recorder.proofs
    assert len(proof.logprobs) == len(proof.completion_ids) > 4
    monkeypatch.setattr(Recorder, "gap", 0.2)
    with pytest.raises(EngineError, match=r"is 0\.200 nats a token away"):
        start()
