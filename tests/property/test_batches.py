"""A batch of events leaves the same store and the same state as its events one by one.

The driver works on a real file and on a real etcd, with random events. Agents join and end, operators act, retention
ends, and servers restart. A small server needs room for runs and for events. In parallel, a separate registry gets the
same events one by one. Each of its effects is carried out separately, in a store in memory.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.events import RunEvent

from rdzv_server.core import journals
from rdzv_server.core.effects import AnswerOperator, Effect, EmitEvent, ForgetRun, Record
from rdzv_server.core.events import (
    Event,
    Incarnation,
    NodeJoined,
    NodeLeft,
    RunForgotten,
    RunStopped,
    WorkersFailed,
    WorkersSucceeded,
)
from rdzv_server.core.kernel.liveness import HoldUp
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.runs import used_numbers
from rdzv_server.core.runs.registry import Registry
from rdzv_server.service.clock import Clock
from rdzv_server.service.driver import Driver
from rdzv_server.storage import compaction
from rdzv_server.storage.base import MemoryStore, Store
from rdzv_server.storage.sqlite import SqliteStore
from tests.support.etcd import Etcd, Shared
from tests.support.scenario import SERVER_ADDR, a_failure, a_join, durable, settings_of

RETENTION_S = 100.0
MOST_RUNS = 3
RUNS = ["one", "two", "three", "four"]
MOST_EVENTS = 12
MANY = 100_000
PATIENCE_S = 60.0
FEWER = settings(max_examples=max(1, settings().max_examples // 5), stateful_step_count=20)
"""Fewer examples than elsewhere, because each step is written to a disk."""

runs = st.sampled_from(RUNS)
agents = st.integers(0, 99).map("agent{}".format)
steps = st.sampled_from([0.0, 1.0, 10.0, RETENTION_S, 300.0])


def joins(run_id: str, agent: str, explicit: bool, rerun: bool) -> tuple[str, Event]:
    wanted = settings_of("1", lease_s=5.0, max_restarts=0)
    join = a_join(agent, run_id=run_id, explicit_run_id=explicit, rerun=rerun, settings=wanted)
    return run_id, NodeJoined(join, SERVER_ADDR)


happenings = st.one_of(
    st.builds(joins, runs, agents, st.booleans(), st.booleans()),
    st.builds(lambda run_id, agent: (run_id, NodeLeft(agent, "SIGTERM")), runs, agents),
    st.builds(lambda run_id, number: (run_id, RunStopped(request_id=f"s{number}")), runs, st.integers()),
    st.builds(
        lambda run_id, number: (run_id, RunForgotten(request_id=f"f{number}", run_id=run_id)), runs, st.integers()
    ),
    st.builds(lambda run_id: (run_id, "succeeds"), runs),
    st.builds(lambda run_id: (run_id, "fails"), runs),
)
"""Events, each with its run id. A word becomes an event when it is due, because it names the run's agent."""


