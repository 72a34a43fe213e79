"""A laboratory that needs no teaching, no processes and no network: for the loops, the app and the harness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftis_node import app
from ftis_node.lab.harness import LabPlan, manifest_for
from ftis_node.lab.tiny import make_tiny
from ftis_node.tasks import registry
from ftis_protocol.manifest import SwarmManifest, TaskSpec
from inline_pool import InlinePool

MakePlan = Callable[..., LabPlan]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in one order, so that equal runs are equal to the last bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Callable[..., SwarmManifest]:
    """Rules of a swarm on the task of letters.py; parameters of the task as arguments."""
    monkeypatch.setitem(registry.BUILT_IN, "letters", "letters:LettersTask")
    monkeypatch.setattr(app, "VerifyPool", InlinePool)

    def rules(**parameters: Any) -> SwarmManifest:
        return manifest_for([TaskSpec(name="letters", version=1, parameters=parameters)], max_completion_tokens=3)

    return rules


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Two strangers with one layer; one token per ASCII character, so that each can read what the other says."""
    folder = tmp_path_factory.mktemp("tiny")
    return [make_tiny(folder / f"tiny-{n}", seed=n, layers=1, hidden=32, alphabet="ascii") for n in range(2)]


@pytest.fixture
def plan(tiny_models: Sequence[Path]) -> MakePlan:
    """A plan by name; keyword arguments are `section__key`."""

    def make(name: str = "a", *, model: int = 0, **settings: Any) -> LabPlan:
        sections: dict[str, dict[str, object]] = {
            "train": {"groups_per_step": 4, "group_size": 4, "learning_rate": 1e-3, "probe_every_steps": 0},
            "receive": {"groups_per_step": 2},
            "model": {"device": "cpu"},
            "node": {"step_seconds": 60},
        }
        for key, value in settings.items():
            section, _, field = key.partition("__")
            sections.setdefault(section, {})[field] = value
        return LabPlan(name, tiny_models[model], sections)

    return make
