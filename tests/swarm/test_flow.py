"""Token buckets and the limits made of them, under a clock that is moved by hand."""

from __future__ import annotations

from math import inf

import pytest

from ftis_node.swarm import flow
from ftis_node.swarm.flow import KIBIBYTE, MEBIBYTE, Limit, Limits, Rate, TokenBucket, upload_rate


class Watch:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_fills_at_its_rate_and_no_higher_than_its_rim() -> None:
    watch = Watch()
    bucket = TokenBucket(Rate(10, 50), watch)
    assert bucket.takes(50)
    assert not bucket.takes(1)
    assert bucket.wait_seconds(20) == pytest.approx(2.0)
    watch.now += 2.0
    assert bucket.takes(20)
    assert not bucket.takes(1)
    watch.now += 3600.0
    assert not bucket.takes(51)
    assert bucket.takes(50)
    assert bucket.wait_seconds(51) == inf
    watch.now -= 3600.0  # a clock that goes back gives nothing and takes nothing
    assert not bucket.takes(1)


def test_no_cap_is_no_wait() -> None:
    bucket = TokenBucket(upload_rate(0.0))
    assert all(bucket.takes(10 * MEBIBYTE) for _ in range(1000))
    assert bucket.wait_seconds(1e12) == 0.0


def test_a_capped_upload_can_still_send_the_largest_frame() -> None:
    rate = upload_rate(1.0)
    assert rate.per_second == KIBIBYTE
    assert TokenBucket(rate).takes(5 * MEBIBYTE)


def test_one_peer_uses_up_its_own_share_only() -> None:
    limits = Limits()
    burst = int(flow.PEER_RECORDS.burst)
    assert limits.admits_records("a", burst, 1)
    assert not limits.admits_records("a", burst, 1)
    assert limits.admits_records("b", 1, 1)
    assert limits.limited == {Limit.PEER_RECORDS: 1}


def test_bytes_and_requests_of_a_peer_are_bounded() -> None:
    limits = Limits()
    assert limits.admits_records("a", 1, int(flow.PEER_BYTES.burst))
    assert not limits.admits_records("a", 1, MEBIBYTE)
    asked = [limits.admits_request("a") for _ in range(int(flow.PEER_REQUESTS.burst) + 50)]
    assert asked[0]
    assert not asked[-1]
    assert set(limits.limited) == {Limit.PEER_BYTES, Limit.PEER_REQUESTS}


def test_all_peers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "TOTAL_BYTES", Rate(1, 1000))
    monkeypatch.setattr(flow, "TOTAL_RECORDS", Rate(0.001, 5))
    limits = Limits()
    assert [limits.admits_records(f"peer {n}", 1, 300) for n in range(4)] == [True, True, True, False]
    assert [limits.admits_records(f"other {n}", 1, 0) for n in range(4)][-1] is False
    assert set(limits.limited) == {Limit.TOTAL_BYTES, Limit.TOTAL_RECORDS}


def test_memory_of_peers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_PEERS_REMEMBERED", 10)
    limits = Limits()
    for n in range(100):
        limits.admits_request(f"peer {n}")
    assert len(limits._peers) == 10
