"""How a node is told to stop, and which of several errors is told to the user."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from ftis_node.lifecycle import StopSignal, together, unless_stopped


@pytest.mark.parametrize(
    ("number", "interrupted"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)]
)
async def test_the_first_signal_drains_the_second_ends_at_once(
    number: int, interrupted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    stop, last = StopSignal(), list[str]()
    stop.last_acts.append(lambda: last.append("released"))
    stop.install()
    signal.raise_signal(number)
    await asyncio.wait_for(stop.event.wait(), 30)
    assert (stop.interrupted, ended) == (interrupted, [])
    signal.raise_signal(signal.SIGINT)
    while not ended:
        await asyncio.sleep(0)
    assert (ended, last) == ([130], ["released"])
    assert "second signal" in capsys.readouterr().err
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().remove_signal_handler(each)


async def test_an_orderly_stop_has_a_limit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ended = asyncio.Event()
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    stop = StopSignal(limit_seconds=0.01)
    stop.install()
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(ended.wait(), 30)
    assert stop.event.is_set()
    assert "longer than 0.01 s (node.stop_seconds)" in capsys.readouterr().err
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().remove_signal_handler(each)


async def endless(begun: asyncio.Event, cleaned_up: list[str]) -> None:
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        cleaned_up.append("yes")


async def test_a_stop_cancels_the_work_and_waits_for_its_end() -> None:
    stop, begun, cleaned_up = asyncio.Event(), asyncio.Event(), list[str]()
    running = asyncio.ensure_future(unless_stopped(stop, endless(begun, cleaned_up)))
    await begun.wait()
    stop.set()
    await running
    assert cleaned_up == ["yes"]


async def test_a_cancelled_wait_leaves_no_work_behind() -> None:
    begun, cleaned_up = asyncio.Event(), list[str]()
    running = asyncio.ensure_future(unless_stopped(asyncio.Event(), endless(begun, cleaned_up)))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned_up == ["yes"]


async def test_an_error_while_stopping_comes_out() -> None:
    stop, begun = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("disk full")

    running = asyncio.ensure_future(unless_stopped(stop, stubborn()))
    await begun.wait()
    stop.set()
    with pytest.raises(OSError, match="disk full"):
        await running


async def test_the_first_error_ends_all_and_comes_out_as_itself() -> None:
    begun, cleaned_up = asyncio.Event(), list[str]()

    async def failing() -> None:
        await begun.wait()
        raise LookupError("first")

    with pytest.raises(LookupError, match="first"):
        await asyncio.wait_for(together(endless(begun, cleaned_up), failing()), 30)
    assert cleaned_up == ["yes"]


async def test_of_several_errors_one_comes_out_and_the_others_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(name: str) -> None:
        raise LookupError(name)

    with pytest.raises(LookupError, match="one"):
        await together(failing("one"), failing("two"))
    assert any(record.exc_info and "two" in str(record.exc_info[1]) for record in caplog.records)
