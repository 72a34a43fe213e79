"""The store: what goes in comes out, from any thread, after kill -9, and after damage."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ftis_node import metrics, store_schema
from ftis_node.errors import UsageError
from ftis_node.store import Store
from ftis_node.store_records import Fact
from ftis_node.store_schema import StoreError


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path / "node.db")
    yield opened
    opened.close()


def test_events_come_newest_first(store):
    store.event("start", "first", version="1")
    store.event("lost", "second", level="warning")
    assert [(event.kind, event.level, event.text, event.data) for event in store.events()] == [
        ("lost", "warning", "second", {}),
        ("start", "info", "first", {"version": "1"}),
    ]
    assert len(store.events(limit=1)) == 1


def test_gauges_are_points_and_counters_add_up(store):
    frames = metrics.series(metrics.BYTES_IN, "frame")
    store.metric(1, {metrics.LOSS: 0.5, metrics.OWN_GROUPS_USED: 4, frames: 100})
    store.metric(2, {metrics.LOSS: 0.25, metrics.OWN_GROUPS_USED: 3})
    store.count(frames, 11)
    assert [(point.step, point.value) for point in store.points(metrics.LOSS)] == [(1, 0.5), (2, 0.25)]
    assert store.latest()[metrics.LOSS].value == 0.25
    assert store.latest()[frames].step == 1
    assert store.totals() == {metrics.OWN_GROUPS_USED: 7, frames: 111}


def test_a_value_that_is_not_a_number_leaves_no_point(store):
    store.metric(1, {metrics.PASS_AT_1: float("nan"), metrics.LOSS: 1.0})
    assert set(store.latest()) == {metrics.LOSS}


def test_metrics_outside_the_table_are_our_mistake(store):
    with pytest.raises(KeyError):
        store.metric(1, {"loss": 0.5})
    with pytest.raises(AssertionError):
        store.count(metrics.LOSS)
    with pytest.raises(AssertionError):
        metrics.series(metrics.BYTES_IN)
    with pytest.raises(AssertionError):
        metrics.series(metrics.LOSS, "frame")
    assert store.totals() == {}
    assert store.latest() == {}


def test_verdicts_count_and_charge_only_proven_authors(store):
    store.verdict(b"1", "peer", "sums", "admitted")
    store.verdict(b"2", "peer", "sums", "refused", "reward_mismatch")
    store.verdict(b"3", "peer", "", "refused", "signature", charge=False)
    store.mark_used([b"1", b"2", b"1"], step=7)
    assert store.counts() == {
        ("admitted", ""): 1,
        ("refused", "reward_mismatch"): 1,
        ("refused", "signature"): 1,
    }
    (peer,) = store.peers()
    assert (peer.node_id, peer.accepted, peer.refused, peer.used) == ("peer", 1, 1, 1)
    assert [(row.digest, row.used_step) for row in store.verdicts()] == [(b"3", None), (b"2", None), (b"1", 7)]


def test_seen_digests(store):
    store.remember(b"a")
    store.remember(b"b", b"a")
    assert store.seen(b"a")
    assert store.seen(b"b")
    assert not store.seen(b"c")


def test_peers_keep_what_is_known(store):
    store.peer_seen("p", name="otter", model="tiny", addresses=["/ip4/1.2.3.4/tcp/1"])
    store.peer_seen("q")
    store.peer_seen("p")
    first, second = store.peers()
    assert (first.node_id, first.name, first.model, first.addresses) == ("p", "otter", "tiny", ("/ip4/1.2.3.4/tcp/1",))
    assert second.node_id == "q"
    assert first.last_seen >= first.first_seen


def test_facts(store):
    store.set_facts(state="joining", step=1)
    store.set_facts(**{Fact.STATE: "working", Fact.ALONE_SINCE: None})
    assert store.facts() == {"state": "working", "step": 1, "alone_since": None}
    assert store.fact(Fact.STEP) == 1
    assert store.fact("missing", 5) == 5


def test_old_rows_go_and_sums_stay(tmp_path, monkeypatch):
    monkeypatch.setitem(store_schema.ROWS_KEPT, "verdicts", 20)
    monkeypatch.setitem(store_schema.ROWS_KEPT, "seen", 20)
    store = Store.open(tmp_path / "node.db")
    for number in range(100):
        store.verdict(b"%d" % number, "peer", "sums", "admitted")
        store.remember(b"%d" % number)
    rows = store.verdicts(limit=1000)
    assert 20 <= len(rows) <= 40
    assert rows[0].digest == b"99"
    assert store.counts() == {("admitted", ""): 100}
    assert store.seen(b"99")
    assert not store.seen(b"0")
    store.close()


def test_the_most_recently_seen_peers_stay(tmp_path, monkeypatch):
    monkeypatch.setitem(store_schema.ROWS_KEPT, "peers", 5)
    store = Store.open(tmp_path / "node.db")
    for number in range(30):
        store.peer_seen("friend")
        store.peer_seen(f"stranger-{number}")
    assert "friend" in {peer.node_id for peer in store.peers()}
    assert len(store.peers()) <= 10
    store.close()


def test_many_threads_lose_nothing(store):
    def work(name: int) -> None:
        for number in range(50):
            store.metric(number, {metrics.OWN_GROUPS_USED: 1})
            store.event("thread", f"{name} {number}")
            store.remember(b"%d-%d" % (name, number))
            store.latest()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert store.totals() == {metrics.OWN_GROUPS_USED: 400}
    assert len(store.events(limit=1000)) == 400
    assert all(store.seen(b"%d-%d" % (name, number)) for name in range(8) for number in range(50))


_WRITER = """
import sys
from pathlib import Path
from ftis_node import metrics
from ftis_node.store import Store
store = Store.open(Path(sys.argv[1]))
for step in range(1_000_000):
    store.metric(step, {metrics.LOSS: step, metrics.OWN_GROUPS_USED: 1})
    store.remember(b"%d" % step)
    print(step, flush=True)