class GivenClock(Clock):
    """Clock that the test sets, also over restarts of the server."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_750_000_000.0 + self.at)
        self.at = 0.0

    def start(self, records: Sequence[Record]) -> None:
        super().start(records)
        self.incarnation = Incarnation()

    def _loop_s(self) -> float:
        return self.at


class Noting(Registry):
    """Registry that records all calls of the driver."""

    def __init__(self) -> None:
        super().__init__(RETENTION_S, MOST_RUNS, max_events=MOST_EVENTS)
        self.asked: list[tuple[Any, ...]] = []
        self.told: list[RunEvent] = []

    def handle(self, run_id: str | None, event: Any, now: float) -> tuple[RunMachine | None, list[Effect]]:
        event = self._made(run_id, event)
        self.asked.append(("handle", run_id, event, now))
        machine, effects = super().handle(run_id, event, now)
        self._note(effects)
        return machine, effects

    def pass_time(self, now: float) -> list[Effect]:
        self.asked.append(("pass_time", now))
        return self._note(super().pass_time(now))

    def set_wall_clock(self, wall_at: float, now: float) -> list[Effect]:
        self.asked.append(("set_wall_clock", wall_at, now))
        return self._note(super().set_wall_clock(wall_at, now))

    def resume(self, now: float, hold_up: HoldUp) -> None:
        self.asked.append(("resume", now, hold_up))
        super().resume(now, hold_up)

    def _note(self, effects: list[Effect]) -> list[Effect]:
        self.told += [effect.event for effect in effects if isinstance(effect, EmitEvent)]
        return effects

    def _made(self, run_id: str, event: Any) -> Event:
        attempts = self.attempts_of(run_id)
        agent = next(iter(attempts[-1].agents), "nobody") if attempts else "nobody"
        match event:
            case "succeeds":
                return WorkersSucceeded(agent, 1)
            case "fails":
                return WorkersFailed(agent, 1, a_failure(agent))
        return event


class Untimed(Driver):
    """Driver whose time passes only when it takes a batch, so that each example is deterministic."""

    def _arm(self) -> None:
        """Set no timer."""


class BatchStory(RuleBasedStateMachine):
    """Story of a server and of its model, on a store that successive servers open."""

    # The real server, in batches.

    async def open_store(self) -> Store:
        raise NotImplementedError

    async def close_all(self) -> None:
        """Release what the stores need."""

    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.clock = GivenClock()
        self.model, self.one_by_one = Registry(RETENTION_S, MOST_RUNS, max_events=MOST_EVENTS), MemoryStore()
        self.told: dict[str, int] = {}
        """Number of the last event of each run id that may have been reported."""
        self.delivered: dict[str, list[int]] = {}
        self.driver: Driver | None = None
        self.do(self.begin())

    def do(self, work: Any) -> Any:
        async def in_time() -> Any:
            async with asyncio.timeout(PATIENCE_S):
                return await work

        return self.runner.run(in_time())

    async def begin(self) -> None:
        self.registry = Noting()
        self.driver = Untimed(self.registry, await self.open_store(), clock=self.clock)
        await self.driver.start()

    @rule(happened=st.lists(happenings, min_size=1, max_size=12), seconds=steps)
    def a_batch_comes(self, happened: list[tuple[str, Any]], seconds: float) -> None:
        self.clock.at += seconds
        self.do(self._take(happened))
        self._follow()

    @rule(seconds=steps)
    def time_passes(self, seconds: float) -> None:
        self.clock.at += seconds
        self.do(self._take([(RUNS[0], NodeLeft("nobody", "SIGTERM"))]))
        self._follow()

    @rule()
    def the_webhook_sends(self) -> None:
        self.do(self._deliver())

    @rule()
    def the_server_restarts(self) -> None:
        assert self.driver
        self.do(self.driver.stop())
        self.do(self.begin())
        self.model = Registry(RETENTION_S, MOST_RUNS, max_events=MOST_EVENTS)
        for record in self.do(self.one_by_one.load()):
            self.model.replay(record)
        self.model.resume_numbers(self.do(self.one_by_one.event_numbers()))
        self.model.restart(self.clock.at, Incarnation())

    async def _take(self, happened: list[tuple[str, Any]]) -> None:
        """Submit all events in one batch, which the driver takes at its turn."""
        assert self.driver
        answers = asyncio.gather(*(self.driver._take(*each) for each in happened), return_exceptions=True)
        crash = asyncio.ensure_future(self.driver.crashed())
        await asyncio.wait([answers, crash], return_when=asyncio.FIRST_COMPLETED)
        if crash.done():
            await crash
        crash.cancel()
        for answer in await answers:
            assert isinstance(answer, RunMachine | AnswerOperator | ProtocolError), repr(answer)

    async def _deliver(self) -> None:
        """Deliver everything unacknowledged to a receiver, as the webhook does."""
        assert self.driver
        for run_id in {run.run_id for run in self.registry.runs()}:
            after = await self.driver.read_delivered(run_id)
            events = await self.driver.read_events(run_id, after, MANY)
            self.delivered.setdefault(run_id, []).extend(event.number for event in events)
            if events:
                await self.driver.write_delivered(run_id, events[-1].number)
            last = max(run.event_number for run in self.registry.attempts_of(run_id))
            assert self.delivered[run_id][-1:] == [last]

    # The model, one by one.

    def _follow(self) -> None:
        asked, self.registry.asked = self.registry.asked, []
        for name, *given in asked:
            try:
                answer = getattr(self.model, name)(*given)
            except ProtocolError:
                continue
            for effect in answer[1] if name == "handle" else answer or ():
                self.do(self._carry_out(effect))

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Record() | ForgetRun():
                await self.one_by_one.append([effect])
            case EmitEvent(event):
                await self.one_by_one.append([], [event])

    # Invariants.

    @invariant()
    def the_stores_hold_the_same(self) -> None:
        if self.driver is None:
            return
        store = self.driver._store
        assert by_attempt(self.do(reread(store))) == by_attempt(self.do(self.one_by_one.load()))
        assert self.do(store.event_numbers()) == self.do(self.one_by_one.event_numbers())
        for run in self.registry.runs():
            key = run.run_id, run.attempt
            written = self.do(store.read_events(*key, run.first_event - 1, MANY))
            assert written == self.do(self.one_by_one.read_events(*key, 0, MANY))
            assert [event.number for event in written] == list(range(run.first_event, run.event_number + 1))

    @invariant()
    def the_events_have_a_limit(self) -> None:
        runs = self.registry.runs() if self.driver else []
        assert all(run.events_kept > 0 for run in runs), "an attempt keeps its last event"
        assert sum(run.events_kept for run in runs) <= max(MOST_EVENTS, len(runs))

    @invariant()
    def the_registries_are_alike(self) -> None:
        assert surviving(self.registry) == surviving(self.model)

    @invariant()
    def no_number_is_used_twice(self) -> None:
        for event in self.registry.told:
            assert event.number > self.told.get(event.run_id, 0), event
            self.told[event.run_id] = event.number
        self.registry.told = []

    @invariant()
    def each_event_is_delivered_once_and_in_order(self) -> None:
        for numbers in self.delivered.values():
            assert numbers == sorted(set(numbers))

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            if self.driver:
                self.do(self.driver.stop())
            self.do(self.close_all())
            self.runner.close()


def by_attempt(records: Sequence[Record]) -> dict[tuple[str, int], list[Record]]:
    found: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        found.setdefault((record.run_id, record.attempt), []).append(record)
    return found


def surviving(registry: Registry) -> Any:
    runs = {(run.run_id, run.attempt): durable(run) for run in registry.runs()}
    return runs, registry.nodes.state.answers, registry.snapshot(journals.NUMBERS, 0.0)


async def reread(store: Any) -> Sequence[Record]:
    """Return the records that the next server would find."""
    return await store._call(store._records) if isinstance(store, SqliteStore) else await store.load()


class OnSqlite(BatchStory):
    """Story of a server with a file."""

    folder = ""

    async def open_store(self) -> Store:
        self.folder = self.folder or tempfile.mkdtemp()
        return SqliteStore(f"{self.folder}/state.db")

    async def close_all(self) -> None:
        shutil.rmtree(self.folder)


class OnEtcd(BatchStory):
    """Story of several servers, each of which takes over from the one before."""

    stories = count()

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__()
        self._addresses = addresses
        self._client: Any = None

    async def open_store(self) -> Store:
        if self._client is None:
            from rdzv_server.storage.etcd_client import EtcdClient

            self._client = EtcdClient(self._addresses)
            self._shared = Shared(self._client, f"/batches/{next(self.stories)}")
        return await self._shared.lead()

    async def close_all(self) -> None:
        if self._client:
            await self._client.close()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "BEYOND", MANY)  # otherwise the stores would differ by their snapshots
    monkeypatch.setattr(used_numbers, "MOST_REMEMBERED", 2)


@pytest.mark.timeout(600)
def test_a_batch_in_a_file_equals_its_events_one_by_one() -> None:
    run_state_machine_as_test(OnSqlite, settings=FEWER)


@pytest.mark.timeout(600)
def test_a_batch_in_etcd_equals_its_events_one_by_one(etcd: Etcd) -> None:
    run_state_machine_as_test(partial(OnEtcd, etcd.addresses), settings=FEWER)
