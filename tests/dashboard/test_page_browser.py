"""The page in a real browser: what it shows is what the interface says, whatever the screen, and text stays text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from dashboard.browser import Sight, browser
from dashboard.serving import Served, serve
from dashboard.synthetic import HOSTILE, OWN, node_id
from ftis_node import metrics

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture
def look(chrome: Browser) -> Iterator[Callable[..., Sight]]:
    """Open a page; it is closed afterwards, and must have asked nobody else and complained of nothing."""
    seen: list[Sight] = []

    def look(page: Served, **options: object) -> Sight:
        seen.append(Sight(chrome, page.url, **options))
        return seen[-1].open()

    yield look
    for sight in seen:
        sight.close()
        assert sight.abroad == []


def digits(text: str) -> int:
    return int(re.sub(r"\D", "", text))


class TestNumbers:
    def test_every_section_shows_what_the_interface_says(self, page: Served, look: Callable[..., Sight]):
        state = page.ask("/api/v1/state").json
        sight = look(page)
        assert sight.text("#swarm-name") == "sums"
        assert "alive" in sight.tile("swarm")
        for key, value in (("working", 6), ("joining", 0), ("silent", 0), ("steps", state["swarm"]["policy_steps"]),
                           ("speed", 450), ("step", 40), ("admitted", 77), ("published", 120)):  # fmt: skip
            assert digits(sight.tile(key)) == value, key
        assert digits(sight.tile("used")) == state["counts"]["own_used"] + state["counts"]["foreign_used"]
        gates = sight.page.locator("#gates li").count()
        assert gates == len(state["gates"])
        assert digits(sight.text('[data-reason="reward_mismatch"] .number')) == 1
        self._curves(page, sight)
        self._lists(page, sight)
        assert sight.complaints == []

    def _curves(self, page: Served, sight: Sight) -> None:
        latest = page.store.latest()[metrics.OWN_REWARD].value
        figures = sight.page.locator("figure")
        assert figures.count() == sum(len(s["charts"]) for s in page.ask("/api/v1/layout").json["sections"])
        assert f"{latest:.3g}" in sight.text('[data-chart="Reward"] figcaption small')
        assert sight.page.locator('[data-chart="Reward"] canvas').count() == 1
        assert "weights" in sight.text("#bottleneck")

    def _lists(self, page: Served, sight: Sight) -> None:
        rows = sight.page.locator("#nodes-table tbody tr")
        assert rows.count() == 6
        bob = sight.text(f'#counted-table [data-node="{node_id(1)}"]').split()
        assert bob == ["bob-1", "31", "1", "88", "1", "0"]
        assert sight.page.locator(f'#counted-table [data-node="{OWN}"]').count() == 0
        newest = page.ask("/api/v1/rollouts?limit=1").json["rollouts"][0]
        group = sight.page.locator("details.group").first
        assert group.get_attribute("data-rollout") == str(newest["id"])
        group.locator("summary").click()
        shown = group.inner_text()
        for completion in newest["completions"]:
            assert f"weight {completion['weight']:.3g}" in shown
            assert f"surprise {completion['surprise']:.3g}" in shown
            assert completion["verdict"] in shown
        assert sight.page.locator("#event-list li").count() == len(page.ask("/api/v1/events").json["events"])

    def test_the_axis_can_be_chosen(self, page: Served, look: Callable[..., Sight]):
        sight = look(page)
        for axis in ("time", "tokens", "step"):
            with sight.page.expect_response(lambda answer, axis=axis: f"x={axis}" in answer.url and answer.ok):
                sight.page.locator(f"#axis input[value={axis}]").check()

    def test_rollouts_can_be_narrowed_and_leafed_through(self, page: Served, look: Callable[..., Sight]):
        sight = look(page)
        sight.page.locator("#rollout-more").click()
        sight.page.locator("details.group >> nth=11").wait_for()
        sight.page.locator("select[name=origin]").select_option("foreign")
        sight.page.locator("details.group >> nth=4").wait_for(state="detached")
        assert sight.page.locator("details.group").count() == 4
        assert all("from bob-0" in text for text in sight.page.locator("details.group summary").all_inner_texts())


class TestLive:
    def test_events_values_and_states_arrive_without_a_reload(self, page: Served, look: Callable[..., Sight]):
        sight = look(page)
        page.store.event("probe", "something to see")
        sight.until_text("#event-list li", "something to see")
        page.store.metric(41, {metrics.OWN_REWARD: 0.123})
        sight.until_text('[data-chart="Reward"] figcaption small', "0.123")
        page.store.set_facts(step=41)
        sight.until_text('[data-tile="step"] dd', "41")

    def test_a_lost_node_is_told_and_its_return_too(self, start: Callable[..., Served], look: Callable[..., Sight]):
        page = start()
        sight = look(page)
        port = page.server.port
        page.server.close()
        sight.until_text("#banner", "No connection to the node")
        again = serve(page.store, port=port)
        try:
            page.store.event("start", "back again")
            sight.until_text("#event-list li", "back again")
            sight.page.locator("#banner").wait_for(state="hidden")
        finally:
            again.server.close()

    def test_another_node_at_the_address_is_not_taken_for_the_first(self, page: Served, look: Callable[..., Sight]):
        sight = look(page)
        page.store.set_facts(node_id=node_id(7), step=9999)
        sight.until_text("#banner", "Another node answers")
        assert digits(sight.tile("step")) == 40


class TestForeignText:
    def test_markup_in_names_prompts_and_completions_stays_text(
        self, start: Callable[..., Served], look: Callable[..., Sight]
    ):
        sight = look(start(hostile=True))
        for group in sight.page.locator("details.group summary").all()[:2]:
            group.click()
        assert sight.text("details.group[open] pre") == HOSTILE
        assert "<b>bob</b>-1" in sight.text("#nodes-table")
        assert HOSTILE in sight.text("#event-list")
        assert sight.page.locator("main img, main script, main b").count() == 0
        assert "owned" not in sight.page.title()
        assert sight.complaints == []


class TestOperator:
    def test_pause_needs_the_token_and_reaches_the_node(self, start: Callable[..., Served], look: Callable[..., Sight]):
        asked: list[tuple[str, str]] = []
        page = start(token="the-token", ask=lambda kind, node: asked.append((kind, node)) or len(asked))
        sight = look(page)
        sight.page.get_by_role("button", name="Pause").click()
        sight.until_text("#operator", "the token is missing or wrong")
        sight.page.locator("#token").fill("the-token")
        sight.page.locator("#token").blur()
        sight.page.get_by_role("button", name="Pause").click()
        sight.until_text("#operator", "pause: asked")
        sight.page.get_by_role("button", name="trust bob-1").click()
        sight.until_text("#operator", "trust: asked")
        assert asked == [("pause", ""), ("trust", node_id(1))]


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1024, "light"), (1024, "dark")])
def test_every_screen_is_usable_and_accessible(page: Served, look: Callable[..., Sight], width: int, scheme: str):
    sight = look(page, width=width, scheme=scheme)
    sight.page.locator("details.group summary").first.click()
    assert sight.page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out sideways"
    assert sight.serious_faults() == []
    sight.keep(f"page-{width}-{scheme}")


def test_it_can_be_used_with_the_keyboard_alone(page: Served, look: Callable[..., Sight]):
    sight = look(page)
    sight.page.keyboard.press("Tab")
    assert sight.page.evaluate("document.activeElement.textContent") == "Skip to the page"
    sight.page.locator("details.group summary").first.focus()
    sight.page.keyboard.press("Enter")
    assert sight.page.locator("details.group[open]").count() == 1
