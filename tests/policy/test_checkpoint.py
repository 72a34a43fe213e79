"""Checkpoints: an exact continuation, a ring, and what happens when files are damaged or belong to another model."""

from __future__ import annotations

import errno
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ftis_node.errors import UsageError
from ftis_node.policy import checkpoint
from ftis_node.policy.checkpoint import CheckpointStore
from ftis_node.policy.model import Trainable, load_policy
from ftis_node.policy.update import Updater, UpdateSettings
from ftis_node.records import JudgedGroup, TrainGroup

ROWS = ((50, 51, 2), (60, 2), (70, 71, 72, 2), (80, 2))
SETTINGS = UpdateSettings(learning_rate=1e-3, warmup_steps=3)

MakeGroup = Callable[..., TrainGroup]


def fresh(model: Path, trainable: Trainable = "full") -> Updater:
    policy = load_policy(model, trainable=trainable, device="cpu", compute_dtype="float32")
    return Updater(policy, SETTINGS)


def weights(updater: Updater) -> list[torch.Tensor]:
    return [p.detach().clone() for p in updater.policy.trainable_parameters.values()]


def steps(updater: Updater, group: JudgedGroup, count: int) -> None:
    for _ in range(count):
        assert updater.update([group], 1).stepped


@pytest.fixture
def group(make_group: MakeGroup) -> JudgedGroup:
    return JudgedGroup(make_group(ROWS, (1.0, 0.0, 1.0, 0.0)))


@pytest.mark.parametrize("trainable", ["full", "lora"])
def test_going_on_from_a_checkpoint_is_exact(
    tiny_dir: Path, tmp_path: Path, group: JudgedGroup, trainable: Trainable
) -> None:
    store, straight = CheckpointStore(tmp_path), fresh(tiny_dir, trainable)
    steps(straight, group, 2)
    store.save(straight, {"cursor": 17, "seen": ["a"]})
    drawn = torch.rand(3), random.random()
    steps(straight, group, 2)

    resumed = fresh(tiny_dir, trainable)
    stored = store.restore(resumed)
    assert stored is not None
    assert (stored.policy_version, stored.extra, stored.damaged) == (2, {"cursor": 17, "seen": ["a"]}, ())
    assert resumed.policy.version == 2
    assert torch.equal(torch.rand(3), drawn[0])
    assert random.random() == drawn[1]
    steps(resumed, group, 2)
    assert resumed.policy.version == straight.policy.version == 4
    assert all(torch.equal(a, b) for a, b in zip(weights(resumed), weights(straight), strict=True))


def test_a_save_disturbs_nothing(tiny_dir: Path, tmp_path: Path, group: JudgedGroup) -> None:
    with_saves, without = fresh(tiny_dir), fresh(tiny_dir)
    for updater in (with_saves, without):
        steps(updater, group, 1)
        if updater is with_saves:
            CheckpointStore(tmp_path).save(updater)
        steps(updater, group, 1)
    assert all(torch.equal(a, b) for a, b in zip(weights(with_saves), weights(without), strict=True))


def test_nothing_stored(tiny_dir: Path, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "none yet")
    assert store.latest() is None
    assert store.restore(fresh(tiny_dir)) is None


def test_the_ring_keeps_the_newest(tiny_dir: Path, tmp_path: Path) -> None:
    store, updater = CheckpointStore(tmp_path, keep=2), fresh(tiny_dir)
    for turn in range(12):
        store.save(updater, {"turn": turn})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-00000011", "checkpoint-00000012"]
    latest = store.latest()
    assert latest is not None
    assert latest.extra == {"turn": 11}


