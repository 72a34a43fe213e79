"""What the page shows and in which words: its sections and curves. The page is drawn from this, and docs/metrics.md
explains every label of it; a test compares the two."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ftis_node import metrics
from ftis_node.store_rollouts import VERDICTS


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a chart. `band` names two series between which the chart is shaded."""

    series: str
    label: str
    band: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one axis. `roles` are the kinds of page that have the data."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    roles: tuple[str, ...] = ("node",)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page that holds charts; `question` is what it answers."""

    key: str
    title: str
    question: str
    charts: tuple[Chart, ...]


def _sides(metric: str) -> tuple[Line, Line]:
    return Line(metrics.series(metric, "own"), "own"), Line(metrics.series(metric, "foreign"), "foreign")


LEARNING = Section(
    "learning",
    "Learning",
    "Is reward rising, and who contributes?",
    (
        Chart(
            "Reward",
            "reward",
            (
                Line(metrics.OWN_REWARD, "own, mean and 10–90 %", (metrics.OWN_REWARD_LOW, metrics.OWN_REWARD_HIGH)),
                Line(metrics.FOREIGN_REWARD, "foreign, mean"),
            ),
        ),
        Chart("Held-out pass@1", "ratio", (Line(metrics.PASS_AT_1, "this node"),)),
        Chart("Completion length", "tokens", (Line(metrics.COMPLETION_TOKENS, "own, mean"),)),
        Chart(
            "Lost to length and sameness",
            "ratio",
            (Line(metrics.TRUNCATED, "truncated"), Line(metrics.ZERO_SPREAD, "zero spread")),
        ),
        Chart(
            "Groups that moved weights",
            "groups a step",
            (Line(metrics.OWN_GROUPS_USED, "own"), Line(metrics.FOREIGN_GROUPS_USED, "foreign")),
        ),
    ),
)
STABILITY = Section(
    "stability",
    "Stability",
    "How off-policy is it?",
    (
        Chart(
            "Mismatch KL",
            "nats per token",
            (Line(metrics.MISMATCH_KL_OWN, "own"), Line(metrics.MISMATCH_KL_FOREIGN, "foreign, where told")),
        ),
        Chart(
            "Importance weight",
            "ratio",
            (Line(metrics.OWN_WEIGHT, "own, mean"), Line(metrics.FOREIGN_WEIGHT, "foreign, mean")),
        ),
        Chart("Weights clipped at the cap", "ratio", _sides(metrics.CLIPPED)),
        Chart("Effective sample size", "ratio", _sides(metrics.EFFECTIVE_SAMPLE)),
        Chart(
            "Left out by the filter",
            "ratio",
            (*_sides(metrics.FILTERED), Line(metrics.NEGATIVES_OFF, "foreign, not to be judged")),
        ),
        Chart(
            "Entropy and surprise",
            "nats per token",
            (Line(metrics.OWN_SURPRISE, "own (entropy)"), Line(metrics.FOREIGN_SURPRISE, "foreign")),
        ),
        Chart("Gradient norm", "1", (Line(metrics.GRADIENT_NORM, "before clipping"),)),
        Chart("Policy lag", "steps", (Line(metrics.POLICY_LAG, "own, mean"),)),
    ),
)
THROUGHPUT = Section(
    "throughput",
    "Throughput",
    "What limits the speed?",
    (
        Chart("Sampling speed", "tokens per second", (Line(metrics.TOKENS_PER_SECOND, "this node"),)),
        Chart(
            "Where a step's time goes",
            "seconds",
            (
                Line(metrics.STEP_SECONDS, "whole step"),
                Line(metrics.WAIT_GROUPS_SECONDS, "waiting for rollouts"),
                Line(metrics.LOAD_WEIGHTS_SECONDS, "handing over weights"),
            ),
        ),
        Chart(
            "Groups waiting to be drawn", "groups", (Line(metrics.series(metrics.BUFFER_GROUPS, "foreign"), "foreign"),)
        ),
    ),
)  # fmt: skip
SWARM = Section(
    "swarm",
    "The swarm over time",
    "Is the swarm alive?",
    (
        Chart(
            "Nodes",
            "nodes",
            (
                Line(metrics.series(metrics.SWARM_NODES, "working"), "working"),
                Line(metrics.series(metrics.SWARM_NODES, "alone"), "alone"),
                Line(metrics.series(metrics.SWARM_NODES, "joining"), "joining"),
            ),
            ("node", "seed", "observer"),
        ),
        Chart(
            "Sampling speed of all", "tokens per second", (Line(metrics.SWARM_SPEED, "all nodes"),),
            ("node", "seed", "observer"),
        ),
        Chart(
            "Held-out pass@1 of all", "ratio", (Line(metrics.SWARM_PASS_AT_1, "mean of all nodes"),),
            ("node", "seed", "observer"),
        ),
        Chart(
            "Groups of all",
            "groups",
            (Line(metrics.SWARM_PUBLISHED, "published"), Line(metrics.SWARM_USED, "used by others")),
            ("node", "seed", "observer"),
        ),
        Chart("On offer", "groups", (Line(metrics.OFFERED_GROUPS, "groups on offer"),), ("observer",)),
    ),
)  # fmt: skip
SECTIONS = (LEARNING, STABILITY, THROUGHPUT, SWARM)

