"""The default store on real files: what was written is there after a crash, and errors are reported."""

import asyncio
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
from msgspec.structs import replace
from rdzv_protocol.events import RunEvent

from rdzv_server.core.effects import ForgetRun, Record
from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.storage.sqlite import APPLICATION_ID, FORMAT, SqliteStore
from rdzv_server.words import storage as words
from rdzv_server.words.service import NO_THREAD
from tests.support.disk import why_no_disk
from tests.support.message_search import has_message, message_fields, part, pattern
from tests.support.scenario import RUN_ID
from tests.support.threads import refuse_threads
from tests.unit.rdzv_server.storage.test_stores import RECORDS

PATIENCE_S = 60.0

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


async def test_without_a_thread_the_file_cannot_be_opened_and_the_reason_is_named(tmp_path, monkeypatch):
    refuse_threads(monkeypatch)
    store = SqliteStore(str(tmp_path / "state.db"))
    with pytest.raises(StoreUnavailable, match=pattern(words.cannot_start, why=NO_THREAD)):
        await store.load()


async def test_a_batch_is_written_whole_or_not_at_all(store, first):
    await first.append(RECORDS[:1])
    bad = Record(RUN_ID, 1, float("nan"), RECORDS[1].fact)  # SQLite makes it NULL, which the schema refuses
    with pytest.raises(StoreBroken, match=pattern(words.internal_error, place=first.path)):
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


async def test_acknowledged_records_survive_a_kill_in_the_middle_of_writing(store, path):
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


# Errors are reported, and nothing silently starts empty.


async def test_a_second_server_is_refused(store, first, path):
    with pytest.raises(StoreBroken, match=pattern(words.in_use, path=str(path))):
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
    with pytest.raises(StoreBroken, match=pattern(words.damaged, place=str(path), restore=words.COPY_OR_MOVE_AWAY)):
        await store().load()
    assert path.read_bytes() == broken


@pytest.mark.parametrize(
    ("kind", "body", "tell", "what"),
    [
        ("NodeExploded", b"\x80", words.later_or_damaged, words.unknown_kind("NodeExploded", 1, RUN_ID)),
        ("NodeLost", b"\x80", words.later_or_damaged, "NodeLost.agent_id is missing"),
        ("NodeLost", b"\xc1", words.damaged, "not one msgpack value"),
    ],
)
async def test_an_unreadable_record_is_damaged_or_of_a_later_version(store, first, path, kind, body, tell, what):
    await first.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(
            "INSERT INTO records (run_id, attempt, at, kind, body) VALUES (?, 1, 0, ?, ?)", (RUN_ID, kind, body)
        )
    with pytest.raises(StoreBroken) as raised:
        await store().load()
    assert what in message_fields(raised.value, tell, restore=words.COPY_OR_MOVE_AWAY)["why"]


async def test_events_of_kinds_that_only_a_later_version_knows_are_read_as_they_are(store, first, path):
    events = [RunEvent(number=1, run_id=RUN_ID, attempt=1, round=1, kind="node_lost", reason="gone", node_id="b")]
    events.append(replace(events[0], number=2, kind="node_exploded"))
    await first.append(RECORDS, events)
    await first.close()
    again = store()
    await again.load()
    assert await again.read_events(RUN_ID, 1, 0, 10) == events


@pytest.mark.parametrize("body", [[1], [{}], [{"kind": "node_lost"}], 1])
async def test_malformed_events_are_reported(store, first, path, body):
    await first.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(
            "INSERT INTO events (run_id, attempt, last, body) VALUES (?, 1, 9, ?)", (RUN_ID, msgpack.packb(body))
        )
    again = store()
    await again.load()
    with pytest.raises(StoreBroken, match=part(words.later_or_damaged)):
        await again.read_events(RUN_ID, 1, 0, 10)


async def test_another_programs_database_is_not_changed(store, path):
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreBroken, match=pattern(words.another_programs, path=str(path))):
        await store().load()


@pytest.mark.parametrize(("version", "age"), [(FORMAT - 1, "an older"), (FORMAT + 1, "a later")])
async def test_a_file_of_another_format_asks_for_its_server_and_is_left_as_it_is(store, first, path, version, age):
    await first.append(RECORDS)
    await first.close()
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    says = words.of_another_format(str(path), age, f"format {version}", FORMAT, words.MOVE_FILE_AWAY)
    with pytest.raises(StoreBroken, match=re.escape(says)):
        await store().load()
    assert path.read_bytes() == before and sorted(os.listdir(path.parent)) == [path.name, f"{path.name}.last-record"]


