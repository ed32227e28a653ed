"""Operators' work in slices: an agent waits for at most one slice."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from rdzv_server.service.operator_scheduler import (
    LEAST_REST,
    OTHERS,
    SLICE_S,
    Broadcast,
    OperatorScheduler,
    checkpoint,
)
from tests.support.event_loop import Loop

PATIENCE_S = 20.0
STREAMS = 300


class Site:
    """A loop whose agents always have requests, or none, and its operators."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.scheduler = OperatorScheduler(self.loop, lambda: self.loop.cpu_s)
        self.done: list[str] = []
        self.agents_s = 0.0
        """Seconds that agents have had."""

    def ask(self, of: str, takes_s: float, count: int = 1, stands_still_s: float = 0.0) -> None:
        """Submit operators' work that wakes a task, which takes this long."""
        for _ in range(count):
            self.scheduler.ask(of, partial(self.loop.call_soon, partial(self._work, of, takes_s, stands_still_s)))

    def _work(self, of: str, takes_s: float, stands_still_s: float) -> None:
        self.loop.work(takes_s)
        self.loop.stand_still(stands_still_s)
        self.done.append(of)

    def keep_busy(self, each_s: float = 0.0002) -> None:
        """Have an agent's request ready in every turn from now on."""
        self.loop.work(each_s)
        self.agents_s += each_s
        self.loop.call_soon(partial(self.keep_busy, each_s))

    def turns_until(self, is_done: Callable[[], bool]) -> list[float]:
        """Return the seconds that operators had in each turn until then."""
        took = []
        while not is_done():
            before, agents_before = self.loop.cpu_s, self.agents_s
            self.loop.turn()
            took.append(self.loop.cpu_s - before - (self.agents_s - agents_before))
        return took


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize("takes_s", [SLICE_S / 20, SLICE_S, 4 * SLICE_S])
def test_an_agent_waits_for_one_slice_however_many_operators_there_are(site: Site, takes_s: float) -> None:
    site.ask("crowd", takes_s, STREAMS)
    site.keep_busy()
    took = site.turns_until(lambda: len(site.done) == STREAMS)
    assert max(took) == pytest.approx(takes_s), "one of them at a time, and the rest later"


@pytest.mark.parametrize("takes_s", [SLICE_S / 20, SLICE_S, 4 * SLICE_S])
def test_agents_have_their_part_of_the_time_while_there_is_not_enough(site: Site, takes_s: float) -> None:
    site.ask("crowd", takes_s, STREAMS)
    site.keep_busy()
    site.turns_until(lambda: len(site.done) == STREAMS)
    slices = STREAMS * takes_s / max(SLICE_S, takes_s)
    assert site.agents_s >= 0.99 * OTHERS * STREAMS * takes_s * (slices - 1) / slices


def test_operators_are_never_kept_from_all_of_it(site: Site) -> None:
    site.ask("crowd", SLICE_S, STREAMS)
    site.keep_busy()
    site.turns_until(lambda: len(site.done) == STREAMS)
    assert site.agents_s < 1.5 * OTHERS * STREAMS * SLICE_S


def test_without_other_load_operators_soon_have_half_of_the_time(site: Site) -> None:
    site.ask("crowd", SLICE_S, STREAMS)
    site.turns_until(lambda: len(site.done) == STREAMS)
    began = site.loop.now
    site.ask("crowd", SLICE_S, STREAMS)
    site.turns_until(lambda: len(site.done) == 2 * STREAMS)
    assert site.loop.now - began == pytest.approx((1 + LEAST_REST) * STREAMS * SLICE_S, rel=0.1)


def test_time_in_which_the_thread_stands_still_is_not_charged(site: Site) -> None:
    site.ask("crowd", SLICE_S, STREAMS, stands_still_s=9 * SLICE_S)
    site.turns_until(lambda: len(site.done) == STREAMS)
    began = site.loop.now
    site.ask("crowd", SLICE_S, STREAMS, stands_still_s=9 * SLICE_S)
    site.turns_until(lambda: len(site.done) == 2 * STREAMS)
    assert site.loop.now - began == pytest.approx((10 + LEAST_REST) * STREAMS * SLICE_S, rel=0.05)