#: labels of the page that are no curves, with what they mean; the keys are what the page's markup names
WORDS: dict[str, str] = {
    "Swarm": "alive: another node with a model shows a valid card; alone: none does, and this node trains by itself.",
    "Nodes working": "Nodes with a model whose card is valid and says working or alone: they train.",
    "Nodes joining": "Nodes that are starting or joining.",
    "Nodes silent": "Nodes whose last card has run out, or that said good-bye.",
    "Policy steps": "Optimiser steps of all present nodes together, by their cards.",
    "Tokens a second": "Sampling speed of all present nodes together, by their cards.",
    "Data": "Time since this node last wrote anything. It grows when the node hangs.",
    "State": "Where the node stands: starting, joining, working, alone, degraded, paused, draining or stopped.",
    "Step": "Optimiser step of this node; a step whose batch gave no signal counts as well.",
    "Used": "Groups that moved weights of this node: own ones, and those of others.",
    "Admitted": "Groups of others that passed every check at the door.",
    "Published": "Own groups that this node stored for others.",
    "Refused": "Groups of others that were turned away, by reason code.",
    "Put aside": "Groups of others that were admitted but did not train, by reason code.",
    "In": "Message bytes received, and per completion token admitted.",
    "Out": "Message bytes sent, and per completion token published.",
    "Bottleneck": "The largest share of a step's time: waiting for rollouts, handing over weights, or learning.",
    "Model": "What learns here: its size, what of it is trained, and the engine that samples.",
    "Gates": "What must hold for the node to be of use; each with the reason and what to do.",
    "Taken by us": "Groups of that node which this one accepted, and which broke a promise, by this node's count.",
    "Taken by them": "Groups of this node which that one accepted, and which broke a promise, by its own card.",
    "Never looked at": "Own published groups that a node has neither accepted nor refused: nobody has to read all.",
    "Name": "What a node calls itself; anybody may take any name, the node id is what counts.",
    "Steps": "Optimiser steps of that node, by its card.",
    "pass@1": "Held-out items that the node answers right greedily, by its card.",
    "Broke a promise": "Groups refused for a reason that no honest node can have.",
    "Their broken promises": "Groups of that node which this one refused for a reason that no honest node can have.",
    "Opinion": "What the operator said of that node: trust believes what it tells of its policy, block takes nothing.",
    "Version": "The program that the node runs, by its card.",
    "Node id": "The hash of the node's key.",
    "Weight": "Mean importance weight of a completion's tokens: how much of it could count.",
    "Surprise": "What a completion costs this node's own policy, in nats per token.",
    "Advantage": "What a completion was allowed to teach, after every limit and the filter.",
    "Seen": "When the newest card of that node came in.",
}  # fmt: skip


def layout(role: str) -> dict[str, Any]:
    """Sections, charts and words of a page of that role, as JSON values."""
    sections = []
    for section in SECTIONS:
        charts = [asdict(chart) for chart in section.charts if role in chart.roles]
        if charts:
            sections.append({**asdict(section), "charts": charts})
    meanings = {name: metric.meaning for name, metric in metrics.TABLE.items()}
    return {"role": role, "sections": sections, "words": WORDS, "verdicts": VERDICTS, "meanings": meanings}
