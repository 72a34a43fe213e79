"""Who may ask, under which name, and for what."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dashboard.serving import Served
from dashboard.synthetic import node_id
from ftis_node.dashboard.guard import ADDRESSES, BURST, Buckets, known_host

TOKEN = "a-secret"
REFUSED: list[tuple[dict[str, str], int]] = [
    ({"authorization": ""}, 401),
    ({"authorization": "Bearer wrong"}, 401),
    ({"authorization": TOKEN}, 401),
    ({"origin": "http://elsewhere.example"}, 403),
    ({"origin": "null"}, 403),
    ({"sec_fetch_site": "cross-site"}, 403),
    ({"sec_fetch_site": "same-site"}, 403),
    ({"content_type": "text/plain"}, 415),
    ({"host": "elsewhere.example"}, 421),
]
BODIES = [
    b"", b"{", b"[]", b'{"kind": "burn"}', b'{"kind": "trust"}', b'{"kind": "pause", "x": 1}',
    b'{"kind": "trust", "node_id": "../../x"}', b"[" * 60_000,
]  # fmt: skip


@pytest.fixture
def asked() -> list[tuple[str, str]]:
    """Actions that reached the node."""
    return []


@pytest.fixture
def writable(start: Callable[..., Served], asked: list[tuple[str, str]]) -> Served:
    def ask(kind: str, argument: str) -> int:
        asked.append((kind, argument))
        return len(asked)

    return start(token=TOKEN, ask=ask)


def act(page: Served, kind: str = "pause", node: str = "", **headers: str):
    body = json.dumps({"kind": kind, "node_id": node}).encode()
    sent = {"authorization": f"Bearer {TOKEN}", "content_type": "application/json", **headers}
    return page.ask("/api/v1/actions", "POST", body, **sent)


class TestActions:
    def test_with_the_token_they_reach_the_node(self, writable: Served, asked: list[tuple[str, str]]):
        assert act(writable).status == 202
        assert act(writable, "trust", node_id(1)).json == {"id": 2}
        assert asked == [("pause", ""), ("trust", node_id(1))]

    def test_without_all_that_is_needed_they_do_not(self, writable: Served, asked: list[tuple[str, str]]):
        for headers, status in REFUSED:
            assert act(writable, **headers).status == status, headers
        assert asked == []

    def test_other_bodies_are_refused(self, writable: Served, asked: list[tuple[str, str]]):
        for body in BODIES:
            sent = {"authorization": f"Bearer {TOKEN}", "content_type": "application/json"}
            answer = writable.ask("/api/v1/actions", "POST", body, **sent)
            assert answer.status in (400, 422), (body[:40], answer.body)
        assert asked == []

    def test_a_page_that_only_shows_takes_none(self, page: Served):
        assert act(page).status == 403

    def test_no_answer_holds_the_token(self, writable: Served):
        for path in ("/", "/api/v1/state", "/api/v1/layout", "/api/v1/openapi.json", "/metrics", "/api/v1/events"):
            assert TOKEN.encode() not in writable.ask(path).body


class TestNames:
    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "127.0.0.1:8470", "localhost:1", "[::1]:8470", "[::1]", "10.1.2.3:80"]
    )
    def test_addresses_and_localhost_are_known(self, host: str):
        assert known_host(host, frozenset())

    @pytest.mark.parametrize(
        "host", ["", "evil.example", "evil.example:8470", "localhost.evil.example", "127.0.0.1.evil.example", "a:b:c"]
    )
    def test_other_names_are_not(self, host: str):
        assert not known_host(host, frozenset({"swarm.example"}))

    def test_the_operator_may_add_names(self, start: Callable[..., Served]):
        page = start(hosts=("swarm.example",))
        assert page.ask("/livez", host="swarm.example:80").status == 200
        assert page.ask("/livez", host="other.example").status == 421


class TestHeaders:
    def test_every_answer_is_strict(self, page: Served):
        for path in ("/", "/static/page.js", "/api/v1/state", "/nowhere", "/metrics"):
            self.is_strict(page.ask(path).headers)

    def is_strict(self, headers: dict[str, str]):
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers


class TestPublic:
    def test_an_address_gets_so_much_and_no_more(self):
        now = 0.0
        buckets = Buckets(lambda: now)
        assert sum(buckets.take("a") for _ in range(1000)) == BURST
        assert buckets.take("b")
        now = 1.0
        assert sum(buckets.take("a") for _ in range(1000)) == 20
        for number in range(2 * ADDRESSES):
            buckets.take(str(number))
        assert len(buckets._left) == ADDRESSES

    def test_public_pages_limit_and_hide_the_invite(self, start: Callable[..., Served]):
        page = start(public=True)
        assert page.ask("/api/v1/state").json["node"]["invite"] == ""
        statuses = {page.ask("/livez").status for _ in range(int(BURST) + 40)}
        assert statuses == {200, 429}
