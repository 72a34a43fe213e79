"""From the node's own database to what the page shows. Nothing here writes, and nothing asks anybody else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ftis_node import __version__, health, metrics
from ftis_node.dashboard import schema
from ftis_node.store import Store
from ftis_node.store_cards import CardRow, card_sums, cards
from ftis_node.store_log import last_write
from ftis_node.store_records import Fact, PeerRow, Point
from ftis_protocol.errors import REASON_MEANINGS, Reason

#: steps over which the bottleneck is averaged
BOTTLENECK_STEPS = 20
SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Served:
    """What a page is part of: `role` is node, seed or observer; `writable` whether it takes actions."""

    swarm_id: str
    role: str
    public: bool = False
    writable: bool = False


def state(store: Store, served: Served) -> schema.State:
    """The whole document of /api/v1/state."""
    now, facts, totals, latest = time.time(), store.facts(), store.totals(), store.latest()
    written = last_write(store)
    return schema.State(
        now=now,
        age_seconds=max(0.0, now - written) if written is not None else 0.0,
        role=served.role,
        public=served.public,
        writable=served.writable,
        swarm=swarm_view(store, facts, served.swarm_id, served.role),
        node=_node(facts, served),
        gates=_gates(store, now) if served.role == "node" else (),
        counts=_counts(store, totals),
        traffic=_traffic(totals),
        bottleneck=_bottleneck(store),
        latest={name: point.value for name, point in sorted(latest.items())},
    )


def _gates(store: Store, now: float) -> tuple[schema.GateView, ...]:
    """The page runs in the node's own process, so there is one."""
    found = health.node_gates(store, running=True, now=now)
    return tuple(schema.GateView(name=g.name, verdict=g.verdict.value, why=g.why, fix=g.fix) for g in found)


def _doing(parts: Mapping[str, Mapping[str, object]]) -> str:
    """What the parts of the node are at now."""
    return "; ".join(f"{name}: {part['doing']}" for name, part in parts.items() if part.get("doing"))


def swarm_view(store: Store, facts: Mapping[str, object], swarm_id: str, role: str) -> schema.SwarmView:
    """The strip: what the newest cards add up to, as seen by a node, a seed or an observer."""
    sums = card_sums(store)
    nodes = [part for part in sums if part.role == "node"]
    here = [part for part in nodes if part.present]
    counted = Counter[str]()
    for part in nodes:
        counted[part.state or "unknown" if part.present else SILENT] += part.count
    others = sum(part.count for part in here) - (role == "node")
    return schema.SwarmView(
        id=swarm_id,
        name=str(facts.get(Fact.SWARM_NAME) or ""),
        state="alive" if others > 0 else "alone" if role == "node" else "unknown",
        nodes=dict(counted),
        seeds=sum(part.count for part in sums if part.role == "seed" and part.present),
        policy_steps=sum(part.policy_steps for part in here),
        tokens_per_second=sum(part.tokens_per_second for part in here),
        published_groups=sum(part.groups_published for part in here),
    )


def shown_state(row: CardRow) -> str:
    """The state that a card claims while its author is there."""
    return row.card.state or "unknown" if row.present else SILENT


def _node(facts: Mapping[str, Any], served: Served) -> schema.NodeView:
    def text(key: str) -> str:
        return str(facts.get(key) or "")

    def number(key: str) -> int:
        value = facts.get(key)
        return int(value) if isinstance(value, int | float) else 0

    def moment(key: str) -> float | None:
        value = facts.get(key)
        return float(value) if isinstance(value, int | float) else None

    return schema.NodeView(
        id=text(Fact.NODE_ID),
        name=text(Fact.NODE_NAME),
        role=served.role,
        state=text(Fact.STATE) or "unknown",
        why=text(Fact.STATE_WHY),
        doing=_doing(facts.get(Fact.PARTS) or {}),
        model=text(Fact.MODEL),
        parameters=number("parameters"),
        trainable=text("trainable"),
        tokenizer=text("tokenizer"),
        generator=text("generator"),
        step=number(Fact.STEP),
        policy_version=number(Fact.POLICY_VERSION),
        started_at=moment(Fact.STARTED_AT),
        alone_since=moment(Fact.ALONE_SINCE),
        invite=text("invite") if not served.public else "",
        software=f"ftis-node {__version__}",
    )


