"""Tasks that run in parallel until the first of them ends."""

import asyncio

import pytest

from rdzv_server.tasks import first_of


class Part:
    """Part that takes a while to end, and records when it has."""

    def __init__(self) -> None:
        self.has_begun, self.may_end, self.has_ended = asyncio.Event(), asyncio.Event(), False
        self.is_ending = asyncio.Event()

    async def run(self) -> None:
        try:
            self.has_begun.set()
            await asyncio.Event().wait()
        finally:
            self.is_ending.set()
            await self.may_end.wait()
            self.has_ended = True


async def test_the_first_result_is_returned_when_the_others_have_ended() -> None:
    part = Part()
    part.may_end.set()

    async def first() -> None:
        await part.has_begun.wait()

    await first_of(first(), part.run())
    assert part.has_ended


async def test_a_caller_that_is_cancelled_twice_ends_all_its_parts() -> None:
    slow, last = Part(), Part()
    last.may_end.set()
    caller = asyncio.create_task(first_of(slow.run(), last.run()))
    await last.has_begun.wait()
    caller.cancel()
    await slow.is_ending.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert last.has_ended


async def test_a_subtask_that_does_not_end_is_cancelled_again_with_its_caller() -> None:
    stuck = Part()
    caller = asyncio.create_task(first_of(stuck.run()))
    await stuck.has_begun.wait()
    caller.cancel()
    await stuck.is_ending.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not stuck.has_ended


async def test_a_cancellation_while_the_others_end_is_passed_on() -> None:
    slow = Part()

    async def first() -> None:
        await slow.has_begun.wait()

    caller = asyncio.create_task(first_of(first(), slow.run()))
    await slow.is_ending.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
