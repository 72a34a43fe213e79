"""Bytes per completion token, all-in, of what a node publishes, beside what other systems send for the same texts.

SmolLM2-135M's completions become groups, groups become frames, frames are sealed as a node seals them. Counted are
the sealed frame (texts, rewards, prompt references, policy, signature, key), the offer that announces it alone, and the
keys under which both are filed, as they travel: 20 bytes each and the author's id. Not counted: what the DHT adds
around a record, and its copies. Each line draws its groups at random from the corpus, again and again.

Compared: 8 bytes a token (a 4-byte id and a 4-byte log-probability, the paper's format), JSON, GenRL 0.3.0's own
serialiser, and zstd at level 19 over the bare texts of each group. None of those carries a signature or an offer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import genrl_wheel
from samples import MEASURED, RealGroup, asked_in, load_or_sample
from wire_forms import PAPER_BYTES_PER_TOKEN, Drawn, Publisher, draws, others, publishers

from ftis_protocol.rollout import Evidence

GROUP_SIZES = (8, 12)
FEW, MANY = (1, 4, 8), (8, 40)  # groups a frame, for prose and for very short answers


@dataclass(frozen=True, slots=True)
class Goal:
    """At most `bytes_per_token` in the median, tier `none`, for a corpus at `groups` a frame, in both group sizes."""

    corpus: str
    groups: int
    bytes_per_token: float


GOALS = (Goal("realistic", 8, 0.75), Goal("noise", 8, 1.3), Goal("long-noise", 8, 1.4), Goal("short", 40, 0.7))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; bytes per completion token. `low` and `high` hold nine of ten draws."""

    corpus: str
    evidence: str
    group_size: int
    groups: int
    tokens: float
    median: float
    low: float
    high: float
    offer: float
    plain: float
    others: dict[str, float]


def lines(name: str, groups: Sequence[RealGroup], pack: genrl_wheel.Pack, count: int) -> Iterator[Line]:
    """All layouts of one corpus."""
    asked = asked_in(MEASURED[name])
    ours, plain = publishers()
    short = name.startswith("short")
    for evidence in Evidence if MEASURED[name].logprobs else (Evidence.NONE,):
        for size in GROUP_SIZES:
            for per_frame in MANY if short else FEW:
                if evidence is Evidence.NONE or per_frame == max(MANY if short else FEW):
                    yield line(name, evidence, draws(groups, asked, size, per_frame, count), ours, plain, pack)


def line(
    name: str, evidence: Evidence, drawn: Sequence[Drawn], ours: Publisher, plain: Publisher, pack: genrl_wheel.Pack
) -> Line:
    """Seals every draw and takes the median; the other forms are of the first few draws."""
    costs = [ours.cost(one.frame(evidence), one.tokens) for one in drawn]
    few = drawn[:5]
    ordered = sorted(cost.per_token for cost in costs)
    cuts = statistics.quantiles(ordered, n=20, method="inclusive")
    return Line(
        corpus=name,
        evidence=evidence.value,
        group_size=len(drawn[0].groups[0].completions),
        groups=len(drawn[0].groups),
        tokens=statistics.median(cost.tokens for cost in costs),
        median=statistics.median(ordered),
        low=cuts[0],
        high=cuts[-1],
        offer=statistics.median(cost.around / cost.tokens for cost in costs),
        plain=statistics.median(plain.cost(one.frame(evidence), one.tokens).per_token for one in few),
        others={form: statistics.median(map(measure, few)) for form, measure in others(pack).items()},
    )


def machine() -> str:
    """What decides the numbers: versions, hardly the processor."""
    return f"Python {platform.python_version()}, zstandard {version('zstandard')}, {platform.machine()}"


def describe(name: str, groups: Sequence[RealGroup]) -> str:
    """A corpus in a line."""
    members = [member for group in groups for member in group.completions]
    tokens = sum(member.tokens for member in members)
    nats = [-sum(member.logprobs) for member in members]
    told = f", {sum(nats) / tokens / 8 / 0.6931:.2f} bytes a token to the model itself" if sum(nats) else ""
    characters = sum(len(member.text) for member in members)
    return (
        f"{name:<11} {len(groups)} groups x {len(groups[0].completions)}, temperature {MEASURED[name].temperature:g}, "
        f"{tokens / len(members):.1f} tokens each, {characters / tokens:.2f} characters a token{told}"
    )


def show(table: Sequence[Line]) -> None:
    """The table in Markdown, as it stands in docs/results.md."""
    print(
        "\n| text | tier | G | groups | tokens | all-in (5-95 %) | of it offer | no dictionary "
        "| zstd-19 | JSON | GenRL |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in table:
        print(
            f"| {row.corpus} | {row.evidence} | {row.group_size} | {row.groups} | {row.tokens:.0f} "
            f"| **{row.median:.2f}** ({row.low:.2f}-{row.high:.2f}) | {row.offer:.2f} | {row.plain:.2f} "
            f"| {row.others['zstd-19']:.2f} | {row.others['JSON']:.2f} | {row.others['GenRL']:.2f} |"
        )
    print(f"\nthe paper's format: {PAPER_BYTES_PER_TOKEN:.2f}")


def judge(table: Sequence[Line]) -> bool:
    """Prints each goal with what was reached; True when all are met."""
    met = True
    for goal in GOALS:
        found = [
            row.median
            for row in table
            if (row.corpus, row.evidence, row.groups) == (goal.corpus, Evidence.NONE.value, goal.groups)
        ]
        reached = bool(found) and max(found) <= goal.bytes_per_token
        met &= reached
        told = ", ".join(f"{value:.3f}" for value in found) or "nothing measured"
        print(
            f"{goal.corpus}, {goal.groups} groups: at most {goal.bytes_per_token}; {told}: "
            f"{'met' if reached else 'MISSED'}"
        )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20, metavar="N", help="frames for each line (default 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    parser.add_argument("corpus", nargs="*", metavar="CORPUS", help=f"of {', '.join(MEASURED)}; default all of them")
    arguments = parser.parse_args()
    names = arguments.corpus or list(MEASURED)
    if unknown := set(names) - set(MEASURED):
        parser.error(f"no corpus {', '.join(sorted(unknown))}")
    cache = Path(os.environ.get("FTIS_CACHE") or Path.home() / ".cache" / "ftis")
    corpora = {name: load_or_sample(cache, MEASURED[name]) for name in names}
    pack = genrl_wheel.load(cache)
    print(machine())
    for name, groups in corpora.items():
        print(describe(name, groups))
    table = [row for name, groups in corpora.items() for row in lines(name, groups, pack, arguments.draws)]
    show(table)
    met = judge([row for row in table if row.corpus in names])
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in table], indent=2) + "\n")
    return 0 if met or arguments.corpus else 1


if __name__ == "__main__":
    sys.exit(main())
