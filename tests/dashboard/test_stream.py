"""Live messages: what comes in arrives, what was missed comes after, and whoever does not keep up is let go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboard.serving import Message, Served
from ftis_node import metrics
from ftis_node.dashboard import events
from ftis_node.dashboard.events import MAX_VALUES, Mark, news_since
from ftis_node.store import Store
from ftis_node.store_log import newest


def until(messages: Iterator[Message], kind: str) -> Message:
    """The next message of that kind; the connection's own time limit ends a wait that is in vain."""
    return next(message for message in messages if message.kind == kind)


class TestLive:
    def test_a_value_an_event_and_a_state_arrive(self, page: Served):
        messages = page.listen()
        assert until(messages, "state").data["node"]["step"] == 40
        page.store.metric(41, {metrics.LOSS: 0.25})
        points = until(messages, "points").data["points"]
        assert [(step, name, value) for _, _, step, name, value in points] == [(41, metrics.LOSS, 0.25)]
        page.store.event("probe", "held-out pass@1 0.7")
        assert until(messages, "log").data["events"][0]["text"] == "held-out pass@1 0.7"
        page.store.set_facts(step=41)
        assert until(messages, "state").data["node"]["step"] in (40, 41)

    def test_what_was_missed_comes_after_a_break(self, page: Served):
        first = page.listen()
        reached = until(first, "state").id
        page.store.metric(41, {metrics.LOSS: 0.1})
        page.store.event("one", "while nobody listened")
        again = page.listen(reached)
        assert until(again, "points").data["points"][-1][-1] == 0.1
        assert until(again, "log").data["events"][-1]["kind"] == "one"
        page.store.metric(42, {metrics.LOSS: 0.2})
        while until(again, "points").data["points"][-1][-1] != 0.2:
            pass  # the value before it may be told once more

    def test_a_database_begun_anew_is_a_reset(self, page: Served):
        assert until(page.listen("999999.0.0"), "reset").data == {}

    @pytest.mark.parametrize("told", ["x", "1.2", "1.2.3.4", "-1.0.0", "1e5.0.0", "1" * 99 + ".0.0", "<b>.1.1"])
    def test_an_id_that_is_none_is_refused(self, page: Served, told: str):
        assert page.ask("/api/v1/stream", last_event_id=told).status == 400

    def test_only_so_many_listen(self, page: Served, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(events, "MAX_LISTENERS", 2)
        kept = [page.listen(), page.listen()]
        for messages in kept:
            until(messages, "state")
        assert page.ask("/api/v1/stream").status == 503


class TestNews:
    def test_a_gap_that_is_too_wide_is_a_reset(self, page: Served):
        with page.store.writing() as db:
            rows = [(0.0, step, metrics.LOSS, 0.0) for step in range(MAX_VALUES + 1)]
            db.executemany("INSERT INTO metrics (ts, step, name, value) VALUES (?, ?, ?, ?)", rows)
        news = news_since(page.store, Mark())
        assert [message.event for message in news.messages] == ["reset"]
        assert str(news.mark) == ".".join(map(str, newest(page.store)))

    def test_nothing_new_is_nothing(self, page: Served):
        mark = Mark(*newest(page.store))
        assert news_since(page.store, mark) == events.News(mark, ())

    def test_marks_are_read_back(self):
        assert Mark.parse(str(Mark(1, 22, 333))) == Mark(1, 22, 333)

    def test_an_empty_database_is_fine(self, tmp_path):
        store = Store.open(tmp_path / "empty.db")
        assert news_since(store, Mark()).messages == ()
        store.close()
