"""Calls in threads of the server, also at the limit of processes."""

import asyncio
import threading

import pytest

from rdzv_server.threads import Loop, NoThread, in_thread, in_thread_or_here
from rdzv_server.words import service as words
from tests.support.threads import refuse_threads


def fails() -> None:
    raise ValueError("no")


async def test_a_call_is_made_in_another_thread() -> None:
    for make in (in_thread, in_thread_or_here):
        assert await make(threading.current_thread) is not threading.current_thread()
        with pytest.raises(ValueError, match="no"):
            await make(fails)


async def test_a_caller_that_has_gone_does_not_matter() -> None:
    may_end = threading.Event()
    call = asyncio.create_task(in_thread(may_end.wait))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    may_end.set()
    assert await in_thread(lambda: 1) == 1


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
