"""How many dictionaries there are, who lies where, and what a reader looks at."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ftis_node.swarm.shards import (
    NODES_PER_SHARD,
    allowed_counts,
    homes,
    places_to_read,
    shard_count_for,
    shards_to_read,
)
from ftis_protocol.keys import shard_of


@pytest.mark.parametrize(
    ("nodes", "limit", "count"),
    [(1, 1024, 1), (16, 1024, 1), (17, 1024, 2), (64, 1024, 4), (65, 1024, 8), (10_000, 1024, 1024), (10_000, 1, 1),
     (10_000, 5, 4), (0.5, 8, 1)],
)  # fmt: skip
def test_the_count_follows_the_size(nodes: float, limit: int, count: int) -> None:
    assert shard_count_for(nodes, limit) == count


def test_every_power_of_two_is_a_home() -> None:
    assert list(allowed_counts(1)) == [1]
    assert list(allowed_counts(9)) == [1, 2, 4, 8]
    assert homes("node", 8) == {0, shard_of("node", 2), shard_of("node", 4), shard_of("node", 8)}


@pytest.mark.parametrize("nodes", [5, 20, 64, 333, 5000])
def test_a_reader_looks_wherever_nodes_with_another_estimate_may_be(nodes: int) -> None:
    for read, written in ((1.0, 1.0), (1.0, 1.45), (0.8, 1.15), (1.3, 0.7)):
        count = shard_count_for(written * nodes, 1024)
        shards = shards_to_read(read * nodes, 1024)
        assert all(shard_of(f"node {n}", count) in shards for n in range(200))


def test_a_shard_stays_small() -> None:
    for nodes in (16, 100, 1000, 10_000):
        count = shard_count_for(nodes, 1024)
        loads = Counter(shard_of(f"node {n}", count) for n in range(nodes))
        assert nodes / count <= NODES_PER_SHARD
        assert max(loads.values()) <= 3 * NODES_PER_SHARD


def test_the_two_newest_slots_come_first_and_nothing_twice() -> None:
    places = places_to_read(100, 4, range(8), 1000, Random(1))
    assert len(set(places)) == len(places) == 32
    assert {slot for _, slot in places[:16]} == {99, 100}
    assert {slot for _, slot in places[16:]} == {97, 98}
    assert places_to_read(100, 4, range(8), 3, Random(1)) == places[:3]
    assert places_to_read(1, 4, range(1), 10, Random(1)) in ([(0, 1), (0, 0)], [(0, 0), (0, 1)])


def test_every_place_has_the_same_chance() -> None:
    rng = Random(7)
    seen = Counter(place for _ in range(4000) for place in places_to_read(50, 2, range(4), 4, rng))
    assert len(seen) == 8
    assert all(1800 < count < 2200 for count in seen.values())
