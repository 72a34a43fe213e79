"""The newest card of every node that this one heard of, itself included: what each says about itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from ftis_node.store import Store
from ftis_protocol.presence import NodeCard

#: fact: Unix time at which this node last looked who is there
MET_AT = "met_at"


@dataclass(frozen=True, slots=True)
class Heard:
    """A card as it came in; `issued_at` by its author's clock."""

    node_id: str
    card: NodeCard
    issued_at: float


@dataclass(frozen=True, slots=True)
class CardRow:
    """`seen_at` is when this node first saw that very card (Unix seconds, own clock); `present` whether its author was
    there at the last look."""

    node_id: str
    card: NodeCard
    seen_at: float
    present: bool


def note_cards(store: Store, heard: Iterable[Heard], own_id: str = "") -> None:
    """Everybody who is there now; whoever is not among them (and not `own_id`) counts as silent from here on."""
    now = time.time()
    rows = [(h.node_id, h.card.model_dump_json(), h.issued_at, now) for h in heard]
    listed = json.dumps([own_id, *(row[0] for row in rows)])
    with store.writing() as db:
        before = db.total_changes
        db.executemany(_UPSERT, rows)
        store.grown("cards", db.total_changes - before)
        db.execute(
            "UPDATE cards SET present = 0 WHERE present AND node_id NOT IN (SELECT value FROM json_each(?))", (listed,)
        )
        db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (MET_AT, json.dumps(now), now))


def note_own_card(store: Store, node_id: str, card: NodeCard) -> None:
    """The card that this node shows to others."""
    now = time.time()
    with store.writing() as db:
        db.execute(_UPSERT, (node_id, card.model_dump_json(), now, now))
        store.grown("cards", 1)


# A card that is already known costs no write.
_UPSERT = """
    INSERT INTO cards (node_id, card, issued_at, seen_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (node_id) DO UPDATE
    SET card = excluded.card, issued_at = excluded.issued_at, seen_at = excluded.seen_at, present = 1
    WHERE excluded.issued_at != issued_at OR NOT present
"""


def cards(store: Store, limit: int = 5_000) -> tuple[CardRow, ...]:
    """Those who are there first, then the most recently seen. A card of another version that cannot be read is left
    out."""
    query = "SELECT node_id, card, seen_at, present FROM cards ORDER BY present DESC, seen_at DESC, id LIMIT ?"
    found = []
    for node_id, text, seen_at, present in store.rows(query, limit):
        try:
            found.append(CardRow(node_id, NodeCard.model_validate_json(text), seen_at, bool(present)))
        except ValidationError:
            continue
    return tuple(found)


@dataclass(frozen=True, slots=True)
class CardSum:
    """What all cards with that role, state and presence claim together."""

    role: str
    state: str
    present: bool
    count: int
    policy_steps: int
    tokens_per_second: float
    groups_published: int


def card_sums(store: Store) -> tuple[CardSum, ...]:
    """Added up by the database: what a page asks every second must not take longer with a thousand nodes."""
    query = """
        SELECT json_extract(card, '$.role'), json_extract(card, '$.state'), present, count(*),
               sum(json_extract(card, '$.policy_version')), sum(json_extract(card, '$.tokens_per_second')),
               sum(json_extract(card, '$.groups_published'))
        FROM cards GROUP BY 1, 2, 3
    """
    return tuple(
        CardSum(role, state, bool(present), count, int(steps), float(speed), int(published))
        for role, state, present, count, steps, speed, published in store.rows(query)
    )


def names(store: Store) -> dict[str, str]:
    """Node id -> the name on its card."""
    return dict(store.rows("SELECT node_id, json_extract(card, '$.name') FROM cards"))
