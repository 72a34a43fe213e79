"""A tracker gets every value once, and one that is missing says what to install."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from dashboard.synthetic import make
from ftis_node import metrics
from ftis_node.dashboard import tracking
from ftis_node.dashboard.source import Source
from ftis_node.dashboard.tracking import Follower, open_tracker
from ftis_node.errors import UsageError
from ftis_node.store_log import newest

CLIPPED = metrics.series(metrics.CLIPPED, "own")


def written(folder: Path) -> list[tuple[str, int, float]]:
    """(name, step, value) of every scalar in TensorBoard's event files: length, checksum, record, checksum."""
    found = []
    for path in sorted(folder.rglob("events.*")):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack("<Q", data[place : place + 8])
            event = Event.FromString(data[place + 12 : place + 12 + length])
            found += [(v.tag, event.step, round(v.simple_value, 4)) for v in event.summary.value]
            place += 16 + length
    return found


def test_tensorboard_gets_what_is_recorded_from_now_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracking, "FOLLOW_SECONDS", 0.05)
    store = make(tmp_path / "node.db")
    tracker = open_tracker("tensorboard", tmp_path / "tracked", "sums", "ann")
    assert tracker is not None
    source = Source(store.path)
    follower = Follower(tracker, source, newest(store)[0])
    store.metric(41, {metrics.LOSS: 0.25, CLIPPED: 0.5})
    store.metric(42, {metrics.LOSS: 0.125})
    follower.close()
    source.close()
    store.close()
    assert sorted(written(tmp_path / "tracked")) == [
        (f"{metrics.CLIPPED}/own", 41, 0.5), (metrics.LOSS, 41, 0.25), (metrics.LOSS, 42, 0.125),
    ]  # fmt: skip


def test_none_tracks_nothing(tmp_path: Path):
    assert open_tracker("none", tmp_path, "sums", "ann") is None


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(tracking.PACKAGES, "wandb", "a_package_that_nobody_has")
    with pytest.raises(UsageError, match="a_package_that_nobody_has"):
        open_tracker("wandb", tmp_path, "sums", "ann")
