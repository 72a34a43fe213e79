"""The page of a real swarm: a seed, two learners and an observer as processes, looked at with a real browser."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from dashboard.browser import Sight, browser
from e2e.living import Crowd, Member, command
from e2e.watching import Window, until
from ftis_node import metrics
from ftis_node.lab.children import Child, start_child
from ftis_node.lab.local_swarm import ENVIRONMENT

pytestmark = [pytest.mark.swarm, pytest.mark.browser, pytest.mark.slow]

#: an orderly stop; the rest is for a machine that is busy with other things
STOP_SECONDS = 20.0


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def observer(crowd: Crowd, tmp_path_factory: pytest.TempPathFactory) -> tuple[Child, Path]:
    """`ftis-node dashboard` on the swarm, with a state directory of its own."""
    assert crowd.seed
    root = tmp_path_factory.mktemp("observer")
    arguments = ["dashboard", "--swarm", crowd.swarm.invite, "--state", str(root / "state"), "--port", "0"]
    child = start_child("the observer", arguments, root / "log", ENVIRONMENT)
    crowd.swarm.children.append(child)
    return child, root / "state"


def address_of(state: Path) -> str:
    """Where the page of a running process answers."""
    window = Window(state)
    return str(until(lambda: window.fact("page_address"), f"a page for {state}"))


def ask(address: str, path: str) -> Any:
    with closing(urllib.request.urlopen(f"{address}api/v1/{path}", timeout=30)) as answer:
        return json.load(answer)


def digits(text: str) -> int:
    return int(re.sub(r"\D", "", text) or 0)


def look(chrome: Browser, member: Member) -> Sight:
    return Sight(chrome, address_of(member.state)).open()


class TestNode:
    def test_page_interface_and_store_say_the_same(self, crowd: Crowd, chrome: Browser):
        ann, bob = crowd.pair()
        ann.until_foreign_used(2)
        address = address_of(ann.state)
        sight = look(chrome, ann)
        own = str(ann.window.fact("node_id"))
        counts = {
            "step": lambda state: state["node"]["step"],
            "used": lambda state: state["counts"]["own_used"] + state["counts"]["foreign_used"],
            "published": lambda state: state["counts"]["published"],
        }
        for key, value in counts.items():  # all of them rise: the page has to show each value that was asked for
            wanted = value(ask(address, "state"))
            until(lambda key=key, wanted=wanted: digits(sight.tile(key)) >= wanted, f"the page shows {key} {wanted}")
        state = ask(address, "state")
        assert state["counts"]["published"] <= ann.window.total(metrics.PUBLISHED_GROUPS)
        assert state["counts"]["own_used"] <= ann.window.total(metrics.OWN_GROUPS_USED)
        until(lambda: ask(address, "state")["swarm"]["nodes"] == {"working": 2}, "ann counts herself and bob")
        listed = {node["node_id"]: node for node in ask(address, "nodes")["nodes"]}
        assert listed[own]["me"]
        assert {node["name"] for node in listed.values() if node["role"] == "node"} == {"ann", "bob"}
        told = until(
            lambda: next(n["of_us"] for n in ask(address, "nodes")["nodes"] if n["name"] == "bob"), "bob's tally of ann"
        )
        assert told["accepted"] <= ann.window.total(metrics.PUBLISHED_GROUPS)
        assert str(bob.window.fact("node_id")) in listed
        sight.close()

    def test_rollouts_of_both_sides_are_there_with_their_weights(self, crowd: Crowd):
        ann, _ = crowd.pair()
        ann.until_foreign_used(1)
        address = address_of(ann.state)
        query = "rollouts?origin=foreign&verdict=used"
        found = until(lambda: ask(address, query)["rollouts"], "a foreign group in use")
        taught = [c for c in found[0]["completions"] if c["verdict"] in ("trained", "rescued")]
        assert taught
        assert all(0 < c["weight"] <= 2 and c["surprise"] >= 0 for c in taught)
        assert found[0]["author_name"] == "bob"
        assert "=" in found[0]["prompt"]
        curves = ask(address, f"series?name={metrics.OWN_REWARD}&name={metrics.LOSS}")["series"]
        for curve in curves:
            assert curve["x"] == sorted(curve["x"])
            assert len(curve["x"]) >= found[0]["step"]

    def test_pause_on_the_page_pauses_the_node(self, crowd: Crowd, chrome: Browser):
        ann, _ = crowd.pair()
        token = (ann.state / "page.token").read_text().strip()
        sight = look(chrome, ann)
        sight.page.locator("#token").fill(token)
        sight.page.locator("#token").blur()
        sight.page.get_by_role("button", name="Pause").click()
        sight.until_text('[data-tile="state"] dd', "paused")
        assert json.loads(command("status", "--json", "--state", str(ann.state)).stdout)["state"] == "paused"
        sight.page.get_by_role("button", name="Resume").click()
        sight.until_text('[data-tile="state"] dd', "working")
        sight.close()

    def test_a_restart_is_told_and_got_over(self, crowd: Crowd, chrome: Browser):
        ann, _ = crowd.pair()
        address, sight = address_of(ann.state), look(chrome, ann)
        step = ann.window.step
        ann.kill()
        sight.until_text("#banner", "No connection to the node")
        ann, _ = crowd.pair()
        assert address_of(ann.state) == address, "the same port again, so that open pages find it"
        ann.until_step(step + 1)
        sight.page.locator("#banner").wait_for(state="hidden")
        until(lambda: digits(sight.tile("step")) > step, "the page goes on")
        sight.close()

    def test_it_stops_in_good_order_with_open_pages(self, crowd: Crowd):
        ann, _ = crowd.pair()
        streams = [urllib.request.urlopen(f"{address_of(ann.state)}api/v1/stream", timeout=30) for _ in range(5)]
        for stream in streams:
            assert stream.readline()
        os.kill(ann.pid, signal.SIGINT)
        assert ann.gone(STOP_SECONDS) == 0, ann.story()
        assert "Traceback" not in ann.story()
        assert "Traceback" not in (ann.state / "logs" / "latest").read_text()
        for stream in streams:
            stream.close()


class TestObserver:
    def test_it_sees_everybody_and_counts_for_nobody(self, crowd: Crowd, observer: tuple[Child, Path], chrome: Browser):
        ann, _ = crowd.pair()
        address = address_of(observer[1])
        until(lambda: ask(address, "state")["swarm"]["nodes"].get("working") == 2, "the observer sees both")
        state = ask(address, "state")
        assert (state["swarm"]["state"], state["swarm"]["seeds"], state["role"]) == ("alive", 1, "observer")
        assert not state["writable"]
        until(lambda: ann.window.fact("peers") == 2, "ann sees the seed and bob, and no observer")
        until(lambda: metrics.OFFERED_GROUPS in ask(address, "state")["latest"], "offers were counted")
        sight = Sight(chrome, address).open()
        assert digits(sight.tile("working")) == 2
        assert not sight.page.locator("#node").is_visible()
        assert {"ann", "bob"} <= set(sight.page.locator("#nodes-table tbody td:first-child").all_inner_texts())
        sight.keep("observer")
        sight.close()

    def test_its_history_outlives_it(self, crowd: Crowd, observer: tuple[Child, Path]):
        child, state = observer
        crowd.pair()
        address_of(state)
        until(lambda: Window(state).step > 2, "some looks")
        looks = Window(state).step
        os.kill(child.process.pid, signal.SIGINT)
        assert child.process.wait(STOP_SECONDS) == 0, child.tail()
        assert "Traceback" not in child.tail()
        assert Window(state).step >= looks
        assert Window(state).fact("state") == "stopped"
