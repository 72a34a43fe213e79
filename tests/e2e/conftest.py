"""A real swarm for a whole module, and command lines that are to be refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.asking import Answer, Ask
from e2e.living import Crowd
from ftis_node.cli import main
from ftis_node.lab.teach import ensure_taught
from ftis_node.lab.tiny import TinyConfig
from ftis_node.tasks.registry import describe

SHAPES = {
    "ann": TinyConfig(layers=2, hidden=64, alphabet="bytes"),
    "bob": TinyConfig(layers=3, hidden=96, alphabet="ascii", seed=1),
}


@pytest.fixture(scope="session")
def taught(pytestconfig: pytest.Config) -> dict[str, Path]:
    """Two small models with unlike tokenizers that half know one-digit sums and differences; taught once."""
    kept = os.environ.get("FTIS_CACHE")
    cache = Path(kept) if kept else pytestconfig.cache.mkdir("taught")
    spec = describe("arithmetic", operations="+-", digits=1)
    return {name: ensure_taught(shape, spec, cache, goal=0.5) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def crowd(taught: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """The seed, ann and bob; every process is ended afterwards, whatever a test did."""
    root = tmp_path_factory.mktemp("swarm")
    crowd = Crowd(root, taught)
    try:
        yield crowd
    finally:
        crowd.close()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command line on a state directory of its own; `toml` becomes its --config, `env` its environment."""
    monkeypatch.setenv("FTIS_SWARM__HOST", "127.0.0.1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def ask(*arguments: str, toml: str = "", state: Path = tmp_path / "state", **env: str) -> Answer:
        if toml:
            (tmp_path / "node.toml").write_text(toml)
            arguments += ("--config", str(tmp_path / "node.toml"))
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        code = main([*arguments, "--state", str(state)])
        for name in env:
            monkeypatch.delenv(name)
        shown = capsys.readouterr()
        assert shown.out == ""
        return Answer(code, shown.err, state)

    return ask