async def test_only_this_user_can_read_the_state(store, path):
    """It contains the runs' nodes. The user's own umask would have allowed others to read it."""
    before = os.umask(0o022)
    try:
        first = store()
        await first.load()
        await first.append(RECORDS)
    finally:
        os.umask(before)
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {
        "state.db": 0o600, "state.db-wal": 0o600, "state.db.last-record": 0o600,
    }  # fmt: skip


async def test_a_missing_folder_is_named(tmp_path):
    store = SqliteStore(str(tmp_path / "nowhere" / "state.db"))
    with pytest.raises(StoreBroken, match=pattern(words.cannot_open, path=store.path)):
        await store.load()
    await store.close()


OPENS = """
import asyncio, os, sys
from rdzv_server.storage.sqlite import SqliteStore
from rdzv_server.words import storage
storage.NOT_WRITABLE  # is imported while this user may still read the package
os.setuid(int(sys.argv[2]))
try:
    asyncio.run(SqliteStore(sys.argv[1]).load())
except Exception as error:
    print(type(error).__name__, error)
"""
"""Program of a user that opens a state file."""
NOBODY = 65_534
ROOT = Path(__file__).parents[4]


@pytest.mark.skipif(bool(os.geteuid()), reason="needs root")
@pytest.mark.parametrize(("mode", "of_folder"), [(0o644, 0o777), (0o666, 0o755)], ids=["file", "folder"])
async def test_a_file_or_folder_that_this_user_may_not_write_to_is_named(first, path, mode, of_folder):
    await first.close()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders are private
        other = shutil.copy(path, folder)
        os.chmod(other, mode)
        os.chmod(folder, of_folder)
        opened = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", OPENS, other, str(NOBODY)), stdout=subprocess.PIPE, cwd=ROOT
        )
        told, _ = await opened.communicate()
    assert re.search(f"StoreBroken {pattern(words.cannot_open, path=other)}", told.decode())


@pytest.mark.skipif(bool(why_no_disk()), reason=f"no mounts: {why_no_disk()}")
async def test_a_file_that_is_mounted_without_its_folder_is_refused_and_stays_as_it_is(first, path, tmp_path):
    """A container's end would lose the WAL beside it, and so its latest changes."""
    await first.close()
    content = path.read_bytes()
    folder = tmp_path / "of a container"
    folder.mkdir()
    mounted = folder / "state.db"
    mounted.touch()
    mount = ("unshare", "-m", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh", path, mounted)
    opened = await asyncio.create_subprocess_exec(
        *mount, *(sys.executable, "-c", OPENS, mounted, "0"), stdout=subprocess.PIPE, cwd=ROOT
    )
    told, _ = await opened.communicate()
    assert re.search(f"StoreBroken {pattern(words.mounted_alone, path=str(mounted))}", told.decode())
    assert path.read_bytes() == content and list(folder.iterdir()) == [mounted]


async def test_a_folder_in_place_of_the_file_is_named(tmp_path):
    store = SqliteStore(str(tmp_path))
    with pytest.raises(StoreBroken, match=pattern(words.is_a_folder, path=str(tmp_path))):
        await store.load()
    await store.close()


@pytest.mark.parametrize("folder", ["", "a file"])
async def test_a_last_record_that_cannot_be_read_is_named(tmp_path, folder):
    """Its folder may be a file, or another user's. The record may be a folder."""
    (tmp_path / "a file").touch()
    store = SqliteStore(str(tmp_path / folder / "state.db"))
    if not folder:
        (tmp_path / "state.db.last-record").mkdir()
    with pytest.raises(StoreBroken, match=pattern(words.cannot_open, path=f"{store.path}.last-record")):
        await store.load()
    await store.close()


async def test_a_full_disk_is_not_damage_and_writing_continues_when_there_is_room(store, first):
    await first.append(RECORDS[:1])
    (pages,) = first._file.execute("PRAGMA page_count").fetchone()
    first._file.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match="full"):
        await first.append(RECORDS[1:] * 500)
    first._file.execute("PRAGMA max_page_count = 1000000")
    await first.append(RECORDS[1:])
    assert await reopened(store, first) == RECORDS


