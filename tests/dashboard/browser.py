"""A real browser for tests: Debian's Chromium, driven by playwright, which downloads none of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

AXE = Path(__file__).resolve().parents[1] / "vendor" / "axe.min.js"
#: an event may take this long to show on a machine that is busy with other things
PATIENCE_MS = 120_000
READY = "html[data-ready=yes]"


def chromium() -> str:
    """The browser's program."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "these tests need Chromium (Debian: apt-get install chromium)"
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield running
        finally:
            running.close()


class Sight:
    """One open page, and whatever it complained about or asked of another host."""

    def __init__(self, browser: Browser, url: str, *, width: int = 1024, scheme: str = "light") -> None:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.abroad: list[str] = []
        self._url = url
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on("request", lambda r: None if r.url.startswith(url) else self.abroad.append(r.url))

    def open(self) -> Sight:
        self.page.goto(self._url)
        self.page.wait_for_selector(READY)
        return self

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def tile(self, key: str) -> str:
        """The number on a tile."""
        return self.text(f'[data-tile="{key}"] dd span')

    def until_text(self, selector: str, text: str) -> None:
        """Wait until an element shows a text."""
        self.page.locator(selector).filter(has_text=text).first.wait_for()

    def serious_faults(self) -> list[str]:
        """What axe-core calls serious or critical."""
        # Evaluated, not added as a script: the page's policy allows no other.
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{v['id']}: {v['help']} at {v['nodes'][0]['target']}"
            for v in found["violations"] if v["impact"] in ("serious", "critical")
        ]  # fmt: skip

    def keep(self, name: str) -> None:
        """A screenshot, where FTIS_ARTEFACTS names a folder."""
        if folder := os.environ.get("FTIS_ARTEFACTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=f"{folder}/{name}.png", full_page=True)

    def close(self) -> None:
        self.page.context.close()
