"""Snapshots that replace records: with a real driver and real stores, under any events in between."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rdzv_protocol.events import RunEvent

from rdzv_server.core.effects import Record
from rdzv_server.core.events import NodeJoined, NodeLeft, NodeLost, WorkersFailed
from rdzv_server.core.kernel.run import HISTORY, Run
from rdzv_server.core.runs.registry import Registry
from rdzv_server.service.driver import Driver
from rdzv_server.storage import compaction
from rdzv_server.storage.base import Change, MemoryStore, Store, StoreUnavailable
from rdzv_server.storage.record_codec import settled
from tests.support.scenario import RUN_ID, a_failure, a_join, durable, settings_of

FEW = 20
"""Number of records that are not compacted in these tests."""
NODES = "abc"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "BEYOND", FEW)
    monkeypatch.setattr(compaction, "FACTOR", 2)


class Counting:
    """A store that counts its records. `compact` fails as often as the test says."""

    def __init__(self, store: Store, failures: int = 0) -> None:
        self._store = store
        self._failures = failures
        self.tries = 0
        self.length = 0
        self.replaced: set[str] = set()
        """Ids of the runs with a written snapshot."""

    async def load(self) -> Sequence[Record]:
        records = await self._store.load()
        self.length = len(records)
        return records

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        await self._store.append(changes, events)
        self.length += len(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def compact(self, records: Sequence[Record]) -> None:
        self.tries += 1
        if self.tries <= self._failures:
            raise StoreUnavailable("no room")
        await self._store.compact(records)
        self.replaced.add(records[0].run_id)
        self.length = len(records)


@asynccontextmanager
async def serving(store: Store) -> AsyncIterator[Driver]:
    driver = Driver(Registry(3_600.0), store)
    await driver.start()
    yield driver
    await driver.stop()


async def forms(driver: Driver) -> None:
    settings = settings_of("3", max_restarts=1_000, lease_s=600.0)
    for name in NODES:
        join = a_join(name, settings=settings, explicit_run_id=True, role="r" * 60)
        await driver.submit(RUN_ID, NodeJoined(join, "10.0.0.9"))


async def restarts(driver: Driver, times: int) -> None:
    """A worker of `a` fails, and the round forms again."""
    for _ in range(times):
        (run,) = driver.runs()
        round_ = run.round
        await driver.submit(RUN_ID, WorkersFailed("a", round_, a_failure("a")))
        for name in NODES:
            await driver.submit(RUN_ID, NodeJoined(a_join(name, after_round=round_, role="r" * 60), "10.0.0.9"))
        assert list(run.running) == list(NODES)


def state(run: Run) -> dict:
    return {name: value for name, value in durable(run).items() if name not in ("agents", "node_ids")}


async def test_records_are_bounded_however_often_a_run_restarts(make_store):
    store = Counting(await make_store())
    async with serving(store) as driver:
        await forms(driver)
        longest = 0
        for _ in range(150):
            await restarts(driver, 1)
            longest = max(longest, store.length)
        before = state(driver.runs()[0])
    assert 3 <= store.tries <= 75
    assert longest < 400, "64 failures are remembered one by one, and as many restarts"
    async with serving(Counting(await make_store())) as driver:
        assert state(driver.runs()[0]) == before
        await restarts(driver, 40)
        (run,) = driver.runs()
        assert (run.restart_count, run.round) == (190, 191)


async def test_long_failures_are_replaced_by_a_snapshot_sooner() -> None:
    store = Counting(MemoryStore())
    lines = tuple(f"{number} {'x' * 400}" for number in range(18))
    async with serving(store) as driver:
        await forms(driver)
        for _ in range(2 * HISTORY):
            round_ = driver.runs()[0].round
            await driver.submit(RUN_ID, WorkersFailed("a", round_, a_failure("a", traceback=lines, stderr_tail=lines)))
            for name in NODES:
                await driver.submit(RUN_ID, NodeJoined(a_join(name, after_round=round_), "10.0.0.9"))
    assert RUN_ID in store.replaced, "each is about 20 records long, and the snapshot has 64 of them"


async def test_joins_with_long_texts_are_replaced_by_a_snapshot_sooner() -> None:
    store = Counting(MemoryStore())
    queries = tuple(f"{number:0120}" for number in range(32))
    async with serving(store) as driver:
        await forms(driver)
        for _ in range(4):
            round_ = driver.runs()[0].round
            await driver.submit(RUN_ID, WorkersFailed("a", round_, a_failure("a")))
            for name in NODES:
                await driver.submit(RUN_ID, NodeJoined(a_join(name, after_round=round_, queries=queries), "10.0.0.9"))
    assert RUN_ID in store.replaced, "each join is six records long, and the snapshot has three of them"


async def test_a_store_without_room_for_a_snapshot_keeps_the_records(make_store):
    store = Counting(await make_store(), failures=3)
    async with serving(store) as driver:
        await forms(driver)
        await restarts(driver, 80)
        before = state(driver.runs()[0])
        assert store.tries > 3 and driver.unhealthy_reason is None
    async with serving(await make_store()) as driver:
        assert state(driver.runs()[0]) == before


async def test_an_ended_run_is_left_as_it_is_until_it_is_forgotten():
    store = Counting(MemoryStore())
    async with serving(store) as driver:
        await forms(driver)
        for name in NODES:
            await driver.submit(RUN_ID, WorkersFailed(name, 1, a_failure(name, exit_code=1)))
        tries = store.tries
        for _ in range(2 * FEW):
            await driver.submit(RUN_ID, NodeLeft("a", "SIGTERM"))
        assert store.tries == tries


# A snapshot that the store wrote only partly.


def whole(count: int) -> list[Record]:
    """Return the records of a run, and a snapshot of it after the first `count` of them."""
    records: list[Record] = []
    registry = Registry(3_600.0)
    for at, name in enumerate(NODES):
        join = a_join(name, settings=settings_of("3", last_call_timeout_s=9.0), explicit_run_id=True)
        _, effects = registry.handle(RUN_ID, NodeJoined(join, "10.0.0.9"), float(at))
        records += [effect for effect in effects if isinstance(effect, Record)]
    return records[:count] + registry.snapshot((RUN_ID, 1), 9.0)


LATER = [Record(RUN_ID, 1, 10.0, NodeLost("a", "gone"))]


@pytest.mark.parametrize("written", range(4))
def test_a_beginning_of_a_snapshot_does_not_count(written):
    records = whole(5)
    before, snapshot = records[:5], records[5:]
    assert written < len(snapshot)
    assert settled(before + snapshot[:written]) == before
    assert settled(before + snapshot[:written] + LATER) == before + LATER


def test_a_complete_snapshot_replaces_earlier_records():
    records = whole(5)
    snapshot = records[5:]
    assert settled(records + LATER) == snapshot + LATER
    assert settled(records[:5] + snapshot[:3] + LATER + snapshot + LATER) == snapshot + LATER