async def test_a_check_notices_that_the_disk_is_read_only(store, first):
    await first.append(RECORDS)
    first._file.execute("PRAGMA query_only = 1")
    with pytest.raises(StoreUnavailable, match="readonly"):
        await first.check()
    first._file.execute("PRAGMA query_only = 0")
    await first.check()
    assert await reopened(store, first) == RECORDS


async def test_a_check_of_the_store_writes_to_the_disk(first, path):
    await first.append(RECORDS)
    before = wal_of(path).stat().st_size
    await first.check()
    assert wal_of(path).stat().st_size > before


# Another program takes the file away while the server runs.


def removed(path: Path) -> None:
    path.unlink()


def without_wal(path: Path) -> None:
    wal_of(path).unlink()


def removed_with_its_wal(path: Path) -> None:
    path.unlink()
    wal_of(path).unlink()


def wal_of(path: Path) -> Path:
    return Path(f"{path}-wal")


@pytest.mark.parametrize("take", [removed, without_wal, removed_with_its_wal])
async def test_a_removed_state_file_is_rewritten_with_everything_confirmed(store, first, path, take, caplog):
    await first.append(RECORDS[:1])
    take(path)
    await first.append(RECORDS[1:])
    assert has_message(caplog.text, words.rewritten, what=words.WAS_REMOVED, state=str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert await reopened(store, first) == RECORDS


class WithoutTheLastRecord(sqlite3.Connection):
    """Connection to a file whose copies lack the last record."""

    def backup(self, target: sqlite3.Connection, **options: Any) -> None:
        super().backup(target, **options)
        target.execute("DELETE FROM records WHERE id = (SELECT max(id) FROM records)")


async def test_a_copy_that_lacks_records_does_not_replace_a_removed_state_file(store, first, path, monkeypatch):
    await first.close()
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=WithoutTheLastRecord))
    again = store()
    await again.load()
    await again.append(RECORDS)
    removed(path)
    with pytest.raises(StoreUnavailable, match=pattern(words.only_in_memory, what=words.WAS_REMOVED)) as raised:
        await again.append(RECORDS)
    assert has_message(raised.value.__cause__, words.INCOMPLETE_COPY) and not path.exists()
    monkeypatch.undo()


async def test_a_truncated_state_file_is_rewritten_or_nothing_is_confirmed(store, first, path):
    await first.append(RECORDS)
    os.truncate(path, 0)
    await first.append(RECORDS)
    assert await reopened(store, first) == RECORDS * 2


async def test_a_file_that_was_shortened_and_cannot_be_read_is_unavailable(first, path):
    for _ in range(4):
        await first.append(RECORDS * 2_000)
    first._file.execute("PRAGMA wal_checkpoint(RESTART)")
    await first.append(RECORDS)
    os.truncate(path, 4096)
    with pytest.raises(StoreUnavailable) as raised:
        await first.append(RECORDS)
    what = message_fields(raised.value, words.only_in_memory, path=str(path), state=str(path))["what"]
    assert has_message(what, words.was_shortened, now=4096)


@pytest.mark.parametrize("pages", ["the first", "all"])
async def test_a_file_that_is_overwritten_while_the_server_runs_is_damaged(first, path, pages):
    """If it counted as a disk that fails, the server would wait for ever."""
    await first.append(RECORDS * 500)
    first._file.execute("PRAGMA wal_checkpoint(RESTART)")
    first._file.execute("PRAGMA shrink_memory")  # forgets all pages
    kept = b"" if pages == "all" else path.read_bytes()[4096:]
    path.write_bytes(b"\xff" * (path.stat().st_size - len(kept)) + kept)
    for work in (lambda: first.read_records(RUN_ID, 1), lambda: first.append(RECORDS), first.check):
        with pytest.raises(StoreBroken, match=pattern(words.damaged, place=str(path))):
            await work()


async def test_a_replaced_file_is_not_changed_and_no_write_is_confirmed(store, first, path):
    await first.append(RECORDS)
    path.with_name("other").write_bytes(b"theirs")
    path.with_name("other").replace(path)
    for _ in range(2):
        with pytest.raises(
            StoreUnavailable, match=pattern(words.only_in_memory, path=str(path), what=words.WAS_REPLACED)
        ):
            await first.append(RECORDS)
    await first.close()
    assert path.read_bytes() == b"theirs" and not wal_of(path).exists(), "it is not applied to the other file"


