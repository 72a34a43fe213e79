"""`ftis-node demo`: a whole swarm on this machine, and a table of what its nodes learned from each other."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftis_node.commands.options import DemoOptions
from ftis_node.console import Console, table
from ftis_node.environment import cache_dir
from ftis_node.errors import UsageError
from ftis_node.lab.cast import TASK, cast
from ftis_node.lab.local_swarm import LocalSwarm, NodeResult, page_of, result_of


def run(options: DemoOptions, console: Console) -> None:
    """Prepare the models, run the swarm until every node has done its steps, and report."""
    began = time.monotonic()
    _refuse_used(options.work_dir)
    signal.signal(signal.SIGTERM, _interrupt)
    root = options.work_dir or Path(tempfile.mkdtemp(prefix="ftis-demo-"))
    plans = cast(options.nodes, options.steps, options.seed, options.exchange, cache_dir(), console)
    try:
        with LocalSwarm(root) as swarm:
            with console.step("founding the swarm: one seed process, no model"):
                invite = swarm.found("demo", [TASK])
            console.say(f"invite {invite}")
            console.say(f"page of the seed, which sees all nodes: {page_of(root / 'seed')}")
            learners = [swarm.join(plan) for plan in plans]
            console.say(f"{len(learners)} nodes join as processes of their own; logs in {root / 'logs'}")
            swarm.wait(learners, _Progress(console, options.steps, root))
            results = [result_of(root / plan.name) for plan in plans]
    finally:
        if options.work_dir is None and not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    report = summary(results, options, time.monotonic() - began)
    console.document(report if options.json else as_text(report))
    if options.keep and options.work_dir is None:
        console.say(f"the nodes' state is kept in {root}")


def _refuse_used(work_dir: Path | None) -> None:
    if work_dir is not None and work_dir.exists() and (not work_dir.is_dir() or any(work_dir.iterdir())):
        raise UsageError(f"{work_dir} is not an empty directory", hint="Name one that is empty or does not exist yet.")


def _interrupt(number: int, frame: object) -> None:
    """SIGTERM ends the demo as Ctrl-C does: no learner may go on by itself."""
    raise KeyboardInterrupt


class _Progress:
    """Steps of all nodes as one line with the time left; and where each shows its page, as soon as it does."""

    def __init__(self, console: Console, steps: int, root: Path) -> None:
        self._console = console
        self._root = root
        self._pages: dict[str, str] = {}
        self._steps = steps
        self._began: float | None = None
        self._shown: Mapping[str, int] = {}

    def __call__(self, done: Mapping[str, int]) -> None:
        for name in done:
            if name not in self._pages and (address := page_of(self._root / name)):
                self._pages[name] = address
                self._console.say(f"page of {name}: {address}")
        if done == self._shown:
            return
        self._shown = dict(done)
        total, now = sum(done.values()), time.monotonic()
        if total and self._began is None:
            self._began = now
        wanted = self._steps * len(done)
        left = ""
        if self._began is not None and total > len(done) and total < wanted:
            seconds = (now - self._began) / total * (wanted - total)
            left = f", about {seconds:.0f} s left"
        each = "  ".join(f"{name} {steps}" for name, steps in done.items())
        self._console.progress(total, wanted, f"steps: {each}{left}", nodes=dict(done))


def summary(results: list[NodeResult], options: DemoOptions, seconds: float) -> dict[str, Any]:
    """The demo's outcome as JSON values."""
    tokens = sum(result.published_tokens for result in results)
    size = sum(result.published_bytes for result in results)
    return {
        "task": TASK,
        "steps": options.steps,
        "seed": options.seed,
        "exchange": options.exchange,
        "seconds": round(seconds, 1),
        "nodes": [{**asdict(result), "bytes_per_token": result.bytes_per_token} for result in results],
        "wire": {"bytes": size, "completion_tokens": tokens, "bytes_per_token": size / tokens if tokens else None},
    }


def as_text(report: Mapping[str, Any]) -> str:
    """The table for a person."""
    rows = []
    for node in report["nodes"]:
        first, last = node["pass_at_1"]
        refused = ", ".join(f"{reason} {count}" for reason, count in sorted(node["refused"].items())) or "none"
        rows.append(
            (
                node["name"],
                f"{node['model']}{' + adapter' if node['trainable'] == 'lora' else ''}",
                node["tokenizer"][:8],
                node["steps"],
                _rate(first),
                _rate(last),
                node["own_used"],
                node["foreign_used"],
                refused,
            )
        )
    headers = ("node", "model", "tokenizer", "steps", "pass@1 start", "end", "own used", "foreign used", "refused")
    wire = report["wire"]
    lines = [table(headers, rows), ""]
    items = report["nodes"][0]["held_out_items"]
    lines.append(f"pass@1: share of {items} held-out items answered right, greedily; used: groups that moved weights")
    if wire["bytes_per_token"] is not None:
        lines.append(
            f"wire: {wire['bytes']:,} bytes for {wire['completion_tokens']:,} completion tokens of published groups, "
            f"{wire['bytes_per_token']:.2f} bytes a token with signatures and offers"
        )
    lines.append(f"took {report['seconds']:.0f} s")
    return "\n".join(lines)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