def _counts(store: Store, totals: Mapping[str, float]) -> schema.Counts:
    counts = store.counts()

    def reasons(verdict: str) -> tuple[schema.ReasonCount, ...]:
        found = Counter({reason: count for (kind, reason), count in counts.items() if kind == verdict})
        return tuple(
            schema.ReasonCount(reason=reason, count=count, meaning=meaning_of(reason))
            for reason, count in found.most_common()
        )

    return schema.Counts(
        own_used=int(totals.get(metrics.OWN_GROUPS_USED, 0)),
        foreign_used=int(totals.get(metrics.FOREIGN_GROUPS_USED, 0)),
        admitted=int(totals.get(metrics.FOREIGN_ADMITTED, 0)),
        published=int(totals.get(metrics.PUBLISHED_GROUPS, 0)),
        refused=reasons("refused"),
        unused=reasons("unused"),
    )


def meaning_of(reason: str) -> str:
    """The sentence behind a reason code; empty for none and for one of another version."""
    return REASON_MEANINGS[Reason(reason)] if reason in set(Reason) else ""


def sum_of(totals: Mapping[str, float], name: str) -> int:
    """A counter over all values of its label."""
    return int(sum(value for series, value in totals.items() if series.partition("{")[0] == name))


def _traffic(totals: Mapping[str, float]) -> schema.Traffic:
    tokens_in, tokens_out = (int(totals.get(name, 0)) for name in (metrics.FOREIGN_TOKENS, metrics.PUBLISHED_TOKENS))
    bytes_in, bytes_out = sum_of(totals, metrics.BYTES_IN), sum_of(totals, metrics.BYTES_OUT)
    return schema.Traffic(
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        bytes_per_token_in=bytes_in / tokens_in if tokens_in else None,
        bytes_per_token_out=bytes_out / tokens_out if tokens_out else None,
        tokens_generated=int(totals.get(metrics.GENERATED_TOKENS, 0)),
    )


_BOTTLENECKS = {
    "rollouts": "the learner waits for groups: sampling is what limits this node",
    "weights": "handing new weights to the generator takes longest",
    "learning": "the optimiser step itself takes longest",
}


def _bottleneck(store: Store) -> schema.Bottleneck:
    def mean(name: str) -> float | None:
        points: tuple[Point, ...] = store.points(name, BOTTLENECK_STEPS)
        return fmean(point.value for point in points) if points else None

    step, wait, load = (
        mean(n) for n in (metrics.STEP_SECONDS, metrics.WAIT_GROUPS_SECONDS, metrics.LOAD_WEIGHTS_SECONDS)
    )
    if step is None or wait is None or load is None:
        return schema.Bottleneck(name="unknown", why="no step yet")
    learn = max(0.0, step - wait - load)
    name = max((wait, "rollouts"), (load, "weights"), (learn, "learning"))[1]
    return schema.Bottleneck(
        name=name,  # type: ignore[arg-type]
        why=_BOTTLENECKS[name],
        wait_groups_seconds=wait,
        load_weights_seconds=load,
        learn_seconds=learn,
        step_seconds=step,
    )


def nodes(store: Store, question: schema.NodesQuestion) -> schema.Nodes:
    """Who is there, this node first."""
    own = str(store.fact(Fact.NODE_ID, ""))
    tallies = {peer.node_id: peer for peer in store.peers(5_000)}
    opinions: dict[str, str] = store.fact(Fact.OPINIONS) or {}
    rows = sorted(cards(store), key=lambda row: row.node_id != own)
    if question.state is not None:
        rows = [row for row in rows if shown_state(row) == question.state]
    part = rows[question.offset : question.offset + question.limit]
    return schema.Nodes(
        total=len(rows),
        offset=question.offset,
        published_here=int(store.totals().get(metrics.PUBLISHED_GROUPS, 0)),
        nodes=tuple(_node_row(row, own, tallies.get(row.node_id), opinions.get(row.node_id, "")) for row in part),
    )


def _node_row(row: CardRow, own: str, tally: PeerRow | None, opinion: str) -> schema.NodeRow:
    card, of_us = row.card, row.card.peers.get(own)
    return schema.NodeRow(
        node_id=row.node_id,
        name=card.name,
        role=card.role,
        state=shown_state(row),
        me=row.node_id == own,
        model=card.model,
        parameters=card.parameters,
        tokenizer=card.tokenizer,
        trainable=card.trainable,
        software=card.software,
        policy_version=card.policy_version,
        tokens_per_second=card.tokens_per_second,
        pass_at_1=card.pass_at_1,
        groups_published=card.groups_published,
        groups_used=card.groups_used,
        here=schema.Tally(accepted=tally.accepted if tally else 0, refused=tally.refused if tally else 0),
        used_here=tally.used if tally else 0,
        of_us=schema.Tally(accepted=of_us.accepted, refused=of_us.refused) if of_us else None,
        opinion=opinion,
        seen_at=row.seen_at,
    )