def test_after_idle_time_the_first_task_runs_in_the_next_turn(site: Site) -> None:
    site.loop.now += 3_600
    site.keep_busy()
    site.ask("a", 10 * SLICE_S)
    assert len(site.turns_until(lambda: site.done == ["a"])) <= 2


def test_a_peer_with_many_streams_does_not_keep_others_waiting(site: Site) -> None:
    site.keep_busy()
    site.ask("crowd", SLICE_S, STREAMS)
    site.ask("a person", SLICE_S, 2)
    site.turns_until(lambda: site.done.count("a person") == 2)
    assert site.done.count("crowd") <= 2


def test_a_failing_call_does_not_keep_others_from_a_slice(site: Site) -> None:
    site.scheduler.ask("broken", lambda: 1 / 0)
    site.ask("a", SLICE_S)
    with pytest.raises(ZeroDivisionError):
        site.loop.turn()
    site.turns_until(lambda: site.done == ["a"])


def test_without_operators_requests_the_scheduler_is_idle(site: Site) -> None:
    site.ask("a", SLICE_S)
    site.turns_until(lambda: site.done == ["a"])
    for _ in range(3):
        site.loop.turn()
    assert not site.loop._ready and not site.loop._timers


# On asyncio's own loop.


async def test_work_continues_in_its_slice_and_waits_when_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    await checkpoint("a")
    monkeypatch.setattr("rdzv_server.service.operator_scheduler.SLICE_S", 3_600.0)
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count)

    await checkpoint()
    asyncio.get_running_loop().call_soon(count)
    for _ in range(100):
        await checkpoint()
    assert turns == 0, "it is in its slice"
    monkeypatch.setattr("rdzv_server.service.operator_scheduler.SLICE_S", 0.0)
    for _ in range(10):
        await checkpoint()
    assert turns >= 10


async def test_a_change_wakes_every_stream_in_a_turn_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdzv_server.service.operator_scheduler.SLICE_S", 0.0)
    changes, woken, most_in_a_turn = Broadcast(PATIENCE_S), [], 0

    async def follow(number: int) -> None:
        assert await changes.wait(0)
        woken.append(number)

    streams = asyncio.gather(*(follow(number) for number in range(STREAMS)))
    await asyncio.sleep(0)
    changes.notify_all()
    async with asyncio.timeout(PATIENCE_S):
        while not streams.done():
            before = len(woken)
            await asyncio.sleep(0)
            most_in_a_turn = max(most_in_a_turn, len(woken) - before)
    assert sorted(woken) == list(range(STREAMS)) and most_in_a_turn == 1


async def test_a_page_does_not_wait_for_the_streams_of_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdzv_server.service.operator_scheduler.SLICE_S", 0.0)
    changes, woken, before_page = Broadcast(PATIENCE_S), 0, 0

    async def follow() -> None:
        nonlocal woken
        await changes.wait(0)
        woken += 1

    async def make_page() -> None:
        nonlocal before_page
        await checkpoint()
        before_page = woken

    streams = [asyncio.create_task(follow()) for _ in range(STREAMS)]
    await asyncio.sleep(0)
    changes.notify_all()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(make_page(), *streams)
    assert before_page <= 2


async def test_a_wait_for_a_change_returns_at_once_for_an_earlier_change_and_empty_at_its_timeout() -> None:
    changes = Broadcast(0.01)
    seen = changes.number
    changes.notify_all()
    assert await changes.wait(seen)
    async with asyncio.timeout(PATIENCE_S):
        assert not await changes.wait(changes.number)


async def test_a_closed_stream_does_not_delay_the_others() -> None:
    changes = Broadcast(PATIENCE_S)
    gone, there = (asyncio.create_task(changes.wait(0)) for _ in range(2))
    await asyncio.sleep(0)
    changes.notify_all()
    gone.cancel()
    async with asyncio.timeout(PATIENCE_S):
        assert await there
    assert gone.cancelled()