async def test_a_replaced_file_whose_wal_cannot_be_renamed_is_unavailable(first, path):
    await first.append(RECORDS)
    path.with_name("other").write_bytes(b"theirs")
    path.with_name("other").replace(path)
    path.with_name(f"{path.name}-wal-replaced").mkdir()
    with pytest.raises(StoreUnavailable, match=pattern(words.cannot_write, path=str(path))):
        await first.append(RECORDS)
    await first.close()
    assert path.read_bytes() == b"theirs"


@pytest.mark.parametrize("is_there", [False, True])
async def test_the_path_may_be_a_link_to_the_file(tmp_path, is_there):
    (tmp_path / "far").mkdir()
    path, link = tmp_path / "far" / "state.db", tmp_path / "link"
    link.symlink_to(path)
    if is_there:
        path.touch()
    for expected in ([], RECORDS):
        store = SqliteStore(str(link))
        assert await store.load() == expected
        await store.append(RECORDS)
        if not expected:
            wal_of(path).unlink()
            await store.append([])  # it is written again
        await store.close()
    assert link.is_symlink() and [file.name for file in tmp_path.iterdir() if file.is_file()] == ["link"]
    assert is_there or stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_without_its_folder_the_store_is_unavailable_until_the_folder_is_back(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    store = SqliteStore(str(folder / "state.db"))
    await store.load()
    await store.append(RECORDS[:1])
    shutil.rmtree(folder)
    with pytest.raises(StoreUnavailable, match=pattern(words.only_in_memory, what=words.WAS_REMOVED)):
        await store.append(RECORDS[1:])
    folder.mkdir()
    await store.append(RECORDS[1:])
    await store.close()
    again = SqliteStore(str(folder / "state.db"))
    assert await again.load() == RECORDS
    await again.close()


# The file loses changes while no server runs.


def copy_of_a_killed_server(path: Path, folder: Path) -> Path:
    """Return the files as a kill leaves them."""
    folder.mkdir()
    for file in path.parent.glob("state.db*"):
        shutil.copy(file, folder)
    return folder / path.name


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(bytes([7]) * (size // 3))


def remove_wal(path: Path) -> None:
    remove(wal_of(path))


def overwrite_wal(path: Path) -> None:
    overwrite(wal_of(path))


def overwrite_both(path: Path) -> None:
    overwrite(path)
    overwrite_wal(path)


@pytest.mark.parametrize("damage", [remove, empty, remove_wal, overwrite_wal, overwrite_both])
async def test_a_file_that_lost_changes_is_refused_at_each_start(first, path, tmp_path, damage):
    for record in RECORDS:
        await first.append([record])
    copy = copy_of_a_killed_server(path, tmp_path / "killed")
    damage(copy)
    for _ in range(2):
        again = SqliteStore(str(copy))
        with pytest.raises(StoreBroken, match=f"{part(words.lost_changes)}|{part(words.damaged)}"):
            await again.load()
        await again.close()


async def test_a_killed_server_finds_all_records_also_after_an_attempt_is_dropped(first, path, tmp_path):
    await first.append(RECORDS)
    await first.append([ForgetRun(RECORDS[-1].run_id, RECORDS[-1].attempt)])
    again = SqliteStore(str(copy_of_a_killed_server(path, tmp_path / "killed")))
    key = RECORDS[-1].run_id, RECORDS[-1].attempt
    assert await again.load() == [record for record in RECORDS if (record.run_id, record.attempt) != key]
    await again.close()


async def test_a_write_that_failed_is_not_noted(store, first):
    first._file.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StoreUnavailable, match="full"):
        await first.append(RECORDS * 500)
    await first.write_delivered(RUN_ID, 1, 1)
    assert await reopened(store, first) == []


async def test_an_older_copy_is_accepted_with_its_own_note_or_without_one(store, first, path, tmp_path):
    await first.append(RECORDS[:1])
    await first.close()
    folder = tmp_path / "backup"
    folder.mkdir()
    shutil.copy(path, folder)
    second = store()
    await second.load()
    await second.append(RECORDS[1:])
    await second.close()
    shutil.copy(folder / path.name, path)
    with pytest.raises(StoreBroken) as raised:
        await store().load()
    what = message_fields(raised.value, words.lost_changes, state=str(path), note=f"{path}.last-record")["what"]
    assert has_message(what, words.lost_latest_changes, state=str(path))
    remove(path.with_name("state.db.last-record"))
    assert await store().load() == RECORDS[:1]
