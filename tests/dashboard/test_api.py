"""What /api/v1 answers is what the store holds, and what cannot be answered says why."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from dashboard.serving import SWARM_ID, Served, serve
from dashboard.synthetic import HOSTILE, OWN, node_id
from ftis_node import health, metrics
from ftis_node.dashboard import source
from ftis_node.store import Store
from ftis_node.store_rollouts import rollouts

CLIPPED_OWN = metrics.series(metrics.CLIPPED, "own")


class TestContents:
    def test_state_is_what_the_store_says(self, page: Served):
        state = page.ask("/api/v1/state").json
        totals = page.store.totals()
        assert state["node"]["id"] == OWN
        assert state["node"]["step"] == 40
        assert state["swarm"] == {
            "id": SWARM_ID, "name": "sums", "state": "alive", "nodes": {"working": 6}, "seeds": 0,
            "policy_steps": 40 + 10 + 11 + 12 + 13 + 14, "tokens_per_second": 450.0, "published_groups": 220,
        }  # fmt: skip
        assert state["counts"]["own_used"] == totals[metrics.OWN_GROUPS_USED]
        assert state["counts"]["admitted"] == 77
        (refused,) = state["counts"]["refused"]
        assert (refused["reason"], refused["count"]) == ("reward_mismatch", 1)
        assert refused["meaning"].startswith("The claimed reward differs")
        assert state["traffic"]["bytes_per_token_in"] == 2.5
        assert state["traffic"]["bytes_per_token_out"] == 2.25
        assert state["latest"] == {name: point.value for name, point in page.store.latest().items()}
        assert state["bottleneck"]["name"] == "weights"
        assert not state["writable"]

    def test_gates_are_those_of_health(self, page: Served):
        shown = page.ask("/api/v1/state").json["gates"]
        found = health.node_gates(page.store, running=True, now=time.time())
        assert [(g["name"], g["verdict"]) for g in shown] == [(g.name, g.verdict.value) for g in found]

    def test_nodes_tell_how_each_counts_the_other(self, page: Served):
        found = page.ask("/api/v1/nodes").json
        assert (found["total"], found["published_here"]) == (6, 120)
        me, *others = found["nodes"]
        assert me["me"]
        assert me["node_id"] == OWN
        bob = next(node for node in others if node["node_id"] == node_id(1))
        assert bob["of_us"] == {"accepted": 31, "refused": 1}
        assert bob["here"] == {"accepted": 1, "refused": 0}
        assert page.ask("/api/v1/nodes?limit=2&offset=5").json["nodes"][0] == others[-1]
        assert page.ask("/api/v1/nodes?state=silent").json["total"] == 0

    def test_series_are_the_points_of_the_store(self, page: Served):
        found = page.ask(f"/api/v1/series?name={metrics.OWN_REWARD}&name={quote(CLIPPED_OWN)}").json
        for curve, name in zip(found["series"], (metrics.OWN_REWARD, CLIPPED_OWN), strict=True):
            points = page.store.points(name)
            assert curve["x"] == [point.step for point in points]
            assert curve["y"] == [point.value for point in points]
        part = page.ask(f"/api/v1/series?name={metrics.OWN_REWARD}&start=10&end=12").json["series"][0]
        assert part["x"] == [10, 11, 12]

    def test_series_are_thinned_out_and_keep_their_range(self, page: Served):
        values = [point.value for point in page.store.points(metrics.OWN_REWARD)]
        (curve,) = page.ask(f"/api/v1/series?name={metrics.OWN_REWARD}&points=8").json["series"]
        assert curve["thinned"]
        assert len(curve["x"]) == 8
        assert (min(curve["low"]), max(curve["high"])) == (min(values), max(values))
        assert sum(curve["y"]) / 8 == pytest.approx(sum(values) / len(values))

    def test_the_token_axis_counts_sampled_tokens(self, page: Served):
        (curve,) = page.ask(f"/api/v1/series?name={metrics.OWN_REWARD}&x=tokens").json["series"]
        sampled = [point.value for point in page.store.points(metrics.GENERATED_TOKENS)]
        assert curve["x"] == pytest.approx([sum(sampled[: n + 1]) for n in range(len(sampled))])

    def test_rollouts_are_paged_and_filtered(self, page: Served):
        first = page.ask("/api/v1/rollouts?limit=5").json
        second = page.ask(f"/api/v1/rollouts?limit=100&before={first['before']}").json
        ids = [group["id"] for group in first["rollouts"] + second["rollouts"]]
        assert ids == sorted(ids, reverse=True)
        assert len(ids) == 12
        assert second["before"] is None
        kept = rollouts(page.store, 1)[0]
        shown = page.ask(f"/api/v1/rollouts/{kept.id}").json
        assert [c["weight"] for c in shown["completions"]] == [c.weight for c in kept.completions]
        assert [c["verdict"] for c in shown["completions"]] == [c.verdict for c in kept.completions]
        foreign = page.ask("/api/v1/rollouts?origin=foreign").json["rollouts"]
        assert {group["author_name"] for group in foreign} == {"bob-0"}
        assert len(foreign) == 4

    def test_metrics_are_the_table_without_node_ids(self, page: Served):
        text = page.ask("/metrics").body.decode()
        assert f"{metrics.OWN_GROUPS_USED} {page.store.totals()[metrics.OWN_GROUPS_USED]}" in text
        assert f"{CLIPPED_OWN} {page.store.latest()[CLIPPED_OWN].value}" in text
        assert OWN not in text
        assert node_id(0) not in text

    def test_ready_follows_the_gates(self, page: Served):
        assert page.ask("/livez").status == 200
        assert page.ask("/readyz").json == {"ready": True, "failing": []}
        page.store.set_facts(beat_at=time.time() - 1000)
        late = page.ask("/readyz")
        assert late.status == 503
        assert late.json["failing"][0]["name"] == "process"


class TestForeignText:
    def test_markup_stays_text_and_is_never_sent_as_html(self, start: Callable[..., Served]):
        page = start(hostile=True)
        for path in ("state", "nodes", "rollouts", "events", f"series?name={quote(HOSTILE)}"):
            answer = page.ask(f"/api/v1/{path}")
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert page.ask("/api/v1/rollouts").json["rollouts"][0]["completions"][0]["text"] == HOSTILE


BAD = [
    ("/api/v1/rollouts/999999", 404), ("/api/v1/rollouts/-1", 404), ("/api/v1/rollouts/x", 404),
    ("/api/v1/rollouts/" + "9" * 40, 404), ("/api/v1/nowhere", 404), ("/static/..%2fapp.py", 404),
    ("/static/x.js", 404),
    ("/api/v1/series", 422), ("/api/v1/series?name=ftis_nothing", 404), ("/api/v1/series?name=ftis_loss&points=1", 422),
    ("/api/v1/series?name=ftis_loss&points=100000", 422), ("/api/v1/series?name=ftis_loss&start=nan", 422),
    ("/api/v1/series?name=ftis_loss&start=1e400", 422), ("/api/v1/series?name=ftis_loss&x=money", 422),
    ("/api/v1/series?" + "&".join(["name=ftis_loss"] * 17), 422), ("/api/v1/rollouts?limit=0", 422),
    ("/api/v1/rollouts?limit=1000000000", 422), ("/api/v1/rollouts?before=-5", 422),
    ("/api/v1/rollouts?limit=1&limit=2", 422), ("/api/v1/state?" + "x" * 10_000, 422),
    ("/api/v1/nodes?offset=-1", 422), ("/api/v1/events?level=loud", 422), ("/api/v1/state?x=1", 422),
    ("/api/v1/rollouts?step=" + "9" * 30, 422),
]  # fmt: skip


class TestBadQuestions:
    def test_each_gets_a_clear_status(self, page: Served):
        for path, status in BAD:
            answer = page.ask(path)
            assert answer.status == status, (path[:80], answer.body)
            assert answer.json["error"]

    def test_a_range_that_ends_before_it_starts_is_empty(self, page: Served):
        found = page.ask(f"/api/v1/series?name={metrics.OWN_REWARD}&start=30&end=10").json
        assert found["series"][0]["x"] == []

    def test_requests_are_small(self, page: Served):
        assert page.ask("/api/v1/actions", "POST", b"x" * (64 * 1024 + 1)).status == 413
        assert page.ask("/api/v1/state?" + "x" * 70_000).status in (400, 431)
        assert page.ask("/api/v1/state", cookie="x" * 70_000).status in (400, 431)
        assert page.ask("/api/v1/state").status == 200

    def test_other_methods_are_refused(self, page: Served):
        assert page.ask("/api/v1/state", "DELETE").status == 405
        assert page.ask("/", "POST", b"").status == 405


class TestTheDatabaseIsInTrouble:
    def test_missing(self, page: Served):
        page.ask("/api/v1/state")
        page.source.close()
        away = page.store.path.rename(page.store.path.with_suffix(".away"))
        answer = page.ask("/api/v1/state")
        assert answer.status == 503
        assert "retry-after" in answer.headers
        away.rename(page.store.path)
        assert page.ask("/api/v1/state").status == 200

    def test_locked_by_a_writer_readers_go_on(self, page: Served):
        with page.store.writing() as db:
            db.execute("UPDATE facts SET value = '1' WHERE key = 'step'")
            assert page.ask("/api/v1/state").json["node"]["step"] == 40
        assert page.ask("/api/v1/state").json["node"]["step"] == 1

    def test_held_exclusively(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(source, "BUSY_SECONDS", 0.05)
        path = tmp_path / "node.db"
        Store.open(path).close()
        holder = sqlite3.connect(path)
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        page = serve(_closed(path))
        try:
            began = time.monotonic()
            assert page.ask("/api/v1/state").status == 503
            assert time.monotonic() - began < 15
            assert page.ask("/livez").status == 200
        finally:
            holder.close()
            page.close()


def _closed(path: Path) -> Store:
    """Stands in for the node's own store, which is not there."""
    store = object.__new__(Store)
    store.path = path
    store.close = lambda: None  # type: ignore[method-assign]
    return store


class TestPublishedDescription:
    def test_every_answer_fits_its_schema(self, page: Served):
        document = page.ask("/api/v1/openapi.json").json
        assert set(document["paths"]) >= {"/api/v1/state", "/api/v1/nodes", "/api/v1/series", "/api/v1/rollouts"}
        assert json.dumps(document).count('"$ref": "#/components/schemas/Fault"') > 10
