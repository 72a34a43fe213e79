"""What `create`, `join` and `seed` have in common, as far as it needs no swarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftis_node.commands import running
from ftis_node.state import StateDir


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for the system's shared memory."""
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(running, "SHARED_MEMORY", place)
    return place


def test_weights_that_a_killed_node_left_in_memory_are_removed(memory: Path, tmp_path: Path):
    mine, other = (StateDir.open(tmp_path / name) for name in ("mine", "other"))
    with running._weights_folder(other) as of_other:
        killed = running._weights_folder(mine)
        left = killed.__enter__()
        (left / "weights.safetensors").write_bytes(b"many")
        with running._weights_folder(mine) as fresh:
            assert sorted(memory.iterdir()) == sorted((of_other, fresh))
            assert list(fresh.iterdir()) == []
    assert list(memory.iterdir()) == []


def test_without_shared_memory_the_disk_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running, "SHARED_MEMORY", tmp_path / "none")
    with running._weights_folder(StateDir.open(tmp_path / "state")) as folder:
        assert folder.is_dir()
    assert not folder.exists()
