"""A database as a node leaves it after many steps, without a node: for the page's tests and its bench."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

from ftis_node import metrics
from ftis_node.store import Store
from ftis_node.store_cards import Heard, note_cards, note_own_card
from ftis_node.store_rollouts import CompletionRow, RolloutRow, add_rollouts
from ftis_protocol.presence import NodeCard, PeerTally

SERIES = (
    metrics.OWN_REWARD, metrics.OWN_REWARD_LOW, metrics.OWN_REWARD_HIGH, metrics.FOREIGN_REWARD, metrics.PASS_AT_1,
    metrics.COMPLETION_TOKENS, metrics.TRUNCATED, metrics.ZERO_SPREAD, metrics.OWN_GROUPS_USED,
    metrics.FOREIGN_GROUPS_USED, metrics.MISMATCH_KL_OWN, metrics.OWN_WEIGHT, metrics.FOREIGN_WEIGHT,
    metrics.OWN_SURPRISE, metrics.FOREIGN_SURPRISE, metrics.GRADIENT_NORM, metrics.POLICY_LAG,
    metrics.TOKENS_PER_SECOND, metrics.GENERATED_TOKENS, metrics.STEP_SECONDS, metrics.WAIT_GROUPS_SECONDS,
    metrics.LOAD_WEIGHTS_SECONDS, metrics.SWARM_SPEED, metrics.SWARM_PASS_AT_1,
    *(metrics.series(name, side) for side in ("own", "foreign")
      for name in (metrics.CLIPPED, metrics.EFFECTIVE_SAMPLE, metrics.FILTERED)),
    metrics.series(metrics.SWARM_NODES, "working"),
)  # fmt: skip
OWN = "a" * 26
#: what a peer may put wherever it may put text
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def node_id(number: int) -> str:
    """A well-formed node id."""
    letters = "bcdefghijklmnopqrstuvwxyz234567"
    return "".join(letters[(number // 31**place) % 31] for place in range(26))


@dataclass(frozen=True)
class Shape:
    """How much history, and how many other nodes."""

    steps: int = 40
    nodes: int = 5
    rollouts: int = 12


def make(path: Path, shape: Shape | None = None, *, hostile: bool = False) -> Store:
    """A store with everything that the page can show, open for writing."""
    shape = shape or Shape()
    store = Store.open(path)
    begun = time.time() - shape.steps
    store.set_facts(
        node_id=OWN, name="ann", swarm_name=HOSTILE[:40] if hostile else "sums", model="tiny-2x64", parameters=106_000,
        tokenizer="t" * 16, trainable="full", generator="transformers", step=shape.steps, policy_version=shape.steps,
        state="working", started_at=begun, peers=shape.nodes, alone_since=None, invite="ftis:...",
        beat_at=time.time(), state_since=begun, accepted_at=time.time(),
    )  # fmt: skip
    rows = [
        (begun + step, step, name, _value(name, step, shape.steps)) for step in range(1, shape.steps + 1)
        for name in SERIES
    ]  # fmt: skip
    with store.writing() as db:
        db.executemany("INSERT INTO metrics (ts, step, name, value) VALUES (?, ?, ?, ?)", rows)
        for name in SERIES:
            if metrics.metric_of(name).kind is metrics.Kind.COUNTER:
                total = sum(value for _, _, series, value in rows if series == name)
                db.execute("INSERT INTO totals VALUES (?, ?)", (name, total))
    store.count(metrics.PUBLISHED_GROUPS, 120)
    store.count(metrics.PUBLISHED_TOKENS, 4_000)
    store.count(metrics.FOREIGN_ADMITTED, 77)
    store.count(metrics.FOREIGN_TOKENS, 2_000)
    store.count(metrics.series(metrics.BYTES_IN, "frame"), 5_000)
    store.count(metrics.series(metrics.BYTES_OUT, "frame"), 9_000)
    _people(store, shape, hostile)
    for number in range(shape.rollouts):
        add_rollouts(store, [_rollout(number, hostile)])
    store.event("start", HOSTILE if hostile else "tiny-2x64 with the transformers generator, from step 0")
    return store


def _value(name: str, step: int, steps: int) -> float:
    if metrics.metric_of(name).kind is metrics.Kind.COUNTER:
        return float(1 + step % 4)
    return round(0.5 + 0.4 * step / max(steps, 1) + 0.05 * math.sin(step / 7), 4)


def _people(store: Store, shape: Shape, hostile: bool) -> None:
    name = "<b>bob</b>" if hostile else "bob"
    others = [
        Heard(
            node_id(n),
            NodeCard(
                name=f"{name}-{n}", state="working", model=HOSTILE[:60] if hostile else "SmolLM2-135M",
                parameters=134_500_000, tokenizer="u" * 16, policy_version=10 + n, tokens_per_second=50.0,
                groups_published=20, groups_used=5, pass_at_1=0.5, software="ftis-node 0.1.0",
                peers={OWN: PeerTally(accepted=30 + n, refused=n % 2)},
            ),
            time.time(),
        )
        for n in range(shape.nodes)
    ]  # fmt: skip
    note_cards(store, others, OWN)
    note_own_card(
        store, OWN,
        NodeCard(name="ann", state="working", model="tiny-2x64", policy_version=shape.steps, tokens_per_second=200.0,
                 groups_published=120, groups_used=60, pass_at_1=0.7, software="ftis-node 0.1.0"),
    )  # fmt: skip
    for n in range(min(shape.nodes, 50)):
        store.verdict(bytes([n]) * 16, node_id(n), "arithmetic", "admitted")
    store.verdict(b"r" * 16, node_id(0), "arithmetic", "refused", "reward_mismatch")


def _rollout(number: int, hostile: bool) -> RolloutRow:
    rng = random.Random(number)
    foreign = number % 3 == 0
    parts = tuple(
        CompletionRow(
            text=HOSTILE if hostile else f"{rng.randrange(20)}", finish="rule", reward=float(k % 2), tokens=3,
            verdict="trained" if k % 2 or not foreign else "negatives_off", advantage=1.0 if k % 2 else -1.0,
            weight=rng.random(), surprise=rng.random() * 3,
        )
        for k in range(4)
    )  # fmt: skip
    return RolloutRow(
        step=number + 1, digest=number.to_bytes(16, "big"), author=node_id(0) if foreign else OWN,
        origin="foreign" if foreign else "own", task="arithmetic", verdict="used", reason="",
        prompt=HOSTILE if hostile else "user: What is 3 + 4?\nassistant: 3 + 4 =", completions=parts,
    )  # fmt: skip
