"""One thread for all heavy calls, and work that a cancellation may not tear apart."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ftis_node.compute import ComputeThread, to_its_end


async def test_calls_run_one_after_the_other_in_one_thread() -> None:
    compute, seen = ComputeThread(), []

    def call(number: int, *, sign: int) -> int:
        seen.append((number, threading.current_thread().name))
        return sign * number

    assert await asyncio.gather(*(compute.run(call, n, sign=-1) for n in range(5))) == [0, -1, -2, -3, -4]
    assert [n for n, _ in seen] == list(range(5))
    assert len({name for _, name in seen}) == 1
    assert seen[0][1].startswith("compute")
    compute.close()


async def test_an_error_comes_out_and_the_thread_goes_on() -> None:
    compute = ComputeThread()
    with pytest.raises(ZeroDivisionError):
        await compute.run(lambda: 1 // 0)
    assert await compute.run(lambda: 7) == 7
    compute.close()


async def test_the_loop_stays_free_and_closing_waits_for_the_running_call() -> None:
    compute, entered, leave, left = ComputeThread(), threading.Event(), threading.Event(), []

    def long_call() -> None:
        entered.set()
        assert leave.wait(30)
        left.append(True)

    running = asyncio.ensure_future(compute.run(long_call))
    await asyncio.to_thread(entered.wait, 30)  # the loop answers meanwhile
    queued = asyncio.ensure_future(compute.run(left.append, False))
    await asyncio.sleep(0)
    leave.set()
    compute.close()
    await running
    with pytest.raises(asyncio.CancelledError):
        await queued
    assert left == [True]
    with pytest.raises(RuntimeError):
        await compute.run(left.append, False)


async def test_a_cancelled_wait_ends_when_the_work_does() -> None:
    begun, goal, done = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        begun.set()
        await goal.wait()
        done.append(True)

    waiting = asyncio.ensure_future(to_its_end(work()))
    await begun.wait()
    waiting.cancel()
    finished, _ = await asyncio.wait((waiting,), timeout=0.01)
    assert not finished, "it would leave half of the work behind"
    goal.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done == [True]


async def test_an_error_of_cancelled_work_is_not_lost() -> None:
    begun, goal = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await goal.wait()
        raise ValueError("late")

    waiting = asyncio.ensure_future(to_its_end(work()))
    await begun.wait()
    waiting.cancel()
    goal.set()
    with pytest.raises(ValueError, match="late"):
        await waiting
