"""Runs take turns, and no deadline fires before earlier waiting work."""

import asyncio
import gc
import weakref
from functools import partial

import pytest

from rdzv_server.service.clock import Clock
from rdzv_server.service.fair_scheduler import (
    BURST_S,
    CALLS_PER_TURN,
    MOST_CREDIT,
    TURN_S,
    TURNS_AN_AGENT,
    UNAUTHENTICATED_PER_TURN,
    FairScheduler,
    RoundRobin,
    scheduler,
)
from tests.support.event_loop import Loop


class Site:
    def __init__(self) -> None:
        self.loop = Loop()
        self.scheduler = FairScheduler(self.loop)
        for _ in range(CALLS_PER_TURN):
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


def test_a_request_runs_at_the_loops_next_turn(site):
    site.ask("a")
    assert site.done == []
    site.loop.turn()
    assert site.done == ["a"]


def test_a_request_at_a_quiet_time_has_a_turn_at_once(site):
    site.loop.now += 2 * BURST_S
    site.ask("a", CALLS_PER_TURN + 1)
    assert len(site.done) == CALLS_PER_TURN
    site.ask("b")
    assert "b" not in site.done, "no request goes before the waiting ones"
    site.loop.now += 2 * BURST_S
    site.ask("c")
    site.loop.turn()
    assert site.done[CALLS_PER_TURN:] == ["a", "b", "c"]


def test_a_small_run_is_not_kept_waiting_by_a_large_one(site):
    site.ask("large", 10 * CALLS_PER_TURN)
    site.ask("small", 2)
    site.loop.turn()
    assert len(site.done) == CALLS_PER_TURN
    assert site.done.count("small") == 2
    while len(site.done) < 10 * CALLS_PER_TURN + 2:
        before = len(site.done)
        site.loop.turn()
        assert 0 < len(site.done) - before <= CALLS_PER_TURN


def test_a_request_made_during_a_turn_gets_another_one(site):
    site.scheduler.ask("a", lambda: site.ask("again"))
    site.loop.turn()
    site.loop.turn()
    assert site.done == ["again"]


def test_asking_in_the_last_turn_does_not_make_more_turns_at_once(site):
    site.scheduler.ask("a", lambda: site.ask("many", 4 * CALLS_PER_TURN))
    site.loop.turn()
    while len(site.done) < 4 * CALLS_PER_TURN:
        before = len(site.done)
        site.loop.turn()
        assert 0 < len(site.done) - before <= CALLS_PER_TURN


def test_a_failing_call_does_not_keep_others_from_a_turn(site):
    site.scheduler.ask("broken", lambda: 1 / 0)
    site.ask("a")
    with pytest.raises(ZeroDivisionError):
        site.loop.turn()
    site.loop.turn()
    assert site.done == ["a"]


def test_turns_that_take_long_are_few_at_once(site):
    """Otherwise 64 turns of strangers could stop everything else for any time."""
    for of, is_unauthenticated in (("run", False), ("stranger", True)):
        for _ in range(10):
            site.scheduler.ask(of, partial(site.loop.work, TURN_S), is_unauthenticated=is_unauthenticated)
        before = site.loop.now
        site.loop.turn()
        assert site.loop.now - before <= 3 * TURN_S


def test_turns_that_are_taken_without_waiting_are_limited_by_their_time(site):
    site.loop.now += 2 * BURST_S
    before = site.loop.now
    for _ in range(CALLS_PER_TURN):
        site.scheduler.ask("run", partial(site.loop.work, TURN_S))
    assert site.loop.now - before <= 2 * TURN_S


def test_strangers_however_many_let_an_agent_in_between(site):
    for number in range(100 * UNAUTHENTICATED_PER_TURN):
        site.scheduler.ask(f"stranger {number}", partial(site.done.append, "stranger"), is_unauthenticated=True)
    site.ask("run")
    site.loop.turn()
    assert "run" in site.done and site.done.count("stranger") <= 2 * UNAUTHENTICATED_PER_TURN


def test_each_joining_agent_gives_unauthenticated_requests_some_extra_turns_once(site):
    for _ in range(100 * UNAUTHENTICATED_PER_TURN):
        site.scheduler.ask("stranger", partial(site.done.append, "stranger"), is_unauthenticated=True)
    taken = []
    for agents in (0, 2, 0, 10 * CALLS_PER_TURN):
        for _ in range(agents):
            site.scheduler.agent_came()
        site.done.clear()
        site.loop.turn()
        taken.append(len(site.done))
    usual = UNAUTHENTICATED_PER_TURN
    assert taken == [usual, usual + 2 * TURNS_AN_AGENT, usual, usual + MOST_CREDIT]


def test_waiting_unauthenticated_requests_do_not_delay_a_deadline(site):
    """Otherwise dead agents would not be lost while strangers send data."""
    for _ in range(10 * UNAUTHENTICATED_PER_TURN):
        site.scheduler.ask("stranger", lambda: None, is_unauthenticated=True)
    site.loop.now += 10.0
    assert site.scheduler.unread_since() == float("inf")


def test_the_oldest_turn_that_waits_is_unread_until_it_is_taken(site):
    assert site.scheduler.unread_since() == float("inf")
    began_at = site.loop.now
    site.ask("a", CALLS_PER_TURN + 1)
    site.loop.now += 2.0
    site.ask("b")
    assert site.scheduler.unread_since() == began_at
    site.loop.turn()
    site.loop.turn()
    assert site.scheduler.unread_since() == float("inf")
    assert not site.scheduler._all, "turns that are done are forgotten"


async def test_the_clock_knows_since_when_the_oldest_request_is_unread():
    clock = Clock()
    clock.start([])
    assert clock.unread_since() == float("inf")
    began_at = clock.now()
    while not scheduler()._known.waiting:  # a busy machine gives a new burst time to begin
        scheduler().ask("run", lambda: None)
    assert began_at <= clock.unread_since() <= clock.now()
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
