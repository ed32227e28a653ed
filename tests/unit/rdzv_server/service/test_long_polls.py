"""Parked polls: the first event for a poll releases it."""

import asyncio

import pytest

from rdzv_server.service.fair_scheduler import CALLS_PER_TURN
from rdzv_server.service.long_polls import LongPolls

KEY, OTHER = ("run", "a"), ("run", "b")
FOREVER_S = 1_000.0


@pytest.fixture
def long_polls() -> LongPolls:
    return LongPolls()


async def parked(long_polls: LongPolls, key: tuple[str, str] = KEY, hold_s: float = FOREVER_S) -> "asyncio.Task[None]":
    """Return a poll that is now parked."""
    before = len(long_polls)
    poll = asyncio.create_task(long_polls.park(key, hold_s))
    await asyncio.sleep(0)
    assert len(long_polls) >= before
    assert not poll.done()
    return poll


async def released(poll: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(10):
        await poll


async def test_the_polls_of_many_agents_are_released_together(long_polls):
    keys = [("run", str(number)) for number in range(3 * CALLS_PER_TURN)]
    polls, other = [await parked(long_polls, key) for key in keys], await parked(long_polls, OTHER)
    long_polls.wake_each("run", ["unknown", *(agent_id for _, agent_id in keys)])
    await asyncio.gather(*map(released, polls))
    assert not other.done() and len(long_polls) == 1
    long_polls.wake(OTHER)
    await released(other)


async def test_a_poll_is_released_by_its_agents_wake_up(long_polls):
    poll, other = await parked(long_polls), await parked(long_polls, OTHER)
    long_polls.wake(KEY)
    await released(poll)
    assert not other.done()
    long_polls.wake(OTHER)
    await released(other)


async def test_a_newer_poll_of_the_agent_releases_the_one_before(long_polls):
    older = await parked(long_polls)
    newer = await parked(long_polls)
    await released(older)
    assert not newer.done()
    assert len(long_polls) == 1
    long_polls.wake(KEY)
    await released(newer)


async def test_a_wake_up_without_a_waiting_poll_is_dropped(long_polls):
    for _ in range(2):
        long_polls.wake(KEY)
        poll = await parked(long_polls)
        long_polls.wake(KEY)
        long_polls.wake(KEY)
        await released(poll)


async def test_all_polls_are_released_at_the_end(long_polls):
    polls = [await parked(long_polls, ("run", str(number))) for number in range(5)]
    long_polls.wake_all()
    for poll in polls:
        await released(poll)
    assert len(long_polls) == 0


async def test_a_poll_whose_client_has_gone_is_not_kept(long_polls):
    poll = await parked(long_polls)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    assert len(long_polls) == 0
    long_polls.wake(KEY)


@pytest.mark.parametrize("release", ["woken", "replaced", "cancelled"])
async def test_the_timer_of_a_poll_ends_with_it(long_polls, monkeypatch, release):
    loop, timers = asyncio.get_running_loop(), []
    call_later = loop.call_later
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_later", lambda *what: timers.append(call_later(*what)) or timers[-1])
        poll = await parked(long_polls)
    (timer,) = timers
    assert not timer.cancelled()
    if release == "woken":
        long_polls.wake(KEY)
    elif release == "replaced":
        newer = await parked(long_polls)
    else:
        poll.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait({poll})
    assert timer.cancelled()
    if release == "replaced":
        long_polls.wake(KEY)
        await released(newer)


async def test_the_end_of_an_older_poll_does_not_take_the_newer_one_along(long_polls):
    older = await parked(long_polls)
    newer = await parked(long_polls)
    older.cancel()
    await asyncio.gather(older, return_exceptions=True)
    assert len(long_polls) == 1
    long_polls.wake(KEY)
    await released(newer)


async def test_a_small_run_is_answered_at_once_beside_a_large_one(long_polls, monkeypatch):
    monkeypatch.setattr("rdzv_server.service.fair_scheduler.BURST_S", FOREVER_S)  # all of it is one burst
    large = [await parked(long_polls, ("large", str(number))) for number in range(10 * CALLS_PER_TURN)]
    small = [await parked(long_polls, ("small", str(number))) for number in range(2)]
    for number in range(len(large)):
        long_polls.wake(("large", str(number)))
    for number in range(len(small)):
        long_polls.wake(("small", str(number)))
    for poll in small:
        await released(poll)
    assert sum(poll.done() for poll in large) <= 2 * CALLS_PER_TURN
    for poll in large:
        await released(poll)


async def test_polls_whose_holds_end_together_are_all_released(long_polls):
    polls = [await parked(long_polls, ("run", str(number)), hold_s=0.01) for number in range(5)]
    for poll in polls:
        await released(poll)
    assert len(long_polls) == 0
    await released(await parked(long_polls, hold_s=0.01))
