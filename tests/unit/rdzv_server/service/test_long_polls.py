"""Parked polls: each is released by the first thing that happens to it."""

import asyncio

import pytest

from rdzv_server.service.fair_scheduler import AT_ONCE
from rdzv_server.service.long_polls import Waiters

KEY, OTHER = ("run", "a"), ("run", "b")
FOREVER_S = 1_000.0


@pytest.fixture
def waiters() -> Waiters:
    return Waiters()


async def parked(waiters: Waiters, key: tuple[str, str] = KEY, hold_s: float = FOREVER_S) -> "asyncio.Task[None]":
    """A poll that is parked now."""
    before = len(waiters)
    poll = asyncio.create_task(waiters.park(key, hold_s))
    await asyncio.sleep(0)
    assert len(waiters) >= before
    assert not poll.done()
    return poll


async def released(poll: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(10):
        await poll


async def test_a_poll_is_released_by_its_agents_wake_up(waiters):
    poll, other = await parked(waiters), await parked(waiters, OTHER)
    waiters.wake(KEY)
    await released(poll)
    assert not other.done()
    waiters.wake(OTHER)
    await released(other)


async def test_a_poll_is_released_when_its_hold_ends(waiters):
    await released(await parked(waiters, hold_s=0.01))
    assert len(waiters) == 0


async def test_a_newer_poll_of_the_agent_releases_the_one_before(waiters):
    older = await parked(waiters)
    newer = await parked(waiters)
    await released(older)
    assert not newer.done()
    assert len(waiters) == 1
    waiters.wake(KEY)
    await released(newer)


async def test_a_wake_up_of_nobody_is_forgotten(waiters):
    waiters.wake(KEY)
    poll = await parked(waiters)
    waiters.wake(KEY)
    await released(poll)


async def test_everybody_is_released_at_the_end(waiters):
    polls = [await parked(waiters, ("run", str(number))) for number in range(5)]
    waiters.wake_all()
    for poll in polls:
        await released(poll)
    assert len(waiters) == 0


async def test_a_poll_whose_client_has_gone_is_not_kept(waiters):
    poll = await parked(waiters)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    assert len(waiters) == 0
    waiters.wake(KEY)


async def test_the_end_of_an_older_poll_does_not_take_the_newer_one_along(waiters):
    older = await parked(waiters)
    newer = await parked(waiters)
    older.cancel()
    await asyncio.gather(older, return_exceptions=True)
    assert len(waiters) == 1
    waiters.wake(KEY)
    await released(newer)


async def test_being_woken_twice_is_being_woken_once(waiters):
    poll = await parked(waiters)
    waiters.wake(KEY)
    waiters.wake(KEY)
    await released(poll)


async def test_a_small_run_is_answered_at_once_beside_a_large_one(waiters):
    large = [await parked(waiters, ("large", str(number))) for number in range(10 * AT_ONCE)]
    small = [await parked(waiters, ("small", str(number))) for number in range(2)]
    for number in range(len(large)):
        waiters.wake(("large", str(number)))
    for number in range(len(small)):
        waiters.wake(("small", str(number)))
    for poll in small:
        await released(poll)
    assert sum(poll.done() for poll in large) <= 2 * AT_ONCE
    for poll in large:
        await released(poll)


async def test_polls_whose_holds_end_together_are_all_released(waiters):
    polls = [await parked(waiters, ("run", str(number)), hold_s=0.01) for number in range(5)]
    for poll in polls:
        await released(poll)
    await released(await parked(waiters, hold_s=0.01))
