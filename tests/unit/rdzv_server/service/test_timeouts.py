"""Timeouts of one length: each ends in time, unless it was stopped."""

import asyncio

import pytest

from rdzv_server.service.timeouts import TIMEOUTS_PER_TURN, Timeouts

SHORT_S = 0.01


class Site:
    def __init__(self) -> None:
        self.ended: list[str] = []
        self.timeouts = Timeouts[str](SHORT_S, self._end)
        self._changed = asyncio.Event()

    def _end(self, subject: str) -> None:
        self.ended.append(subject)
        self._changed.set()

    async def until_over(self, subject: str) -> None:
        async with asyncio.timeout(10):
            while subject not in self.ended:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def site() -> Site:
    return Site()


@pytest.mark.parametrize(
    ("steps", "ended"),
    [
        ("+a +b +c", "abc"),
        ("+a +b +a +c", "abc"),
        ("+a +b -a +c", "bc"),
        ("+a -a -a +b +a +c", "bac"),
    ],
    ids=["in their order", "one that continues", "one that is stopped", "one that begins again"],
)
async def test_each_timeout_fires_in_order_unless_it_is_cancelled(site, steps, ended):
    began_s = asyncio.get_running_loop().time()
    for step in steps.split():
        (site.timeouts.start if step[0] == "+" else site.timeouts.stop)(step[1])
    await site.until_over("c")
    assert site.ended == list(ended)
    assert asyncio.get_running_loop().time() - began_s >= SHORT_S
    assert not site.timeouts._due
    site.timeouts.start("again")
    await site.until_over("again")


async def test_an_end_may_start_others(site):
    chain = Timeouts[int](SHORT_S, lambda number: chain.start(number + 1) if number < 3 else site._end("end"))
    chain.start(0)
    await site.until_over("end")


async def test_a_timeout_started_when_others_have_ended_needs_no_timer_of_its_own():
    loop = asyncio.get_running_loop()
    before, looks = len(loop._scheduled), 0

    class Counted(Timeouts[int | None]):
        def _look(self) -> None:
            nonlocal looks
            looks += 1
            super()._look()

    ended: list[int | None] = []

    def over(subject: int | None) -> None:
        ended.append(subject)
        timeouts.start(subject)

    timeouts = Counted(SHORT_S, over)
    for subject in (None, *range(20)):
        timeouts.start(subject)
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(SHORT_S)
        assert len(loop._scheduled) - before <= 1
    assert looks > 1 and set(ended) == {None, *range(20)}
    for subject in (None, *range(20)):
        timeouts.stop(subject)


async def test_many_that_are_over_at_once_let_others_in_between():
    ended: list[int] = []
    timeouts = Timeouts(SHORT_S, ended.append)
    for subject in range(10 * TIMEOUTS_PER_TURN):
        timeouts.start(subject)
    while len(ended) < 10 * TIMEOUTS_PER_TURN:
        before = len(ended)
        await asyncio.sleep(0)
        assert len(ended) - before <= TIMEOUTS_PER_TURN
    assert ended == list(range(10 * TIMEOUTS_PER_TURN))
