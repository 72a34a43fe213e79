"""Into how many dictionaries presence and offers are spread, and which of them a reader looks at.

The count is a power of two that follows the size of the swarm, so that one dictionary holds about NODES_PER_SHARD
nodes whether ten are there or ten thousand. Each node estimates the size by itself and estimates differ, so a node may
be filed under any count up to the manifest's, and a reader looks a little further than its own estimate says.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from ftis_protocol.keys import shard_of

NODES_PER_SHARD = 16
# Estimates from twenty neighbours are off by about a quarter.
READER_MARGIN = 1.5


def shard_count_for(nodes: float, limit: int) -> int:
    """The smallest power of two of shards that holds `nodes`; never above `limit`, the manifest's shard count."""
    count = 1
    while count * NODES_PER_SHARD < nodes and 2 * count <= limit:
        count *= 2
    return count


def allowed_counts(limit: int) -> Iterator[int]:
    """Every shard count a node may file itself under."""
    count = 1
    while count <= limit:
        yield count
        count *= 2


def homes(node_id: str, limit: int) -> frozenset[int]:
    """The shards in which a record of this node may lie."""
    return frozenset(shard_of(node_id, count) for count in allowed_counts(limit))


def shards_to_read(nodes: float, limit: int) -> range:
    """The shards in which others may have filed themselves, given this node's own estimate."""
    return range(shard_count_for(READER_MARGIN * nodes, limit))


def places_to_read(newest_slot: int, slots: int, shards: range, most: int, rng: Random) -> list[tuple[int, int]]:
    """At most `most` pairs (shard, slot) out of the newest `slots` slots, drawn at random, the two newest slots
    first: the running one may have just begun."""
    places = [(shard, slot) for slot in range(newest_slot, max(-1, newest_slot - slots), -1) for shard in shards]
    rng.shuffle(places)
    places.sort(key=lambda place: (newest_slot - place[1]) // 2)
    return places[:most]