class TestDamage:
    @pytest.fixture
    def store(self, tiny_dir: Path, tmp_path: Path) -> CheckpointStore:
        made, updater = CheckpointStore(tmp_path), fresh(tiny_dir)
        for turn in (1, 2):
            made.save(updater, {"turn": turn})
        return made

    @pytest.mark.parametrize("name", ["weights.safetensors", "trainer.pt", "state.json", "SHA256SUMS"])
    @pytest.mark.parametrize("harm", ["flip", "cut", "empty", "gone"])
    def test_the_one_before_is_taken_and_it_is_said(
        self, store: CheckpointStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, harm: str
    ) -> None:
        file = tmp_path / "checkpoint-00000002" / name
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        if harm == "flip":
            content[middle] ^= 1
        file.write_bytes({"cut": content[:middle], "empty": b""}.get(harm, bytes(content)))
        if harm == "gone":
            file.unlink()
        with caplog.at_level(logging.WARNING):
            found = store.latest()
        assert found is not None
        assert (found.path.name, found.damaged, found.extra) == (
            "checkpoint-00000001", ("checkpoint-00000002",), {"turn": 1},
        )  # fmt: skip
        assert "checkpoint-00000002 is damaged" in caplog.text

    def test_all_damaged_is_an_error_not_a_new_beginning(self, store: CheckpointStore, tmp_path: Path) -> None:
        for path in tmp_path.glob("*/state.json"):
            path.write_text("{}")
        with pytest.raises(UsageError, match="all checkpoints"):
            store.latest()

    def test_a_save_after_damage_gets_a_new_number(
        self, store: CheckpointStore, tiny_dir: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "checkpoint-00000002" / "state.json").write_text("{}")
        assert store.save(fresh(tiny_dir)).name == "checkpoint-00000003"

    def test_left_overs_of_a_crash_are_ignored_and_cleared(
        self, store: CheckpointStore, tiny_dir: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(tmp_path / "checkpoint-00000002", tmp_path / ".checkpoint-00000003")
        latest = store.latest()
        assert latest is not None
        assert latest.path.name == "checkpoint-00000002"
        assert store.save(fresh(tiny_dir)).name == "checkpoint-00000003"
        assert not list(tmp_path.glob(".*"))

    def test_a_crash_anywhere_inside_a_save_keeps_the_last_one(
        self, store: CheckpointStore, tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        updater = fresh(tiny_dir)
        for place in ("save_file", "_sha256", "_flush"):
            with monkeypatch.context() as patch:
                patch.setattr(checkpoint, place, _full_disk)
                with pytest.raises(UsageError, match="No space left") as caught:
                    store.save(updater)
            assert "space" in caught.value.hint
            latest = store.latest()
            assert latest is not None
            assert (latest.path.name, latest.damaged) == ("checkpoint-00000002", ())
        assert not list(tmp_path.glob(".*"))

    def test_nan_in_the_callers_state_is_refused_before_anything_is_lost(
        self, store: CheckpointStore, tiny_dir: Path
    ) -> None:
        with pytest.raises(ValueError, match="JSON"):
            store.save(fresh(tiny_dir), {"loss": float("nan")})
        latest = store.latest()
        assert latest is not None
        assert latest.path.name == "checkpoint-00000002"


def _full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_another_model_is_refused_and_nothing_changes(tiny_dir: Path, untied_dir: Path, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(fresh(tiny_dir))
    for other in (fresh(untied_dir), fresh(tiny_dir, "lora")):
        before = weights(other)
        with pytest.raises(UsageError, match="belongs to another model") as caught:
            store.restore(other)
        assert caught.value.hint
        assert all(torch.equal(a, b) for a, b in zip(weights(other), before, strict=True))


def test_another_format_is_refused(tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    store.save(fresh(tiny_dir))
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    with pytest.raises(UsageError, match="format 1"):
        store.latest()


def test_a_new_learning_rate_takes_effect_after_a_restore(tiny_dir: Path, tmp_path: Path, group: JudgedGroup) -> None:
    store, before = CheckpointStore(tmp_path), fresh(tiny_dir)
    steps(before, group, 3)
    store.save(before)
    after = Updater(load_policy(tiny_dir, device="cpu"), UpdateSettings(learning_rate=5e-4))
    store.restore(after)
    assert after.update([group], 1).learning_rate == 5e-4
