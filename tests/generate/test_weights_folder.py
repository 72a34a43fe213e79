from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ftis_node.generate.weights_folder import sweep, weights_folder

HOLD = """
import sys
from pathlib import Path
from ftis_node.generate.weights_folder import weights_folder
with weights_folder(Path(sys.argv[1]), Path(sys.argv[2])) as folder:
    (folder / "weights-7.safetensors").write_bytes(b"x" * 1000)
    (folder / "vllm_dist_0").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def hold(state: Path, base: Path) -> tuple[subprocess.Popen[str], Path]:
    """A node that has a folder until it is killed."""
    command = [sys.executable, "-c", HOLD, str(state), str(base)]
    node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    return node, Path(node.stdout.readline().strip())


def kill(node: subprocess.Popen[str]) -> None:
    node.kill()
    node.communicate()


def test_a_folder_is_gone_after_its_run(tmp_path: Path) -> None:
    with weights_folder(tmp_path / "state", tmp_path) as folder:
        (folder / "w").touch()
        assert folder.parent == tmp_path
    assert not folder.exists()


def test_what_a_killed_node_left_goes_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    dead, left = hold(tmp_path / "one", tmp_path)
    living, kept = hold(tmp_path / "two", tmp_path)
    try:
        kill(dead)
        assert (left / "weights-7.safetensors").exists()
        with weights_folder(tmp_path / "three", tmp_path):
            assert not left.exists()
            assert (kept / "weights-7.safetensors").exists()
    finally:
        kill(living)
    assert sweep(tmp_path) == [kept]


def test_the_same_state_directory_has_no_other_node(tmp_path: Path) -> None:
    """Folders of older versions have no lock; the state directory's own lock says that nobody lives there."""
    with weights_folder(tmp_path / "state", tmp_path) as folder:
        name = folder.name[: -len(folder.name.split("-")[-1])]
    old = tmp_path / f"{name}old"
    old.mkdir()
    stranger = tmp_path / "ftis-weights-0123456789ab-old"
    stranger.mkdir()
    with weights_folder(tmp_path / "state", tmp_path):
        assert not old.exists()
        assert stranger.exists()


def test_without_shared_memory_the_disk_serves(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("ftis_node.generate.weights_folder.SHARED_MEMORY", tmp_path / "none")
    with weights_folder(tmp_path / "state") as folder:
        assert folder.is_dir()
    assert not folder.exists()
