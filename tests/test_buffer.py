"""The two sides of a batch: bounds, fairness, and no waiting where nothing has to be waited for."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ftis_node.buffer import Bounds, ForeignSide, OwnSide, foreign_places, peer_cap, size_bytes
from ftis_node.clock import StepClock
from ftis_node.records import Origin, Prompt, TrainCompletion, TrainGroup
from ftis_protocol.rollout import Evidence, Finish, PromptRef

ROOMY = Bounds(max_bytes=1 << 30, max_age_seconds=600, max_lag=16)


def group(author: str, number: int, *, version: int = 0, created_at: float = 0.0, tokens: int = 3) -> TrainGroup:
    prompt = Prompt(
        ref=PromptRef(task="arithmetic", version=1, slot=0, index=number),
        author=author, item_key="1+1", messages=(), prefill="", stop_pattern=None, max_tokens=8,
    )  # fmt: skip
    completion = TrainCompletion("2", tuple(range(tokens)), Finish.RULE, 1.0)
    return TrainGroup(
        origin=Origin.FOREIGN if author else Origin.OWN, author=author, prompt=prompt, prompt_ids=(1, 2),
        completions=(completion,), evidence=Evidence.NONE, policy_version=version, created_at=created_at,
        digest=f"{author}{number}".encode(),
    )  # fmt: skip


def test_places_follow_the_own_share() -> None:
    assert [foreign_places(8, share) for share in (0.25, 0.5, 0.75, 1.0)] == [6, 4, 2, 0]
    assert foreign_places(3, 0.5) == 1, "own groups are never fewer than their share"


def test_one_peer_gives_at_most_an_eighth_or_its_even_share() -> None:
    assert peer_cap(4, 1) == 4
    assert peer_cap(4, 2) == 2
    assert peer_cap(16, 100) == 2
    assert peer_cap(1, 100) == 1, "a part of one place is still a place"


@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=10), places=st.integers(0, 24), seed=st.integers(0, 2**16)
)
def test_a_draw_is_capped_fair_and_leaves_the_rest(counts: list[int], places: int, seed: int) -> None:
    side = ForeignSide(ROOMY, StepClock(0.0))
    for peer, count in enumerate(counts):
        for number in range(count):
            side.add(group(f"p{peer}", number))
    before, peers = len(side), len(side.authors)
    drawn = side.draw(places, random.Random(seed))
    per_peer = Counter(g.author for g in drawn)
    assert len(drawn) <= places
    assert len({g.digest for g in drawn}) == len(drawn)
    assert all(count <= peer_cap(places, peers) for count in per_peer.values())
    assert len(side) == before - len(drawn)
    assert side.bytes >= 0
    assert (side.bytes == 0) == (len(side) == 0)


def test_a_draw_is_random_and_repeatable() -> None:
    def one(seed: int) -> list[bytes]:
        side = ForeignSide(ROOMY, StepClock(0.0))
        for number in range(32):
            side.add(group("p", number))
        return [g.digest for g in side.draw(4, random.Random(seed))]

    assert one(1) == one(1)
    assert one(1) != one(2)


def test_the_pool_forgets_the_oldest_beyond_its_bytes() -> None:
    unit = size_bytes(group("p", 0))
    side = ForeignSide(Bounds(max_bytes=3 * unit, max_age_seconds=600, max_lag=16), StepClock(0.0))
    for number in range(5):
        side.add(group("p", number))
    assert side.bytes == 3 * unit
    assert {g.digest for g in side.draw(5, random.Random(0))} == {b"p2", b"p3", b"p4"}
    assert side.dropped["over_bytes"] == 2


def test_old_and_lagging_groups_are_not_drawn() -> None:
    clock = StepClock(1000.0)
    side = ForeignSide(Bounds(max_bytes=1 << 20, max_age_seconds=60, max_lag=2), clock)
    side.add(group("p", 1, version=10, created_at=1000.0))
    side.add(group("p", 2, version=7, created_at=1000.0))
    side.add(group("q", 3, version=0, created_at=930.0))
    assert {g.digest for g in side.draw(9, random.Random(0))} == {b"p1"}
    assert side.dropped == {"lag": 1, "age": 1}


def test_a_peer_that_began_again_is_not_locked_out() -> None:
    side = ForeignSide(Bounds(max_bytes=1 << 20, max_age_seconds=60, max_lag=2), StepClock(0.0))
    side.add(group("p", 1, version=500))
    assert len(side.draw(1, random.Random(0))) == 1
    side.add(group("p", 2, version=0))
    assert len(side.draw(1, random.Random(0))) == 1


async def test_own_groups_are_sampled_on_demand_and_taken_in_order() -> None:
    side = OwnSide()
    waiting = asyncio.ensure_future(side.wanted())
    await asyncio.sleep(0)
    assert not waiting.done(), "nothing is wanted before anybody asked"
    side.ask(3)
    assert await waiting == 3
    taking = asyncio.ensure_future(side.take(2))
    for number in range(3):
        side.put(group("", number))
    assert [g.prompt.ref.index for g in await taking] == [0, 1]
    assert len(side) == 1
