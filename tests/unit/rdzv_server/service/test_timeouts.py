"""Timeouts of one length: each is over in its time, unless it was stopped."""

import asyncio

import pytest

from rdzv_server.service.timeouts import Timeouts

SHORT_S = 0.01


class Site:
    def __init__(self, seconds: float = SHORT_S) -> None:
        self.ended: list[str] = []
        self.timeouts = Timeouts[str](seconds, self._end)
        self._news = asyncio.Event()

    def _end(self, subject: str) -> None:
        self.ended.append(subject)
        self._news.set()

    async def hears_of(self, subject: str) -> None:
        async with asyncio.timeout(10):
            while subject not in self.ended:
                self._news.clear()
                await self._news.wait()


@pytest.fixture
async def site() -> Site:
    return Site()


async def test_each_is_over_in_the_order_in_which_they_began(site):
    for subject in "abc":
        site.timeouts.start(subject)
    await site.hears_of("c")
    assert site.ended == ["a", "b", "c"]
    assert not site.timeouts


async def test_none_is_over_before_its_time(site):
    began_s = asyncio.get_running_loop().time()
    site.timeouts.start("a")
    await site.hears_of("a")
    assert asyncio.get_running_loop().time() - began_s >= SHORT_S


async def test_one_that_is_stopped_is_never_over(site):
    site.timeouts.start("stopped")
    site.timeouts.start("goes on")
    site.timeouts.stop("stopped")
    await site.hears_of("goes on")
    assert site.ended == ["goes on"]


async def test_one_that_goes_on_keeps_its_beginning(site):
    site.timeouts.start("first")
    site.timeouts.start("second")
    site.timeouts.start("first")
    await site.hears_of("second")
    assert site.ended == ["first", "second"]


async def test_one_that_was_stopped_can_begin_anew(site):
    site.timeouts.start("a")
    site.timeouts.stop("a")
    site.timeouts.stop("a")
    site.timeouts.start("a")
    await site.hears_of("a")
    site.timeouts.start("a")
    site.ended.clear()
    await site.hears_of("a")


async def test_what_happens_at_an_end_may_start_and_stop_others():
    site = Site()
    chain = Timeouts[int](SHORT_S, lambda number: chain.start(number + 1) if number < 3 else site._end("end"))
    chain.start(0)
    await site.hears_of("end")


async def test_cancelled_ones_are_never_over(site):
    site.timeouts.start("a")
    site.timeouts.cancel()
    site.timeouts.start("b")
    await site.hears_of("b")
    assert site.ended == ["b"]
