"""Calls in threads of the server, also at the limit of processes."""

import asyncio
import gc
import threading
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from rdzv_server.threads import Loop, NoThread, OneThread, in_thread, in_thread_or_here
from rdzv_server.words import service as words
from tests.support.process_info import until
from tests.support.threads import refuse_threads


class Failed(Exception):
    """An exception to which weak references are possible."""


def fails() -> None:
    raise ValueError("no")


async def test_a_call_is_made_in_another_thread() -> None:
    for make in (in_thread, in_thread_or_here):
        assert await make(threading.current_thread) is not threading.current_thread()
        with pytest.raises(ValueError, match="no"):
            await make(fails)


async def test_what_a_call_raises_is_freed_without_a_collection() -> None:
    """During an outage, a call to the store fails twice a second."""
    raised = list[weakref.ref[Failed]]()

    def fails_once_more() -> None:
        error = Failed()
        raised.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    thread = OneThread()
    gc.disable()
    try:
        for make in (in_thread, in_thread_or_here, thread.call):
            with suppress(Failed):
                await make(fails_once_more)
        await until(lambda: [each() for each in raised] == [None] * 3)
    finally:
        gc.enable()
        thread.end()


async def test_a_caller_that_has_gone_does_not_matter() -> None:
    may_end, threads, failed = threading.Event(), list[threading.Thread](), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))

    def lasts() -> None:
        threads.append(threading.current_thread())
        may_end.wait()

    call = asyncio.create_task(in_thread(lasts))
    await until(lambda: threads)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    may_end.set()
    await in_thread(threads[0].join)  # by then the loop has the result of the first call
    assert not failed


async def test_without_a_thread_a_call_is_refused_or_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_threads(monkeypatch)
    made = list[int]()
    with pytest.raises(NoThread) as error:
        await in_thread(lambda: made.append(1))
    assert error.value.strerror == words.NO_THREAD
    assert await in_thread_or_here(threading.current_thread) is threading.current_thread()
    monkeypatch.undo()
    assert await in_thread(lambda: 1) == 1
    assert not made, "a refused call is not made later"


def test_a_name_that_cannot_be_looked_up_for_lack_of_a_thread_is_an_error_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect() -> None:
        await asyncio.open_connection("localhost", 9)

    refuse_threads(monkeypatch)
    with asyncio.Runner(loop_factory=Loop) as runner, pytest.raises(NoThread):
        runner.run(connect())


async def test_one_thread_makes_all_calls_in_order_and_skips_those_of_gone_callers() -> None:
    thread, may_go_on, made = OneThread(), threading.Event(), list[int]()
    first = asyncio.create_task(thread.call(may_go_on.wait))
    others = [asyncio.create_task(thread.call(partial(made.append, number))) for number in range(4)]
    await asyncio.sleep(0)
    others[1].cancel()
    may_go_on.set()
    await asyncio.gather(first, *others, return_exceptions=True)
    assert made == [0, 2, 3]
    assert await thread.call(threading.current_thread) is await thread.call(threading.current_thread)
    with pytest.raises(ValueError, match="no"):
        await thread.call(fails)
    thread.end()
    with pytest.raises(RuntimeError):
        await thread.call(fails)


async def test_a_thread_takes_the_place_of_one_that_is_just_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server starts its store's thread right after the one that watches its start."""
    thread, start, refusals = OneThread(), threading.Thread.start, [1]

    def started(new: threading.Thread) -> None:
        if refusals.pop() if refusals else 0:
            raise RuntimeError("can't start new thread")
        start(new)

    monkeypatch.setattr(threading.Thread, "start", started)
    made = await asyncio.gather(thread.call(lambda: 1), thread.call(lambda: 2))
    assert (made, refusals) == ([1, 2], [])
    thread.end()


async def test_a_thread_that_could_not_be_started_is_started_by_a_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = OneThread()
    refuse_threads(monkeypatch)
    with pytest.raises(NoThread):
        await thread.call(fails)
    monkeypatch.undo()
    assert await thread.call(lambda: 1) == 1
    thread.end()
