#!/usr/bin/env python3
"""The page with 10,000 steps of history and 1,000 nodes: first paint, answers, memory, and what it takes from training.

    first paint      of a fresh browser, `--visits` times (needs Chromium)
    answers          of /api/v1/state, nodes and series, over `--questions` questions each
    page memory      JavaScript heap after garbage collection, over `--seconds` of live updates at 2 steps a second
    training rate    lock-step laboratory node (tiny model): steps a second with 0 and with `--pages` open streams, in
                     turns; each stream is read as a page reads it, by another process

All on this machine: the readers and the browser share its cores with what they measure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("node", "protocol", "tests")]

from dashboard.browser import Sight, browser  # noqa: E402
from dashboard.serving import Served, serve  # noqa: E402
from dashboard.synthetic import SERIES, Shape, make  # noqa: E402
from ftis_node import metrics  # noqa: E402
from ftis_node.lab.harness import Lab, LabPlan, manifest_for  # noqa: E402
from ftis_node.lab.tiny import make_tiny  # noqa: E402
from ftis_node.store import Store  # noqa: E402
from ftis_node.tasks.registry import describe  # noqa: E402

QUESTIONS = {
    "state": "state",
    "nodes": "nodes?limit=500",
    "series": f"series?points=300&name={metrics.OWN_REWARD}&name={metrics.OWN_REWARD_LOW}&name={metrics.LOSS}",
    "series by tokens": f"series?name={metrics.OWN_REWARD}&x=tokens&points=300",
    "rollouts": "rollouts?limit=10",
}
READER = """
import sys, urllib.request
stream = urllib.request.urlopen(sys.argv[1] + "api/v1/stream")
while stream.readline():
    pass
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ftis-page-") as folder:
        store = make(Path(folder) / "node.db", Shape(options.steps, options.nodes, rollouts=500))
        page = serve(store)
        try:
            results: dict[str, Any] = {"answers_ms": answers(page, options.questions)}
            results |= in_browser(page, options.visits, options.seconds, options.steps)
        finally:
            page.close()
        results["training"] = asyncio.run(training(Path(folder), options.pages))
    print(json.dumps(results, indent=2) if options.json else as_text(results))


def answers(page: Served, count: int) -> dict[str, dict[str, float]]:
    """Milliseconds: median, 99th percentile and longest."""
    found = {}
    for name, path in QUESTIONS.items():
        times = sorted(timed(lambda path=path: page.ask(f"/api/v1/{path}")) for _ in range(count))
        found[name] = {
            "p50": round(1e3 * statistics.median(times), 1),
            "p99": round(1e3 * times[min(len(times) - 1, int(0.99 * len(times)))], 1),
            "longest": round(1e3 * times[-1], 1),
        }
    return found


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_browser(page: Served, visits: int, seconds: float, steps: int) -> dict[str, Any]:
    """First contentful paint and the time until everything stands, in milliseconds; heap in mebibytes over time."""
    with browser() as chrome:
        paints, ready = [], []
        for _ in range(visits):
            began = time.perf_counter()
            sight = Sight(chrome, page.url).open()
            ready.append(round(1e3 * (time.perf_counter() - began)))
            entry = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            paints.append(round(sight.page.evaluate(entry)))
            sight.close()
        return {"first_paint_ms": paints, "ready_ms": ready, "heap_mebibytes": heap(chrome, page, seconds, steps)}


def heap(chrome: Any, page: Served, seconds: float, step: int) -> list[float]:
    """JavaScript heap after a collection, every tenth of `seconds`, while values come in."""
    sight = Sight(chrome, page.url).open()
    session = sight.page.context.new_cdp_session(sight.page)
    found, began = [], time.monotonic()
    for part in range(10):
        while time.monotonic() - began < seconds * (part + 1) / 10:
            step += 1
            page.store.metric(step, dict.fromkeys(SERIES, 0.5))
            page.store.event("noise", f"step {step}")
            time.sleep(0.5)
        session.send("HeapProfiler.collectGarbage")
        used = session.send("Runtime.getHeapUsage")["usedSize"]
        found.append(round(used / 2**20, 2))
    sight.close()
    return found


async def training(folder: Path, pages: int) -> dict[str, Any]:
    """Steps a second of a laboratory node, without and with open pages, in turns: drift of the machine evens out."""
    spec = describe("arithmetic", operations="+-", digits=1)
    model = make_tiny(folder / "tiny", seed=0)
    rules = manifest_for([spec], max_completion_tokens=4)
    settings = {"train": {"probe_every_steps": 0, "groups_per_step": 4, "group_size": 8}, "model": {"device": "cpu"}}
    rates: dict[str, list[float]] = {"without": [], "with": []}
    async with Lab(folder / "lab", rules) as lab:
        await lab.add(LabPlan("ann", model, settings))
        await lab.rounds(5)
        for _ in range(4):
            rates["without"].append(await rate(lab))
            page = serve(Store.open(folder / "lab" / "ann" / "node.db"))
            readers = [subprocess.Popen([sys.executable, "-c", READER, page.url]) for _ in range(pages)]
            try:
                urllib.request.urlopen(f"{page.url}livez").close()
                await asyncio.sleep(3.0)  # the readers' own start is no part of it
                rates["with"].append(await rate(lab))
            finally:
                for reader in readers:
                    reader.terminate()
                page.close()
    without, beside = (statistics.median(rates[key]) for key in ("without", "with"))
    return {"pages": pages, "steps_per_second": rates, "kept_ratio": round(beside / without, 3)}


async def rate(lab: Lab, steps: int = 40) -> float:
    return round(steps / await lab.rounds(steps), 2)


def as_text(results: dict[str, Any]) -> str:
    lines = ["answers, ms (median / 99 % / longest)"]
    lines += [f"  {n:<18}{a['p50']:>8}{a['p99']:>8}{a['longest']:>8}" for n, a in results["answers_ms"].items()]
    lines += [f"{key:<20}{results[key]}" for key in ("first_paint_ms", "ready_ms", "heap_mebibytes")]
    training = results["training"]
    lines.append(f"training with {training['pages']} pages keeps {training['kept_ratio']:.1%}")
    lines += [f"  {key:<8}{values} steps a second" for key, values in training["steps_per_second"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
