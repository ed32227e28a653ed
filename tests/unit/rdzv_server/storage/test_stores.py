"""The promises of every store, kept by a real file and by a real etcd."""

import pytest
from rdzv_protocol.settings import RunSettings

from rdzv_server.core.effects import Record
from rdzv_server.core.events import NodeJoined, NodeLost, RoundCompleted, RunCreated, WorkersFailed
from rdzv_server.storage.base import MemoryStore
from tests.support.scenario import RUN_ID, a_failure, a_join

RECORDS = [
    Record(RUN_ID, 1, 0.0, RunCreated(RUN_ID, 1, True, RunSettings(min_nodes=1, max_nodes=2, fatal_exit_codes=(3,)))),
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


async def test_a_forgotten_attempt_is_gone_and_the_others_are_not(make_store):
    store = await make_store()
    await store.load()
    await store.append([*RECORDS, *OTHERS[1:]])
    await store.forget(RUN_ID, 1)
    await store.close()
    again = await make_store()
    assert await again.load() == OTHERS
    await again.close()


@pytest.mark.parametrize("is_whole", [True, False], ids=["a snapshot", "an attempt that is forgotten"])
async def test_memory_keeps_what_it_is_told(is_whole):
    store = MemoryStore()
    await store.append(RECORDS)
    await (store.compact(RECORDS[:1]) if is_whole else store.forget(RUN_ID, 1))
    assert await store.load() == [*(RECORDS[:1] if is_whole else []), RECORDS[-1]]
