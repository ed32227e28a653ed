"""The only caller of the core: writes first, then wakes and answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from rdzv_protocol.errors import AgentFenced, ServerUnavailable, StaleRound
from rdzv_protocol.events import RunEvent
from rdzv_protocol.messages import Finish, Start, Stop, Wait
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.core.effects import Record
from rdzv_server.core.events import (
    AgentDisconnected,
    LeaseRenewed,
    NodeJoined,
    NodeLeft,
    NodeLost,
    RunForgotten,
    RunStopped,
    WorkersFailed,
    WorkersSucceeded,
)
from rdzv_server.core.kernel import admission, snapshot
from rdzv_server.core.kernel import machine as machine_module
from rdzv_server.core.kernel.liveness import HoldUp
from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.runs import succession
from rdzv_server.core.runs.registry import Registry
from rdzv_server.core.views import run_view
from rdzv_server.service import driver as driver_module
from rdzv_server.service.clock import Clock
from rdzv_server.service.driver import MOST_UNREAD_S, Driver
from rdzv_server.storage import compaction
from rdzv_server.storage.base import Change, MemoryStore, StoreUnavailable
from rdzv_server.words import service as words
from tests.support.message_search import pattern
from tests.support.scenario import RUN_ID, a_failure, a_join, durable, settings_of

PATIENCE_S = 10.0


class SlowStore(MemoryStore):
    """Store that writes at once, unless the test delays it."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self._may_write = asyncio.Event()
        self._is_writing = asyncio.Event()
        self.release()

    def hold(self) -> None:
        self._may_write.clear()
        self._is_writing.clear()

    def release(self) -> None:
        self._may_write.set()

    async def is_writing(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._is_writing.wait()

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        self._is_writing.set()
        await self._may_write.wait()
        self.batches.append([type(change.fact).__name__ for change in changes if isinstance(change, Record)])
        await super().append(changes, events)


class FullStore(MemoryStore):
    """Store that fails to write, with this error, while it has no room."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.has_room = error is None
        self._error = error or StoreUnavailable("cannot write: the disk is full")
        self.refused = asyncio.Event()

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        if not self.has_room:
            self.refused.set()
            raise self._error
        await super().append(changes, events)


class Server:
    """A driver with its registry, store and long polls."""

    def __init__(self, store: MemoryStore, retention_s: float = 3_600.0) -> None:
        self.store = store
        self.registry = Registry(retention_s)
        self.driver = Driver(self.registry, store)
        self.long_polls = self.driver.long_polls

    async def join(self, *names: str, nodes: str = "2", **settings) -> None:
        for name in names:
            asked = settings_of(nodes, **settings) if nodes else RequestedSettings()
            join = NodeJoined(a_join(name, settings=asked, explicit_run_id=True), "10.0.0.9")
            await self.driver.submit(RUN_ID, join)

    def directive(self, name: str):
        return self.registry.machine_of(RUN_ID, name).directive_for(name, self.driver.now())[1]

    def runs_on(self, names: str) -> bool:
        return {type(self.directive(name)) for name in names} == {Start}

    async def told(self, name: str, kind: type) -> None:
        """Return once the agent has a directive of this kind, which wakes its poll."""
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance(self.directive(name), kind):
                await self.long_polls.park((RUN_ID, name), PATIENCE_S)


StartServer = Callable[..., Awaitable[Server]]


@pytest.fixture
async def started() -> AsyncIterator[StartServer]:
    servers = []

    async def start(store: MemoryStore, **options) -> Server:
        servers.append(Server(store, **options))
        await servers[-1].driver.start()
        return servers[-1]

    yield start
    for server in servers:
        await server.driver.stop()


@pytest.fixture
async def server(started) -> Server:
    return await started(MemoryStore())


@pytest.fixture
async def slow(started) -> Server:
    return await started(SlowStore())


# Writing before acting.


async def test_an_answer_waits_until_its_event_is_written(slow):
    slow.store.hold()
    join = asyncio.create_task(slow.join("a"))
    await slow.store.is_writing()
    assert not join.done()
    slow.store.release()
    await join
    assert slow.store.batches == [["RunCreated", "NodeJoined"]]


async def test_a_poll_is_woken_only_after_its_cause_is_written(slow):
    await slow.join("a")
    slow.store.hold()
    poll = asyncio.create_task(slow.long_polls.park((RUN_ID, "a"), PATIENCE_S))
    second = asyncio.create_task(slow.join("b"))
    await slow.store.is_writing()
    await asyncio.sleep(0)
    assert not poll.done() and not second.done()
    slow.store.release()
    await asyncio.gather(poll, second)
    assert slow.runs_on("ab")


async def test_events_that_arrive_during_a_write_share_the_next_one(slow):
    slow.store.hold()
    first = asyncio.create_task(slow.join("a", nodes="4"))
    await slow.store.is_writing()
    others = [asyncio.create_task(slow.join(name, nodes="4")) for name in "bcd"]
    await asyncio.sleep(0)
    slow.store.release()
    await asyncio.gather(first, *others)
    assert [len(batch) for batch in slow.store.batches] == [2, 4]


async def test_an_answer_has_the_directive_of_its_own_batch(slow):
    """A stop in the next batch does not overtake a start that was never sent."""
    await slow.join("a")
    slow.store.hold()
    seen = []

    async def joins() -> None:
        await slow.join("b")
        seen.append(type(slow.directive("b")))

    join = asyncio.create_task(joins())
    await slow.store.is_writing()
    leave = asyncio.create_task(slow.driver.submit(RUN_ID, NodeLeft("a", "SIGTERM")))
    await asyncio.sleep(0)
    slow.store.release()
    await asyncio.gather(join, leave)
    assert seen == [Start]
    assert isinstance(slow.directive("b"), Stop)


# When it cannot continue.


async def test_a_failed_write_stops_the_driver_and_no_poll_is_answered(started):
    server = await started(FullStore(OSError(28, "No space left on device")))
    poll = asyncio.create_task(server.long_polls.park((RUN_ID, "a"), PATIENCE_S))
    join = asyncio.create_task(server.join("a", nodes="1"))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(OSError, match="No space left on device"):
            await server.driver.crashed()
    assert not poll.done()
    with pytest.raises(ServerUnavailable, match=pattern(words.cannot_continue, kind="OSError")):
        await join
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)


async def test_a_driver_that_works_has_not_crashed(server):
    crashed = asyncio.create_task(server.driver.crashed())
    await server.join("a")
    assert not crashed.done()
    crashed.cancel()
    await asyncio.gather(crashed, return_exceptions=True)
    await server.join("b")
    assert server.runs_on("ab"), "to stop watching it does not stop it"


async def test_requests_that_still_wait_when_it_stops_are_refused(slow):
    slow.store.hold()
    join = asyncio.create_task(slow.join("a"))
    await slow.store.is_writing()
    written = asyncio.create_task(slow.driver.written(slow.registry.machine_of(RUN_ID, "a"), "a"))
    await asyncio.sleep(0)
    assert not written.done(), "the core knows what is not written yet"
    await slow.driver.stop()
    for waiting in (join, written, slow.join("b")):
        with pytest.raises(ServerUnavailable):
            await waiting


async def test_a_written_event_may_be_reported_at_once(server):
    await server.join("a")
    async with asyncio.timeout(PATIENCE_S):
        await server.driver.written(server.registry.machine_of(RUN_ID, "a"), "a")


async def test_a_driver_that_never_started_can_be_stopped():
    await Server(MemoryStore()).driver.stop()


# A store that cannot be written for a while.


async def test_while_the_store_fails_nothing_is_decided_and_afterwards_everything_is(started, monkeypatch):
    monkeypatch.setattr(driver_module, "RETRY_S", 0.0)
    server = await started(FullStore())
    await server.join("a", nodes="3")
    server.store.has_room = False
    leave = asyncio.create_task(server.driver.submit(RUN_ID, NodeLeft("a", "SIGTERM")))
    await server.store.refused.wait()
    assert not leave.done()
    assert server.driver.unhealthy_reason == "cannot write: the disk is full"
    server.store.has_room = True
    await leave
    assert server.driver.unhealthy_reason is None
    assert not server.registry.runs()[0].agents


async def test_a_newcomer_learns_at_once_why_nothing_can_be_written_and_joins_when_it_can(started, monkeypatch):
    monkeypatch.setattr(driver_module, "RETRY_S", 0.01)
    server = await started(FullStore())
    await server.join("a")
    server.store.has_room = False
    for _ in range(2):  # one that finds out, one that comes later
        with pytest.raises(ServerUnavailable, match="cannot write: the disk is full"):
            async with asyncio.timeout(PATIENCE_S):
                await server.join("b")
    assert not server.driver._unanswered, "nobody waits any more"
    measured = server.driver.measurements
    assert (measured.store_failures > 0, measured.store_outages) == (True, 1), "one, however often a write is tried"
    server.store.has_room = True
    async with asyncio.timeout(PATIENCE_S):
        while server.driver.unhealthy_reason:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await server.join("b")
    assert server.runs_on("ab")
    joined = [record.fact.join for record in await server.store.load() if isinstance(record.fact, NodeJoined)]
    assert [join.agent_id for join in joined] == ["a", "b"]


async def test_however_often_agents_ask_while_nothing_can_be_written_each_has_one_pending_sign(slow):
    await slow.join("a", "b", nodes="3")
    slow.store.hold()
    join = asyncio.create_task(slow.join("c", nodes=""))
    await slow.store.is_writing()
    for _ in range(1_000):
        polls = [asyncio.create_task(slow.driver.submit(RUN_ID, LeaseRenewed(name))) for name in "ab"]
        await asyncio.sleep(0)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        slow.driver.notify(RUN_ID, AgentDisconnected("a"))
    assert len(slow.driver._inbox) == 2
    slow.store.release()
    await join
    await slow.driver.submit(RUN_ID, LeaseRenewed("b"))
    (run,) = slow.driver.runs()
    assert list(run.leases.absent_since) == ["a"], "the last sign counts"


# The server's own trouble is no evidence against agents, and no excuse for a lost one.

LEASE_S = 10.0


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
def time(monkeypatch) -> FakeTime:
    time, loop_s = FakeTime(), Clock._loop_s
    monkeypatch.setattr(Clock, "_loop_s", lambda clock: loop_s(clock) + time.ahead_s)
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
async def test_while_the_event_loop_is_blocked_no_lease_and_no_grace_ends(server, time, still_s):
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


async def test_a_server_that_may_not_decide_decides_nothing_and_then_every_agent_has_a_lease(server, time):
    await server.join("a", "b", nodes="2", lease_s=LEASE_S)
    may_decide = False
    server.driver.may_decide = lambda: may_decide
    for name in "ab":
        server.driver.notify(RUN_ID, AgentDisconnected(name))
    for _ in range(3):
        time.passes(server, LEASE_S)
        server.driver.notify(RUN_ID, AgentDisconnected("a"))
        await asyncio.sleep(0.01)
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


# A restarted server.


async def test_a_restarted_server_has_all_its_state_and_loses_no_agent(started):
    store = MemoryStore()
    first = await started(store)
    await first.join("a", "b", lease_s=5.0, max_restarts=2)
    await first.driver.submit(RUN_ID, WorkersFailed("a", 1, a_failure("a")))
    before, last_at = durable(first.registry.runs()[0]), max(record.at for record in await store.load())
    await first.driver.stop()
    second = await started(store)
    (run,) = second.driver.runs()
    assert durable(run) == before and isinstance(second.directive("b"), Stop)
    assert second.driver.now() == pytest.approx(last_at, abs=1.0), "its time has gone on"
    assert run.leases.renewed_at == dict.fromkeys("ab", second.driver.started_at), "everybody has a fresh lease"
    for name in "ab":
        await second.driver.submit(RUN_ID, NodeJoined(a_join(name, after_round=1), "10.0.0.9"))
    for name in "ab":
        await second.driver.submit(RUN_ID, WorkersSucceeded(name, 2))
    assert run.stage is Stage.SUCCEEDED


async def test_events_that_a_crash_kept_from_being_written_are_made_up_for_by_the_next_server(started):
    """Etcd takes a large batch in several transactions, the events last."""

    class EventlessStore(MemoryStore):
        async def append(self, records, events=()):
            await super().append(records)

    lost, kept = EventlessStore(), MemoryStore()
    for store in (lost, kept):
        await (await started(store)).join("a", "b")
    kept_events = await kept.read_events(RUN_ID, 1, 0, 10)
    made_up = MemoryStore()
    await made_up.append(await lost.load())
    second = await started(made_up)
    await second.join("c", nodes="")
    events = await made_up.read_events(RUN_ID, 1, 0, 10)
    assert [event.kind for event in kept_events] == [event.kind for event in events[: len(kept_events)]]
    assert [event.number for event in events] == list(range(1, len(events) + 1)) and len(kept_events) > 3


async def test_a_restarted_server_keeps_the_deadlines_that_it_had(started):
    store = MemoryStore()
    before = await started(store)
    await before.join("a", join_timeout_s=0.05)
    await before.driver.stop()
    after = await started(store)
    await after.driver.submit(RUN_ID, LeaseRenewed("a"))
    async with asyncio.timeout(PATIENCE_S):
        while after.driver.runs()[0].stage is not Stage.FAILED:
            await after.long_polls.park((RUN_ID, "a"), PATIENCE_S)


# Refusals.


@pytest.mark.parametrize(
    ("event", "refusal"),
    [
        (NodeLeft("unknown", "SIGTERM"), AgentFenced),
        (WorkersFailed("a", 7, a_failure("a")), StaleRound),
        (WorkersSucceeded("unknown", 1), AgentFenced),
    ],
    ids=["leave of an unknown agent", "stale report", "report of an unknown agent"],
)
async def test_a_refusal_reaches_its_caller_and_changes_nothing(server, event, refusal):
    await server.join("a", "b")
    (before,) = [durable(run) for run in server.driver.runs()]
    with pytest.raises(refusal):
        await server.driver.submit(RUN_ID, event)
    assert [durable(run) for run in server.driver.runs()] == [before]


async def test_a_refusal_reaches_only_its_caller(server):
    results = await asyncio.gather(
        server.join("a"),
        server.driver.submit(RUN_ID, NodeLeft("unknown", "SIGTERM")),
        server.join("b"),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), AgentFenced, type(None)]
    assert server.runs_on("ab")


async def test_an_event_of_an_unknown_run_has_no_effect(server):
    server.driver.notify("no such run", AgentDisconnected("a"))
    await server.join("a")
    assert isinstance(server.directive("a"), Wait)


async def test_a_caller_that_has_gone_does_not_hold_its_turn(server):
    gone = asyncio.create_task(server.join("a"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await server.join("b")
    assert server.runs_on("ab"), "what it asked for has happened all the same"


# Time.


async def test_a_deadline_fires_without_a_request(server):
    await server.join("a", nodes="1:2", last_call_timeout_s=0.02)
    assert isinstance(server.directive("a"), Wait)
    await server.told("a", Start)


async def test_a_deadline_that_moves_closer_fires_in_time(server):
    await server.join("a", "b", nodes="1:2", disconnect_grace_s=0.02)
    assert server.runs_on("ab")
    server.driver.notify(RUN_ID, AgentDisconnected("b"))
    await server.told("a", Stop)


async def test_an_ended_run_is_forgotten_in_time(started):
    server = await started(MemoryStore(), retention_s=0.02)
    await server.join("a", nodes="1", lease_s=0.1)
    await server.driver.submit(RUN_ID, WorkersSucceeded("a", 1))
    async with asyncio.timeout(PATIENCE_S):
        while any(record.run_id == RUN_ID for record in await server.store.load()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert server.driver.runs() == []


# An error in the core of one run.


def breaks(monkeypatch, kind: type, run_id: str = "poison") -> None:
    """Make the core raise an error in the middle of handling an event of this kind, in one run."""
    rule = machine_module._RULES[kind]

    def raise_half_way(machine, fact, now):
        rule.apply(machine, fact, now)
        if machine.run.run_id == run_id:
            raise AssertionError("a contradiction")

    monkeypatch.setitem(machine_module._RULES, kind, rule._replace(apply=raise_half_way))


async def join_run(server: Server, run_id: str, *names: str) -> None:
    for name in names:
        join = a_join(name, settings=settings_of("2", max_restarts=3), explicit_run_id=True, run_id=run_id)
        await server.driver.submit(run_id, NodeJoined(join, "10.0.0.9"))


def told(server: Server, run_id: str, name: str):
    return server.registry.machine_of(run_id, name).directive_for(name, server.driver.now())[1]


async def two_runs(server: Server) -> None:
    await join_run(server, "poison", "a", "b")
    await join_run(server, "other", "a", "b")


async def poisoned_store(started: StartServer) -> MemoryStore:
    """Records of two runs, one of which has a failure that a broken core cannot replay."""
    store = MemoryStore()
    server = await started(store)
    await two_runs(server)
    await server.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    await server.driver.stop()
    return store


async def test_an_error_in_one_run_sets_it_apart_and_the_others_notice_nothing(server, monkeypatch):
    await two_runs(server)
    breaks(monkeypatch, WorkersFailed)
    for _ in range(2):  # its agent tries again
        with pytest.raises(ServerUnavailable, match="set apart after an error inside rdzv-server"):
            await server.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    assert isinstance(told(server, "poison", "a"), Start), "as was written: no stop"
    await server.driver.submit("poison", LeaseRenewed("a"))
    server.driver.notify("poison", AgentDisconnected("b"))
    await server.driver.submit("other", WorkersFailed("a", 1, a_failure("a")))
    assert isinstance(told(server, "other", "b"), Stop)
    assert server.registry.runs_apart == ["poison"] and server.registry.next_deadline() is not None
    poison = server.registry.attempts_of("poison")[0]
    assert run_view.phase(poison) == "unhealthy" and "a contradiction" in run_view.reason(poison, 0.0)
    assert not poison.departures
    events = await server.store.read_events("poison", 1, 0, 100)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "warning"


async def test_an_agent_that_the_records_do_not_tell_waits(server, monkeypatch):
    breaks(monkeypatch, NodeJoined)
    await join_run(server, "poison", "a")
    machine = server.registry.machine_of("poison", "a")
    assert not machine.has_news("a", 0) and isinstance(told(server, "poison", "a"), Wait)


async def test_a_deadline_that_raises_sets_its_run_apart(server, monkeypatch):
    await join_run(server, "poison", "a", "b")
    breaks(monkeypatch, NodeLost)
    server.driver.notify("poison", AgentDisconnected("b"))
    await server.driver.submit("poison", LeaseRenewed("a"))
    server.registry.pass_time(server.driver.now() + 1_000.0)
    assert server.registry.runs_apart == ["poison"]


async def test_a_snapshot_that_raises_sets_its_run_apart(server, monkeypatch):
    monkeypatch.setattr(compaction, "BEYOND", 3)
    monkeypatch.setattr(compaction, "FACTOR", 0)
    take = snapshot.take
    monkeypatch.setattr(snapshot, "take", lambda run: 1 / 0 if run.run_id == "poison" else take(run))
    await two_runs(server)
    await server.driver.submit("other", WorkersFailed("a", 1, a_failure("a")))
    assert server.registry.runs_apart == ["poison"]
    assert isinstance(told(server, "other", "b"), Stop) and isinstance(told(server, "poison", "a"), Start)
    assert (await server.store.read_events("poison", 1, 0, 100))[-1].kind == "warning"


@pytest.mark.parametrize("broken", ["restart", "next_deadline"])
async def test_a_run_whose_core_raises_when_the_server_starts_is_set_apart(started, monkeypatch, broken):
    store = MemoryStore()
    first = await started(store)
    await two_runs(first)
    await first.driver.stop()
    whole = getattr(machine_module.RunMachine, broken)

    def raise_in_one_run(machine, *args):
        return 1 / 0 if machine.run.run_id == "poison" else whole(machine, *args)

    monkeypatch.setattr(machine_module.RunMachine, broken, raise_in_one_run)
    second = await started(store)
    assert second.registry.runs_apart == ["poison"]
    assert isinstance(told(second, "poison", "a"), Start) and isinstance(told(second, "other", "a"), Start)


async def test_a_join_that_crashes_its_run_sets_the_run_apart(server, monkeypatch):
    await two_runs(server)
    monkeypatch.setattr(succession, "starts_new_attempt", lambda *_: 1 / 0)
    await join_run(server, "poison", "c")
    assert server.registry.runs_apart == ["poison"]
    assert isinstance(told(server, "poison", "c"), Wait) and isinstance(told(server, "poison", "a"), Start)


async def test_an_error_after_trouble_of_the_server_sets_its_run_apart(server):
    await two_runs(server)
    server.registry.machine_of("poison", "a").run.leases.resume = lambda *_: 1 / 0
    server.registry.resume(server.driver.now(), HoldUp(still_s=1.0))
    await server.driver.submit("other", WorkersFailed("a", 1, a_failure("a")))
    assert server.registry.runs_apart == ["poison"]
    assert isinstance(told(server, "other", "b"), Stop) and isinstance(told(server, "poison", "a"), Start)


async def test_a_join_that_crashes_the_creation_of_its_run_is_refused_and_other_runs_continue(
    server, monkeypatch, caplog
):
    await join_run(server, "other", "a", "b")
    whole = admission.settings_of
    monkeypatch.setattr(admission, "settings_of", lambda join: 1 / 0 if join.run_id == "poison" else whole(join))
    for _ in range(2):  # its agent tries again
        with pytest.raises(ServerUnavailable, match="run poison cannot be created after an error inside rdzv-server"):
            await join_run(server, "poison", "a")
    assert "ZeroDivisionError" in caplog.text and [run.run_id for run in server.driver.runs()] == ["other"]
    await server.driver.submit("other", WorkersFailed("a", 1, a_failure("a")))
    assert isinstance(told(server, "other", "b"), Stop)


async def test_a_fixed_server_continues_a_run_that_was_set_apart(started, monkeypatch):
    store = MemoryStore()
    first = await started(store)
    await two_runs(first)
    with monkeypatch.context() as broken:
        breaks(broken, WorkersFailed)
        with pytest.raises(ServerUnavailable):
            await first.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    await first.driver.stop()
    second = await started(store)
    assert second.registry.runs_apart == []
    await second.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    assert isinstance(told(second, "poison", "b"), Stop)


async def test_a_replay_that_raises_sets_its_run_apart(started, monkeypatch):
    store = await poisoned_store(started)
    breaks(monkeypatch, WorkersFailed)
    second = await started(store)
    assert second.registry.runs_apart == ["poison"]
    assert isinstance(told(second, "poison", "a"), Start), "as before the fact that raises"
    assert len(await store.read_records("poison", 1)) > 3, "they are kept"
    await second.driver.submit("other", WorkersFailed("a", 1, a_failure("a")))


async def test_a_run_that_is_set_apart_can_be_stopped_also_for_the_next_server(started, monkeypatch):
    store = await poisoned_store(started)
    breaks(monkeypatch, WorkersFailed)
    for _ in range(2):
        server = await started(store)
        await server.driver.act("poison", RunStopped("enough", "an operator", "request"))
        assert isinstance(told(server, "poison", "a"), Finish) and server.registry.runs_apart == []
        await server.driver.stop()


async def test_a_run_that_is_set_apart_can_be_forgotten(server, monkeypatch):
    await two_runs(server)
    breaks(monkeypatch, WorkersFailed)
    with pytest.raises(ServerUnavailable):
        await server.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    machine = server.registry.machine_of("poison", "a")
    await server.driver.act("poison", RunForgotten("", "an operator", "request", run_id="poison"))
    assert [run.run_id for run in server.driver.runs()] == ["other"]
    with pytest.raises(AgentFenced):
        machine.directive_for("a", 0.0)


async def test_after_an_error_of_all_runs_every_request_is_refused_at_once(started, monkeypatch):
    server = await started(MemoryStore())
    monkeypatch.setattr(Registry, "pass_time", lambda *_: 1 / 0)
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            with pytest.raises(ServerUnavailable, match=pattern(words.cannot_continue, kind="ZeroDivisionError")):
                await server.join("a")
        with pytest.raises(ZeroDivisionError):
            await server.driver.crashed()
