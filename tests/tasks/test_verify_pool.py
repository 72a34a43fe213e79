"""The verify pool: whatever a checker does is an error of that call alone, never a reward and never a stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftis_node.errors import TaskError
from ftis_node.tasks.registry import build, describe
from ftis_node.tasks.verify import VerifyPool
from ftis_protocol.manifest import TaskSpec

HOSTILE = TaskSpec(name="hostile", version=1)
DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifyPool]:
    """One process that also knows hostile.py, as any plug-in: through the metadata of an installed distribution."""
    site = tmp_path_factory.mktemp("site")
    metadata = site / "hostile-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[ftis_node.tasks]\nhostile = hostile:HostileTask\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        patch.syspath_prepend(str(site))
        pool = VerifyPool(workers=1, timeout_seconds=DEADLINE_SECONDS)
        yield pool
        pool.close()


async def process_id(pool: VerifyPool) -> int:
    (share,) = await pool.score(HOSTILE, 0, 0, ["pid"])
    return int(share * 2**32)


async def test_rewards_come_back_in_order(pool: VerifyPool) -> None:
    assert await pool.score(HOSTILE, 0, 0, ["one", "zero", "true", "numpy"]) == [1.0, 0.0, 1.0, 1.0]
    assert await pool.score(HOSTILE, 0, 0, []) == []


async def test_the_process_draws_the_item_itself(pool: VerifyPool) -> None:
    spec = describe("arithmetic", operations="*", digits=2)
    task = build(spec)
    right = [f" {task.item(77, index).answer}" for index in (0, 1)]
    assert await pool.score(spec, 77, 0, right) == [1.0, 0.0]
    held = task.held_out(3)
    answers = [(2, f" {held[2].answer}."), (0, f" {held[0].answer}."), (1, "no idea")]
    assert await pool.score_held_out(spec, 3, answers) == [1.0, 1.0, 0.0]


async def test_the_process_stays_light(pool: VerifyPool) -> None:
    assert await pool.score(HOSTILE, 0, 0, ["torch"]) == [0.0]


@pytest.mark.parametrize(
    "text", ["none", "text", "array", "nan", "infinite", "negative", "two", "raise", "usage", "exit"]
)
async def test_an_error_is_no_zero(pool: VerifyPool, text: str) -> None:
    before = await process_id(pool)
    with pytest.raises(TaskError, match="hostile") as failed:
        await pool.score(HOSTILE, 0, 0, ["one", text])
    assert failed.value.hint
    assert await process_id(pool) == before


async def test_an_unknown_task_is_an_error_of_the_call(pool: VerifyPool) -> None:
    with pytest.raises(TaskError, match="no task"):
        await pool.score(TaskSpec(name="nowhere", version=1), 0, 0, ["a"])


@pytest.mark.parametrize("text", ["hang", "stuck"])
async def test_a_checker_that_never_ends_is_killed_and_replaced(pool: VerifyPool, text: str) -> None:
    before = await process_id(pool)
    pool.timeout_seconds = 0.2
    try:
        with pytest.raises(TaskError, match="killed"):
            await pool.score(HOSTILE, 0, 0, [text])
    finally:
        pool.timeout_seconds = DEADLINE_SECONDS
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert await process_id(pool) != before


async def test_a_process_that_dies_is_replaced(pool: VerifyPool) -> None:
    with pytest.raises(TaskError, match="died"):
        await pool.score(HOSTILE, 0, 0, ["die"])
    assert await pool.score(HOSTILE, 0, 0, ["one"]) == [1.0]


async def test_an_idle_process_that_is_killed_is_replaced(pool: VerifyPool) -> None:
    os.kill(await process_id(pool), signal.SIGKILL)
    assert await pool.score(HOSTILE, 0, 0, ["one"]) == [1.0]


async def test_nothing_waits_without_a_limit(pool: VerifyPool) -> None:
    await process_id(pool)
    pool.patience_seconds = 0.2
    try:
        with pytest.raises(TaskError, match="no answer"):
            await pool.score(HOSTILE, 0, 0, ["hang"])
    finally:
        pool.patience_seconds = 120
    assert await pool.score(HOSTILE, 0, 0, ["one"]) == [1.0]


async def test_closing_ends_calls_under_way(pool: VerifyPool) -> None:
    await process_id(pool)
    call = asyncio.create_task(pool.score(HOSTILE, 0, 0, ["hang"]))
    await asyncio.wait({call}, timeout=0.2)
    pool.close()
    with pytest.raises(TaskError, match="stopped"):
        await asyncio.wait_for(call, DEADLINE_SECONDS)
    pool.close()
