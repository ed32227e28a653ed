"""Soak: after many runs a server holds the same as before them. For longer: `SOAK_MINUTES=60 pytest`."""

import asyncio
import gc
import logging
import os
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rdzv_server.core import journals
from rdzv_server.server import RendezvousServer, bind
from rdzv_server.storage.compaction import BEYOND
from rdzv_server.storage.sqlite import SqliteStore
from tests.load.soak import PATIENCE_S, Attempt, Plan, Soak
from tests.support.process_info import Footprint
from tests.support.programs import Server

RUNS = 200
MINUTES = float(os.environ.get("SOAK_MINUTES", "0"))
POLL_S = 0.05
LAST = "the last run"
pytestmark = pytest.mark.timeout(0 if MINUTES else 400)  # the nodes mostly wait for the end of leases
JOURNALS = {journals.NODES, journals.NUMBERS}
"""Keys of the journals beside the runs: what nodes were blamed for, and which numbers were used."""

ROOM_MB = 16.0
"""MB for fragmentation. A heap used this way first grows by a kilobyte or two a run, although the used part does not,
as the test below shows."""
BLOCKS_A_RUN = 20
"""Python's memory blocks. One run has hundreds, and caches that are still filling some hundred."""


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Every node of every run has its own connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def settled(server: Server, descriptors: int | None = None) -> Footprint:
    """Return the footprint of the server once it has forgotten every run, and has this number of descriptors open if
    given.
    """
    async with asyncio.timeout(PATIENCE_S):
        while (await server.status())["runs"] or descriptors not in (None, Footprint.of(server.pid).descriptors):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    return Footprint.of(server.pid)


async def test_a_server_keeps_nothing_of_runs_that_are_over(programs: None, tmp_path: Path) -> None:
    """Two hundred run at once. Their workers fail, and their nodes are lost, leave and return, all as planned."""
    server = await Server.listen("--store", f"sqlite:{tmp_path}/server.db", "--retention", "1", is_forked=False)
    soak, ends_at = Soak(server.port, runs=RUNS), time.monotonic() + 60 * MINUTES
    await soak.play()
    before = await settled(server)
    while soak.played < 3 * RUNS or time.monotonic() < ends_at:
        await soak.play()
        after = await settled(server, before.descriptors)
        print(f"{soak.played} runs: {before}, then {after}")
    assert after.rss_mb - before.rss_mb < ROOM_MB
    await Attempt(server.port, LAST, Plan(nodes=2)).run()  # it is written after what must be removed from the file
    server.signal(signal.SIGTERM)
    assert await server.exit_code() == 0
    with closing(sqlite3.connect(tmp_path / "server.db")) as file:
        counts = file.execute(
            "SELECT run_id, attempt, count(*) FROM records WHERE run_id != ? GROUP BY run_id, attempt", (LAST,)
        )
        kept = {(run_id, attempt): count for run_id, attempt, count in counts}
    assert set(kept) <= JOURNALS and max(kept.values()) <= BEYOND, "until a journal is compacted"
    assert [line for line in server.err if "Traceback" in line] == []


async def test_tasks_and_memory_do_not_remain(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same in this process, where they can be counted."""
    caplog.set_level(logging.CRITICAL, "rdzv_server")  # pytest keeps what is logged
    store = SqliteStore(str(tmp_path / "server.db"))
    async with RendezvousServer(store=store, retention_s=0.5) as server:
        listener = bind("127.0.0.1", 0)
        await server.listen(listener)
        soak = Soak(listener.getsockname()[1], runs=25)
        await soak.play()
        before = await counted(server)
        for _ in range(3):
            await soak.play()
        after = await counted(server, before[0])
        runs = soak.played // 4 * 3
    print(f"{runs} runs: {before} tasks and blocks, then {after}")
    assert after[1] - before[1] < BLOCKS_A_RUN * runs


async def counted(server: RendezvousServer, tasks: int = 0) -> tuple[int, int]:
    """Return the numbers of tasks and memory blocks, once every run is forgotten and at most `tasks` tasks are left."""
    async with asyncio.timeout(PATIENCE_S):
        while server.service.runs() or (tasks and len(asyncio.all_tasks()) > tasks):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    gc.unfreeze()  # a server freezes old objects for its own full collection
    gc.collect()
    return len(asyncio.all_tasks()), sys.getallocatedblocks()
