"""Runs take turns; and what waits for a turn for long is time that does not count."""

import asyncio
import gc
import weakref
from functools import partial

import pytest

from rdzv_server.service.clock import BEAT_S, Clock
from rdzv_server.service.fair_scheduler import AT_ONCE, BURST_S, SLACK_S, FairScheduler, RoundRobin, scheduler
from tests.support.event_loop import Loop


class Site:
    def __init__(self) -> None:
        self.loop = Loop()
        self.scheduler = FairScheduler(self.loop)
        for _ in range(AT_ONCE):
            self.scheduler.ask("earlier", lambda: None)
        self.done: list[str] = []

    def ask(self, of: str, count: int = 1) -> None:
        for _ in range(count):
            self.scheduler.ask(of, partial(self.done.append, of))


@pytest.fixture
def site() -> Site:
    return Site()


def test_queues_alternate_and_each_keeps_its_order():
    queues = RoundRobin[str]()
    for item in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queues.append(item[0], item)
    taken = []
    while queues:
        taken.append(queues.pop())
    assert taken == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_what_is_asked_for_is_done_when_the_loop_comes_round(site):
    site.ask("a")
    assert site.done == []
    site.loop.turn()
    assert site.done == ["a"]


def test_who_asks_when_hardly_anybody_does_has_a_turn_at_once(site):
    site.loop.now += 2 * BURST_S
    site.ask("a", AT_ONCE + 1)
    assert len(site.done) == AT_ONCE
    site.ask("b")
    assert "b" not in site.done, "nobody goes before those who wait"
    site.loop.now += 2 * BURST_S
    site.ask("c")
    site.loop.turn()
    assert site.done[AT_ONCE:] == ["a", "b", "c"]


def test_a_small_run_is_not_kept_waiting_by_a_large_one(site):
    site.ask("large", 10 * AT_ONCE)
    site.ask("small", 2)
    site.loop.turn()
    assert len(site.done) == AT_ONCE
    assert site.done.count("small") == 2
    while len(site.done) < 10 * AT_ONCE + 2:
        before = len(site.done)
        site.loop.turn()
        assert 0 < len(site.done) - before <= AT_ONCE


def test_who_asks_in_its_turn_gets_another_one(site):
    site.scheduler.ask("a", lambda: site.ask("again"))
    site.loop.turn()
    site.loop.turn()
    assert site.done == ["again"]


def test_asking_in_the_last_turn_does_not_make_more_turns_at_once(site):
    site.scheduler.ask("a", lambda: site.ask("many", 4 * AT_ONCE))
    site.loop.turn()
    while len(site.done) < 4 * AT_ONCE:
        before = len(site.done)
        site.loop.turn()
        assert 0 < len(site.done) - before <= AT_ONCE


def test_one_that_fails_keeps_nobody_else_from_a_turn(site):
    site.scheduler.ask("broken", lambda: 1 / 0)
    site.ask("a")
    with pytest.raises(ZeroDivisionError):
        site.loop.turn()
    site.loop.turn()
    assert site.done == ["a"]


def test_nobody_is_held_up_who_waits_no_longer_than_the_slack(site):
    site.ask("a")
    site.loop.now += SLACK_S
    site.loop.turn()
    site.loop.now += 3_600
    assert site.scheduler.held_up_at() == float("-inf")


def test_who_waits_for_longer_is_held_up_until_it_has_its_turn(site):
    site.ask("a", 3)
    site.loop.now += 2.0
    site.ask("b")
    assert site.scheduler.held_up_at() == site.loop.now, "also before it is over"
    site.loop.now += 1.0
    site.loop.turn()
    over_at = site.loop.now
    site.loop.now += 3_600
    assert site.scheduler.held_up_at() == over_at


async def test_the_clock_says_when_those_who_have_spoken_are_not_heard(monkeypatch):
    """Leases of live nodes would end otherwise, because the server is busy with others."""
    clock = Clock()
    clock.start([])
    assert not clock.was_held_up()
    real = asyncio.get_running_loop().time
    for _ in range(AT_ONCE + 1):
        scheduler().ask("run", lambda: None)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: real() + BEAT_S - SLACK_S)
    assert clock.was_held_up()
    clock.stop()


def test_an_event_loop_that_is_closed_is_forgotten():
    async def asks() -> None:
        scheduler().ask("run", lambda: None)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(asks())
    loop.close()
    known = weakref.ref(loop)
    del loop
    gc.collect()
    assert known() is None
