"""Losses while the server itself is in trouble: that is no evidence against agents, and no excuse for a lost one."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rdzv_server.core.events import (
    AgentDisconnected,
    LeaseRenewed,
)
from rdzv_server.service.clock import Clock
from rdzv_server.service.driver import MOST_UNREAD_S
from tests.support.scenario import RUN_ID
from tests.unit.rdzv_server.service.driven_server import Server

LEASE_S = 10.0
PATIENCE_S = 20.0


class FakeTime:
    """The server's time, which the test sets."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def passes(self, server: Server, seconds: float) -> None:
        """Let time pass while the event loop runs as it should."""
        left_s = seconds
        while left_s > 0:
            step_s = min(left_s, 1.0)
            left_s -= step_s
            self.ahead_s += step_s
            server.driver._clock._beat()

    def stands_still(self, server: Server, seconds: float) -> None:
        """Let time pass while the event loop does nothing, although its beat is due."""
        clock = server.driver._clock
        clock._beat_at = clock._loop_s()
        self.ahead_s += seconds


@pytest.fixture
async def time(monkeypatch) -> FakeTime:
    time, began_s = FakeTime(), asyncio.get_running_loop().time()
    monkeypatch.setattr(Clock, "_loop_s", lambda clock: began_s + time.ahead_s)
    return time


def lost(server: Server) -> list[str]:
    """Return the lost nodes with names of one letter. Others join, and are not heard again."""
    return [departure.node_id for departure in server.driver.runs()[0].departures if len(departure.node_id) == 1]


async def polls(server: Server, *names: str) -> None:
    for name in names:
        await server.driver.submit(RUN_ID, LeaseRenewed(name))


async def writes_for(server: Server, time: FakeTime, seconds: float, meanwhile: Callable[[], object]) -> None:
    """Let the server write something while its store takes this time."""
    server.store.hold()
    joining = asyncio.create_task(server.join(f"node{time.ahead_s}", nodes=""))
    await server.store.is_writing()
    time.passes(server, seconds)
    happened = meanwhile()
    await asyncio.sleep(0)
    server.store.release()
    await joining
    if isinstance(happened, Awaitable):
        await happened


@pytest.mark.parametrize("write_s", [0.7, 4.0])
async def test_a_stopped_agent_is_lost_after_its_lease_though_each_write_is_slow(slow, time, write_s):
    await slow.join("a", "b", nodes="2:100", scale_up="manual", lease_s=LEASE_S)
    while time.ahead_s < LEASE_S - write_s:
        await writes_for(slow, time, write_s, lambda: polls(slow, "a"))
    assert not lost(slow)
    await writes_for(slow, time, write_s, lambda: polls(slow, "a"))
    await writes_for(slow, time, write_s, lambda: polls(slow, "a"))
    assert lost(slow) == ["b"]


@pytest.mark.parametrize("write_s", [6.0, 12.0, 20.0])
async def test_a_store_that_never_ends_to_be_slow_puts_a_loss_off_for_one_lease(slow, time, write_s):
    await slow.join("a", "b", nodes="2:100", scale_up="manual", lease_s=LEASE_S)
    await writes_for(slow, time, write_s, lambda: polls(slow, "a"))
    assert not lost(slow)
    while time.ahead_s < write_s + LEASE_S:
        await writes_for(slow, time, write_s, lambda: polls(slow, "a"))
    await polls(slow, "a")
    assert lost(slow) == ["b"]


@pytest.mark.parametrize("write_s", [6.0, 12.0, 20.0])
@pytest.mark.parametrize("nodes", ["ab", "abc"])
async def test_agents_that_gave_the_server_up_while_it_could_not_write_are_not_lost(slow, time, write_s, nodes):
    await slow.join(*nodes, nodes=f"{len(nodes)}:100", scale_up="manual", lease_s=LEASE_S)

    def all_give_up() -> None:
        for name in nodes:
            slow.driver.notify(RUN_ID, AgentDisconnected(name))

    await writes_for(slow, time, write_s, all_give_up)
    time.passes(slow, LEASE_S - 1.0)
    await polls(slow, *nodes)
    time.passes(slow, LEASE_S - 1.0)
    await polls(slow, *nodes)
    assert not lost(slow)
    slow.driver.notify(RUN_ID, AgentDisconnected("a"))
    await polls(slow, *nodes[1:], "unknown")
    time.passes(slow, 1.0)
    await polls(slow, *nodes[1:], "unknown")
    assert lost(slow) == ["a"], "once it has been heard, a close is a sign again"


@pytest.mark.parametrize("still_s", [1.0, 10.0, 100.0])
async def test_leases_and_graces_do_not_end_while_the_event_loop_is_blocked(server, time, still_s):
    await server.join("a", "b", "c", nodes="3", lease_s=LEASE_S)
    server.driver.notify(RUN_ID, AgentDisconnected("b"))
    time.passes(server, 0.5)
    await polls(server, "a")
    time.stands_still(server, still_s)
    await polls(server, "a")
    assert not lost(server)
    await polls(server, "b", "c")
    time.passes(server, LEASE_S - 1.0)
    await polls(server, "a")
    assert not lost(server)


async def test_a_poll_that_lies_unread_in_the_inbox_keeps_its_agent(server, time):
    await server.join("a", "b", nodes="2", lease_s=LEASE_S)
    time.passes(server, LEASE_S - 0.2)
    both = asyncio.gather(polls(server, "a"), polls(server, "b"))
    await asyncio.sleep(0)
    time.passes(server, 0.3)
    await both
    assert not lost(server)


async def test_a_run_that_floods_the_server_puts_a_loss_off_for_some_seconds_only(server, time, monkeypatch):
    await server.join("a", "b", nodes="2", lease_s=LEASE_S)
    flooded_at = server.driver.now()
    monkeypatch.setattr(server.driver._clock, "unread_since", lambda: flooded_at)  # its messages wait forever
    for _ in range(int(LEASE_S - 1.0 + MOST_UNREAD_S)):
        time.passes(server, 1.0)
        await polls(server, "a")
        assert not lost(server)
    time.passes(server, 1.5)
    await polls(server, "a")
    assert lost(server) == ["b"]


async def test_every_agent_has_a_lease_after_a_time_in_which_the_server_could_not_decide(server, time):
    await server.join("a", "b", nodes="2", lease_s=LEASE_S)
    may_decide, asked = False, asyncio.Event()

    def decides() -> bool:
        asked.set()
        return may_decide

    server.driver.may_decide = decides
    for name in "ab":
        server.driver.notify(RUN_ID, AgentDisconnected(name))
    for _ in range(3):
        time.passes(server, LEASE_S)
        asked.clear()
        server.driver.notify(RUN_ID, LeaseRenewed("a"))  # if no agent were heard, none would be lost
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()  # if it might decide, it would now, in the same step
        assert not lost(server)
    may_decide = True
    server.driver.heard(3 * LEASE_S)
    for _ in range(int(LEASE_S)):
        await polls(server, "a")
        assert not lost(server)
        time.passes(server, 1.0)
    await polls(server, "a")
    assert lost(server) == ["b"], "one lease, and no more"


async def test_repeated_lapses_of_leadership_do_not_keep_a_lost_agent(server, time):
    """The time of certain leadership counts: a lease that began again each time would never end."""
    await server.join("a", "b", nodes="2", lease_s=LEASE_S)
    for _ in range(20):
        time.passes(server, 3.0)
        server.driver.heard(2.0)
        await polls(server, "a")
    assert lost(server) == ["b"]
