"""The promises of every store, tested with a real file and a real etcd."""

from rdzv_protocol.events import RunEvent
from rdzv_protocol.settings import RunSettings

from rdzv_server.core.effects import EmitEvent, ForgetRun, Record
from rdzv_server.core.events import (
    EventsDropped,
    NodeJoined,
    NodeLost,
    RoundCompleted,
    RunCreated,
    SnapshotPart,
    WorkersFailed,
)
from rdzv_server.storage.base import changes_of
from tests.support.scenario import RUN_ID, a_failure, a_join

SETTINGS = RunSettings(min_nodes=1, max_nodes=2, fatal_exit_codes=(3,))
RECORDS = [
    Record(RUN_ID, 1, 0.0, RunCreated(RUN_ID, 1, True, SETTINGS, wall_at=1e9)),
    Record(RUN_ID, 1, 1.5, NodeJoined(a_join("a"), "10.0.0.9", ("b", "c"))),
    Record(RUN_ID, 1, 2.5, RoundCompleted("last call")),
    Record(RUN_ID, 1, 3.5, WorkersFailed("a", 1, a_failure("a"))),
    Record("../other\nrun", 7, 4.5, NodeLost("ü", "not heard for 10 s")),
]
OTHERS = [
    RECORDS[-1],
    Record(RUN_ID, 10, 0.0, RoundCompleted("last call")),
    Record(f"{RUN_ID}2", 1, 0.0, RoundCompleted("last call")),
]


async def test_the_next_server_finds_every_record_as_it_was_and_in_order(make_store):
    first = await make_store()
    assert await first.load() == []
    await first.append(RECORDS[:3])
    await first.append(RECORDS[3:])
    await first.close()
    second = await make_store()
    assert await second.load() == RECORDS
    await second.append(OTHERS[1:])
    await second.close()
    third = await make_store()
    assert await third.load() == RECORDS + OTHERS[1:]
    await third.close()


async def test_a_check_does_not_change_records(make_store):
    first = await make_store()
    await first.load()
    await first.append(RECORDS)
    await first.check()
    await first.append(OTHERS[1:])
    await first.close()
    second = await make_store()
    assert await second.load() == RECORDS + OTHERS[1:]
    await second.close()


async def test_a_forgotten_attempt_is_gone_and_the_others_are_not(make_store):
    store = await make_store()
    await store.load()
    await store.append([*RECORDS, *OTHERS[1:]])
    await store.append([ForgetRun(RUN_ID, 1)])
    await store.close()
    again = await make_store()
    assert await again.load() == OTHERS
    await again.close()


async def test_only_the_records_of_one_attempt_are_read_and_in_order(make_store):
    store = await make_store()
    await store.load()
    await store.append([*RECORDS, *OTHERS[1:]])
    assert await store.read_records(RUN_ID, 1) == RECORDS[:4]
    assert await store.read_records(RUN_ID, 10) == OTHERS[1:2]
    assert await store.read_records(RUN_ID, 2) == []
    snapshot = [RECORDS[0], Record(RUN_ID, 1, 2.0, SnapshotPart(b"data", is_last=True))]
    await store.compact(snapshot)
    await store.append(RECORDS[3:4])
    assert await store.read_records(RUN_ID, 1) == [*snapshot, RECORDS[3]]
    await store.append([ForgetRun(RUN_ID, 1)])
    assert await store.read_records(RUN_ID, 1) == []
    await store.close()


def an_event(number: int, run_id: str = RUN_ID, attempt: int = 1) -> RunEvent:
    return RunEvent(number=number, run_id=run_id, attempt=attempt, round=1, kind="warning", reason=f"{number} is odd")


EVENTS = [an_event(number) for number in range(1, 8)]


async def test_the_next_server_finds_the_events_of_any_batches(make_store):
    first = await make_store()
    await first.load()
    assert await first.event_numbers() == {}
    await first.append(RECORDS[:1], EVENTS[:3])
    await first.append(RECORDS[1:2], [EVENTS[3], an_event(1, "../other\nrun", 7), EVENTS[4]])
    await first.append(RECORDS[-1:], EVENTS[5:])
    await first.close()
    second = await make_store()
    await second.load()
    assert await second.event_numbers() == {(RUN_ID, 1): 7, ("../other\nrun", 7): 1}
    for after in range(8):
        assert await second.read_events(RUN_ID, 1, after, 100) == EVENTS[after:]
        assert await second.read_events(RUN_ID, 1, after, 2) == EVENTS[after : after + 2]
    assert await second.read_events(RUN_ID, 2, 0, 10) == []
    await second.close()


async def test_a_snapshot_replaces_records_and_events_stay_until_the_attempt_is_forgotten(make_store):
    store = await make_store()
    await store.load()
    await store.append(RECORDS[:4], [*EVENTS, an_event(8, attempt=2)])
    await store.compact([RECORDS[0], Record(RUN_ID, 1, 2.0, SnapshotPart(b"data", is_last=True))])
    assert await store.read_events(RUN_ID, 1, 0, 100) == EVENTS
    await store.append([ForgetRun(RUN_ID, 1)])
    assert await store.read_events(RUN_ID, 1, 0, 100) == []
    assert await store.event_numbers() == {(RUN_ID, 2): 8}
    await store.close()


async def test_the_oldest_events_are_dropped(make_store):
    store = await make_store()
    await store.load()
    many = [an_event(number) for number in range(1, 2_001)]
    await store.append(RECORDS[:1], [an_event(1, "other"), *many[:1_000]])
    await store.append(RECORDS[1:2], many[1_000:1_900])
    changes, events = changes_of(
        [*map(EmitEvent, many[1_900:]), Record(RUN_ID, 1, 2.0, EventsDropped(1_951)), EmitEvent(an_event(2, "other"))]
    )
    await store.append(changes, events)
    kept = await store.read_events(RUN_ID, 1, 0, len(many))
    assert kept == many[1_950:], "also those of the same batch"
    assert await store.read_events("other", 1, 0, 10) == [an_event(1, "other"), an_event(2, "other")]
    await store.append([Record(RUN_ID, 1, 3.0, EventsDropped(2_000))], [])
    assert await store.read_events(RUN_ID, 1, 1_999, 10) == many[1_999:]
    assert await store.event_numbers() == {(RUN_ID, 1): 2_000, ("other", 1): 2}
    await store.close()
