"""Calls in threads."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from node_agent.kernel import threads
from node_agent.kernel.threads import in_thread, join_threads, leave_to_thread


async def test_a_call_returns_or_raises_from_another_thread() -> None:
    assert await in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


async def test_starting_a_thread_does_not_block_the_event_loop(monkeypatch) -> None:
    begun: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
    monkeypatch.setattr(threads, "start_new_thread", lambda work, args: begun.put_nowait(work))
    task = asyncio.create_task(in_thread(lambda: 7))
    run = await asyncio.wait_for(begun.get(), 60)
    run()
    assert await task == 7


async def test_a_call_that_takes_too_long_is_an_error_and_its_result_is_undone() -> None:
    goes_on, undone = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    with pytest.raises(OSError, match=r"0\.01"):
        await in_thread(goes_on.wait, 0.01, lambda result: loop.call_soon_threadsafe(undone.set))
    goes_on.set()
    await asyncio.wait_for(undone.wait(), 60)


async def test_the_call_runs_in_this_thread_if_no_other_can_be_started(monkeypatch) -> None:
    def refuse(work: object, args: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "start_new_thread", refuse)
    assert await in_thread(threading.get_ident) == threading.get_ident()
    done = []
    leave_to_thread(lambda: done.append(threading.get_ident()))
    assert done == [threading.get_ident()]


def test_the_wait_for_the_threads_of_a_loop_is_bounded(monkeypatch) -> None:
    ends, ended = threading.Event(), []

    async def start(call) -> asyncio.AbstractEventLoop:
        leave_to_thread(call)
        return asyncio.get_running_loop()

    def slow() -> None:
        ends.wait(60)
        ended.append(True)

    loop = asyncio.run(start(slow))
    threading.Timer(0.1, ends.set).start()
    monkeypatch.setattr(threads, "LEFT_BEHIND_S", 60.0)
    join_threads(loop)
    assert ended == [True]

    ends.clear()
    monkeypatch.setattr(threads, "LEFT_BEHIND_S", 0.05)
    began = time.monotonic()
    join_threads(asyncio.run(start(slow)))
    assert time.monotonic() - began < 30 and ended == [True]
    ends.set()
