"""`ftis-node ablate`: the estimators and evidence tiers against each other, on models that anybody can train."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ftis_node.commands.options import AblateOptions
from ftis_node.console import Console
from ftis_node.environment import cache_dir
from ftis_node.lab.ablation_plan import AblationPlan, read_plan
from ftis_node.lab.ablation_plot import as_svg
from ftis_node.lab.ablation_report import as_document, as_text, rounds_csv, summary_csv
from ftis_node.lab.ablation_runs import ArmRun, Progress, run_all, start_models
from ftis_node.lab.machine import describe_machine
from ftis_node.lab.teach import TeachProgress
from ftis_node.state import write_atomically


def run(options: AblateOptions, console: Console) -> None:
    """Teach or find the models, run what is not done yet, write the results and show the table."""
    plan = read_plan(options.file, rounds=options.rounds, seeds=options.seeds, arms=options.arms)
    out = options.out or Path("ablation")

    def teaching(name: str, now: TeachProgress) -> None:
        share = int(100 * min(1.0, now.success / now.goal))
        console.progress(share, 100, f"teaching {name}: right with probability {now.success:.3f}, goal {now.goal:g}")

    models = start_models(plan, cache_dir(), teaching)
    console.say(
        f"{len(plan.arms)} arms x {len(plan.seeds)} seeds x {plan.rounds} rounds; finished runs in {out / 'runs'}"
    )
    runs = run_all(plan, models, out, lambda now: _show(now, console))
    _write(plan, runs, out, console, as_json=options.json)


def _show(now: Progress, console: Console) -> None:
    left = "" if now.seconds_left is None else f", about {_duration(now.seconds_left)} left"
    console.progress(now.done, now.total, f"rounds: {now.arm}, seed {now.seed}{left}", arm=now.arm, seed=now.seed)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _write(plan: AblationPlan, runs: Sequence[ArmRun], out: Path, console: Console, *, as_json: bool) -> None:
    machine = describe_machine()
    text, document = as_text(plan, runs, machine), as_document(plan, runs, machine)
    pages = {
        "table.txt": text + "\n",
        "report.json": json.dumps(document, indent=1) + "\n",
        "summary.csv": summary_csv(plan, runs),
        "rounds.csv": rounds_csv(runs),
        "curves.svg": as_svg(plan, runs),
    }
    for name, content in pages.items():
        write_atomically(out / name, content.encode())
    console.document(document if as_json else text)
    console.say(f"written: {', '.join(str(out / name) for name in pages)}")
