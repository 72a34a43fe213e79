"""The curves of an ablation as one SVG: a panel per node, a line per arm with the range of its seeds behind it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from xml.sax.saxutils import escape

from ftis_node.lab.ablation_plan import AblationPlan
from ftis_node.lab.ablation_runs import ArmRun

WIDTH, HEIGHT, LEFT, TOP, GAP, LEGEND = 460, 280, 52, 34, 64, 170
#: rounds that a point averages over, since one round has few completions
SMOOTHING = 5
#: told apart by people who see few colours, too (Okabe and Ito); dashes come on top after the eighth arm
COLOURS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c00")


def as_svg(plan: AblationPlan, runs: Sequence[ArmRun]) -> str:
    """Own sampled pass@1 by round."""
    panels = [_panel(plan, runs, model.name, place) for place, model in enumerate(plan.models)]
    width = len(plan.models) * (WIDTH + GAP) + LEGEND
    height = TOP + HEIGHT + 46
    legend = "".join(_legend_line(arm, place, width - LEGEND) for place, arm in enumerate(plan.arms))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(panels)}{legend}</svg>\n"
    )


def _panel(plan: AblationPlan, runs: Sequence[ArmRun], node: str, place: int) -> str:
    x = LEFT + place * (WIDTH + GAP)
    curves = {
        arm: [_smooth(curve.sampled) for run in runs if run.arm == arm for curve in run.nodes if curve.node == node]
        for arm in plan.arms
    }
    top = max([value for several in curves.values() for curve in several for value in curve] + [0.1])
    parts = [f'<g transform="translate({x},{TOP})">', _axes(node, top, plan.rounds)]
    for number, arm in enumerate(plan.arms):
        if curves[arm]:
            parts.append(_line(curves[arm], number, top))
    return "".join([*parts, "</g>"])


def _smooth(values: Sequence[float]) -> list[float]:
    return [fmean(values[max(0, end - SMOOTHING) : end]) for end in range(1, len(values) + 1)]


def _line(curves: Sequence[Sequence[float]], number: int, top: float) -> str:
    by_round = list(zip(*curves, strict=True))
    colour = COLOURS[number % len(COLOURS)]
    low, high = ([pick(values) for values in by_round] for pick in (min, max))
    band = _points(high, top) + _points(low, top)[::-1]
    middle = _points([fmean(values) for values in by_round], top)
    return (
        f'<polygon points="{" ".join(band)}" fill="{colour}" opacity="0.12"/>'
        f'<polyline points="{" ".join(middle)}" fill="none" stroke="{colour}" stroke-width="1.8"{_dashes(number)}/>'
    )


def _points(values: Sequence[float], top: float) -> list[str]:
    step = WIDTH / max(1, len(values) - 1)
    return [f"{i * step:.1f},{HEIGHT * (1 - value / top):.1f}" for i, value in enumerate(values)]


def _dashes(number: int) -> str:
    return ' stroke-dasharray="6 4"' if number >= len(COLOURS) else ""


def _axes(node: str, top: float, rounds: int) -> str:
    grid = "".join(
        f'<line x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{top * share:.2f}</text>'
        for share in (0, 0.25, 0.5, 0.75, 1)
        for y in [HEIGHT * (1 - share)]
    )
    return (
        f'{grid}<text x="{WIDTH / 2}" y="-14" text-anchor="middle" font-weight="bold">{escape(node)}: own sampled '
        f'pass@1</text><text x="0" y="{HEIGHT + 18}">1</text><text x="{WIDTH}" y="{HEIGHT + 18}" '
        f'text-anchor="end">{rounds}</text><text x="{WIDTH / 2}" y="{HEIGHT + 18}" text-anchor="middle">round</text>'
    )


def _legend_line(arm: str, number: int, x: int) -> str:
    y = TOP + 12 + 20 * number
    colour = COLOURS[number % len(COLOURS)]
    return (
        f'<line x1="{x}" x2="{x + 26}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2.5"'
        f'{_dashes(number)}/><text x="{x + 34}" y="{y}">{escape(arm)}</text>'
    )
