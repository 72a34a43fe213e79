"""What an ablation showed: one row per arm and node, as text, JSON and CSV.

`start` is own sampled pass@1 in the first round, `end` its mean over the last rounds, then the mean over seeds; the
range is that of the seeds. `greedy` is held-out pass@1 before the first round and after the last one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ftis_node.console import table
from ftis_node.lab.ablation import NodeCurve
from ftis_node.lab.ablation_plan import AblationPlan
from ftis_node.lab.ablation_runs import ArmRun

REFERENCE_ARM = "alone"


@dataclass(frozen=True, slots=True)
class Row:
    """One node in one arm, over all seeds. `against_alone`: its end less its end alone; None without such an arm."""

    arm: str
    node: str
    parameters: int
    seeds: int
    start: float
    end: float
    end_low: float
    end_high: float
    against_alone: float | None
    greedy_start: float
    greedy_end: float
    greedy_low: float
    greedy_high: float
    foreign_used: float


def summarise(plan: AblationPlan, runs: Sequence[ArmRun]) -> tuple[Row, ...]:
    """Rows in the order of the plan's arms and models."""
    by_place: dict[tuple[str, str], list[NodeCurve]] = {}
    for run in runs:
        for curve in run.nodes:
            by_place.setdefault((run.arm, curve.node), []).append(curve)
    order = [(arm, model.name) for arm in plan.arms for model in plan.models]
    return tuple(_row(plan, place, by_place) for place in order if place in by_place)


def _row(plan: AblationPlan, place: tuple[str, str], by_place: dict[tuple[str, str], list[NodeCurve]]) -> Row:
    arm, node = place
    curves = by_place[place]
    ends = [_end(plan, curve) for curve in curves]
    alone = by_place.get((REFERENCE_ARM, node))
    greedy = [curve.greedy[1] for curve in curves]
    return Row(
        arm=arm,
        node=node,
        parameters=curves[0].parameters,
        seeds=len(curves),
        start=fmean(curve.sampled[0] for curve in curves),
        end=fmean(ends),
        end_low=min(ends),
        end_high=max(ends),
        against_alone=fmean(ends) - fmean(_end(plan, curve) for curve in alone) if alone else None,
        greedy_start=fmean(curve.greedy[0] for curve in curves),
        greedy_end=fmean(greedy),
        greedy_low=min(greedy),
        greedy_high=max(greedy),
        foreign_used=fmean(curve.foreign_used for curve in curves),
    )


def _end(plan: AblationPlan, curve: NodeCurve) -> float:
    return fmean(curve.sampled[-plan.last_rounds :])


def as_document(plan: AblationPlan, runs: Sequence[ArmRun], machine: str) -> dict[str, Any]:
    """Everything as JSON values: the plan, the rows, the curves, the machine."""
    return {
        "plan": plan.model_dump(mode="json"),
        "rows": [asdict(row) for row in summarise(plan, runs)],
        "runs": [asdict(run) for run in runs],
        "machine": machine,
    }


def as_text(plan: AblationPlan, runs: Sequence[ArmRun], machine: str) -> str:
    """The table for a person, and how to read it."""
    headers = ("arm", "node", "start", "end", "range", "vs alone", "greedy start", "end", "range", "foreign used")
    rows = [
        (
            row.arm,
            row.node,
            f"{row.start:.3f}",
            f"{row.end:.3f}",
            f"{row.end_low:.3f}-{row.end_high:.3f}",
            "" if row.against_alone is None or row.arm == REFERENCE_ARM else f"{row.against_alone:+.3f}",
            f"{row.greedy_start:.3f}",
            f"{row.greedy_end:.3f}",
            f"{row.greedy_low:.3f}-{row.greedy_high:.3f}",
            f"{row.foreign_used:.0f}",
        )
        for row in summarise(plan, runs)
    ]
    items = max((curve.held_out_items for run in runs for curve in run.nodes), default=0)
    last = min(plan.last_rounds, plan.rounds)
    seeds = ", ".join(map(str, plan.seeds))
    seconds = sum(run.seconds for run in runs)
    return "\n".join(
        [
            table(headers, rows),
            "",
            f"start, end: own sampled pass@1 in the first of {plan.rounds} rounds and over the last {last}, mean over "
            f"seeds {seeds}; range: of the seeds",
            f"greedy: share of {items} held-out items answered right, before and after; foreign used: groups of "
            "peers that moved the node's weights",
            f"{seconds:.0f} s in all; {machine}",
        ]
    )


def summary_csv(plan: AblationPlan, runs: Sequence[ArmRun]) -> str:
    """One line per arm and node: the fields of `Row`."""
    return _csv([asdict(row) for row in summarise(plan, runs)])


def rounds_csv(runs: Sequence[ArmRun]) -> str:
    """One line per arm, seed, node and round: the curves."""
    return _csv(
        [
            {"arm": run.arm, "seed": run.seed, "node": curve.node, "round": number + 1, "sampled_pass_at_1": value}
            for run in runs
            for curve in run.nodes
            for number, value in enumerate(curve.sampled)
        ]
    )


def _csv(lines: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    if lines:
        writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return text.getvalue()
