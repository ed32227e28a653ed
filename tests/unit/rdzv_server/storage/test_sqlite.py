"""The default store on real files: what is written is there after a crash, and what is wrong is said."""

import asyncio
import os
import signal
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from rdzv_server.core.effects import Record
from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.storage.sqlite import APPLICATION_ID, FORMAT, SqliteStore
from tests.support.scenario import RUN_ID
from tests.unit.rdzv_server.storage.test_stores import RECORDS

PATIENCE_S = 10.0

Opener = Callable[[], SqliteStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Opener]:
    stores: list[SqliteStore] = []

    def open_() -> SqliteStore:
        stores.append(SqliteStore(str(path)))
        return stores[-1]

    yield open_
    for store in stores:
        await store.close()


@pytest.fixture
async def first(store: Opener) -> SqliteStore:
    """An open store in a new file."""
    first = store()
    await first.load()
    return first


async def reopened(open_: Opener, store: SqliteStore) -> list[Record]:
    await store.close()
    return list(await open_().load())


async def test_a_new_file_is_empty_and_marked_as_ours(store, first, path):
    await first.close()
    with closing(sqlite3.connect(path)) as file:
        marks = [file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    assert marks == [APPLICATION_ID, FORMAT]
    assert await store().load() == []


async def test_a_batch_is_written_whole_or_not_at_all(store, first):
    await first.append(RECORDS[:1])
    bad = Record(RUN_ID, 1, float("nan"), RECORDS[1].fact)  # SQLite makes NULL of it, which the schema refuses
    with pytest.raises(StoreBroken):
        await first.append([RECORDS[1], bad])
    await first.append(RECORDS[2:])
    assert await reopened(store, first) == [RECORDS[0], *RECORDS[2:]]


WRITER = """
import asyncio, sys
from rdzv_server.storage.sqlite import SqliteStore
from tests.unit.rdzv_server.storage.test_stores import RECORDS

async def main():
    store = SqliteStore(sys.argv[1])
    await store.load()
    for number in range(1_000_000):
        await store.append(RECORDS)
        print(number, flush=True)

asyncio.run(main())
"""


async def test_what_was_acknowledged_survives_a_kill_in_the_middle_of_writing(store, path):
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout
    async with asyncio.timeout(PATIENCE_S):
        while int(await writer.stdout.readline()) < 20:
            pass
    os.kill(writer.pid, signal.SIGKILL)
    acknowledged = 21 + len((await writer.stdout.read()).splitlines())
    await writer.wait()
    records = list(await store().load())
    assert len(records) % len(RECORDS) == 0, "batches are whole"
    assert acknowledged <= len(records) // len(RECORDS) <= acknowledged + 1
    assert records == RECORDS * (len(records) // len(RECORDS))


# What is wrong is said, and nothing begins afresh in silence.


async def test_a_second_server_is_refused(store, first):
    with pytest.raises(StoreBroken, match="in use by another rdzv-server"):
        await store().load()


@pytest.mark.parametrize("damage", ["garbage", "torn", "flipped"])
async def test_a_damaged_file_is_refused_and_left_as_it_is(store, first, path, damage):
    for _ in range(200):
        await first.append(RECORDS)
    await first.close()
    whole = path.read_bytes()
    broken = {
        "garbage": b"This was a database once." * 1000,
        "torn": whole[: len(whole) // 2],
        "flipped": whole[:8192] + bytes(4096) + whole[12288:],
    }[damage]
    path.write_bytes(broken)
    with pytest.raises(StoreBroken, match=r"is damaged.*move it away"):
        await store().load()
    assert path.read_bytes() == broken


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        (
            "NodeExploded",
            b"\x80",
            "a later version of .*unknown kind 'NodeExploded' .*Start that version, or restore a copy",
        ),
        ("NodeLost", b"\x80", "NodeLost.agent_id is missing"),
        ("NodeLost", b"\xc1", "not one msgpack value"),
    ],
)
async def test_a_record_that_is_none_is_damage(store, first, path, kind, body, what):
    await first.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(
            "INSERT INTO records (run_id, attempt, at, kind, body) VALUES (?, 1, 0, ?, ?)", (RUN_ID, kind, body)
        )
    with pytest.raises(StoreBroken, match=what):
        await store().load()


async def test_another_programs_database_is_left_alone(store, path):
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreBroken, match="another program's database"):
        await store().load()


@pytest.mark.parametrize(("version", "age"), [(FORMAT - 1, "an older"), (FORMAT + 1, "a later")])
async def test_a_file_of_another_format_asks_for_its_server_and_is_left_as_it_is(store, first, path, version, age):
    await first.append(RECORDS)
    await first.close()
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    says = rf"{age} version of rdzv-server \(format {version}, .*\), .*: start that version, or move .*workers restart"
    with pytest.raises(StoreBroken, match=says):
        await store().load()
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


async def test_state_is_for_this_user_alone(store, path):
    """Whoever reads it knows the runs' nodes; its own mask would have let others."""
    before = os.umask(0o022)
    try:
        first = store()
        await first.load()
        await first.append(RECORDS)
    finally:
        os.umask(before)
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {
        "state.db": 0o600, "state.db-wal": 0o600,
    }  # fmt: skip


async def test_a_folder_that_is_not_there_is_named(tmp_path):
    store = SqliteStore(str(tmp_path / "nowhere" / "state.db"))
    with pytest.raises(StoreBroken, match=r"cannot open .*nowhere"):
        await store.load()
    await store.close()


async def test_a_full_disk_is_no_damage_and_writing_goes_on_when_there_is_room(store, first):
    await first.append(RECORDS[:1])
    (pages,) = first._file.execute("PRAGMA page_count").fetchone()
    first._file.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match="full"):
        await first.append(RECORDS[1:] * 500)
    first._file.execute("PRAGMA max_page_count = 1000000")
    await first.append(RECORDS[1:])
    assert await reopened(store, first) == RECORDS