"""


def test_kill_while_writing_loses_nothing_that_was_written(tmp_path):
    path = tmp_path / "node.db"
    for _ in range(3):
        before = _total(path) if path.exists() else 0
        command = [sys.executable, "-c", _WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            said = [int(writer.stdout.readline()) for _ in range(200)]
            writer.kill()
            said += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
        store = Store.open(path)
        assert store.notice is None
        assert store.totals()[metrics.OWN_GROUPS_USED] - before >= len(said)
        assert store.seen(b"%d" % said[-1])
        store.event("still", "writes")
        store.close()


def _total(path: Path) -> float:
    store = Store.view(path)
    total = store.totals()[metrics.OWN_GROUPS_USED]
    store.close()
    return total


def test_reading_beside_a_writer(store):
    reader = Store.view(store.path)
    store.event("start", "hello")
    assert reader.events()[0].text == "hello"
    with pytest.raises(StoreError):
        reader.event("no", "writing here")
    reader.close()


def _damage_header(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 500)


def _damage_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096 : 4096 * 4] = b"\xa5" * (4096 * 3)
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(5000)


@pytest.mark.parametrize("damage", [_damage_header, _damage_page, _truncate])
def test_a_damaged_database_is_put_aside_with_a_message(tmp_path, damage):
    path = tmp_path / "node.db"
    store = Store.open(path)
    for number in range(200):
        store.event("fill", "x" * 200, number=number)
    store.close()
    damage(path)
    damaged = path.read_bytes()
    fresh = Store.open(path)
    assert fresh.notice is not None
    assert "damaged" in fresh.notice
    assert [event.kind for event in fresh.events()] == ["store-damaged"]
    (aside,) = (file for file in tmp_path.glob("node.db.damaged-*") if file.suffix not in ("-wal", "-shm"))
    assert aside.read_bytes() == damaged
    assert aside.name in fresh.notice
    fresh.close()
    again = Store.open(path)
    assert again.notice is None
    again.close()


def test_an_empty_file_is_a_new_database(tmp_path):
    (tmp_path / "node.db").touch()
    store = Store.open(tmp_path / "node.db")
    assert store.notice is None
    store.event("start", "hello")
    store.close()


def test_a_newer_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "node.db"
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    for way in (Store.open, Store.view):
        with pytest.raises(UsageError, match="newer"):
            way(path)
    assert [file.name for file in tmp_path.glob("*damaged*")] == []


def test_a_directory_or_a_missing_file_is_the_users_business(tmp_path):
    (tmp_path / "node.db").mkdir()
    with pytest.raises(UsageError, match="cannot open"):
        Store.open(tmp_path / "node.db")
    with pytest.raises(UsageError, match="cannot read"):
        Store.view(tmp_path / "missing.db")


def test_a_closed_store_says_so(tmp_path):
    store = Store.open(tmp_path / "node.db")
    store.close()
    with pytest.raises(StoreError):
        store.event("late", "too late")


def test_a_failed_write_leaves_no_trace(store):
    with pytest.raises(KeyError):
        store.metric(1, {metrics.OWN_GROUPS_USED: 1, "unknown": 2})
    assert store.totals() == {}
    store.event("after", "works")
