"""The default store on a real disk that fails: the failure is named, and is not called damage."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOLCK
from pathlib import Path

import pytest

from rdzv_server.words import storage as words
from tests.support.hanging_disk import Disk, why_no_fuse

pytestmark = pytest.mark.skipif(bool(why_no_fuse()), reason=f"no FUSE: {why_no_fuse()}")

SERVER = """
import asyncio, sys
from rdzv_server.storage.sqlite import SqliteStore
from tests.support.scenario import RUN_ID
from tests.unit.rdzv_server.storage.test_stores import RECORDS

store = SqliteStore(sys.argv[1])
work = {
    "load": store.load,
    "append": lambda: store.append(RECORDS * 500),
    "read": lambda: store.read_records(RUN_ID, 1),
    "forget some pages": lambda: store._call(lambda: store._file.execute("PRAGMA cache_size = 5")),
    "forget all pages": lambda: store._call(lambda: store._file.execute("PRAGMA shrink_memory")),
    "close": store.close,
}

async def main():
    for line in sys.stdin:
        try:
            await work[line.strip()]()
        except Exception as error:
            print(type(error).__name__, error, flush=True)
        else:
            print("done:", line.strip(), flush=True)

asyncio.run(main())
"""
"""Program with a store, which does what each line of its standard input says."""


class Store:
    """Store of a program that sees the disk."""

    def __init__(self, program: subprocess.Popen[str], path: str) -> None:
        self._program, self.path = program, path

    def does(self, *works: str) -> None:
        for work in works:
            assert self.tells(work) == f"done: {work}"

    def tells(self, work: str) -> str:
        """Do some work. Return the error, or that it is done."""
        assert self._program.stdin and self._program.stdout
        self._program.stdin.write(f"{work}\n")
        self._program.stdin.flush()
        return next(line.strip() for line in self._program.stdout if line.strip() not in ("answers", "hangs"))


@contextmanager
def store_on(disk: Disk) -> Iterator[Store]:
    path = f"{disk.path}/state.db"
    command = disk.command(sys.executable, "-c", SERVER, path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        yield Store(program, path)


@pytest.mark.parametrize("pages", ["some", "all"])
def test_a_read_that_fails_is_not_called_damage_and_a_later_one_succeeds(tmp_path: Path, pages: str) -> None:
    """Otherwise the server would end, and ask its operator to give up the state."""
    disk = Disk(tmp_path)
    with store_on(disk) as store:
        store.does("load", "append", "append", f"forget {pages} pages")
        disk.fail_to_read()
        for _ in range(2):
            assert store.tells("read") == f"StoreUnavailable {words.disk_fails(store.path)}"
        disk.answer()
        store.does("read", "append", "close")


def test_a_file_that_cannot_be_read_at_the_start_is_not_called_damaged(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with store_on(disk) as store:
        store.does("load", "append", "close")
    with store_on(disk) as store:
        disk.fail_to_read()
        assert store.tells("load") == f"StoreUnavailable {words.disk_fails(store.path)}"
        disk.answer()
        store.does("load", "read")


def test_a_quota_that_is_used_up_is_named(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with store_on(disk) as store:
        store.does("load")
        disk.use_up_quota()
        assert store.tells("append") == f"StoreUnavailable {words.cannot_write(store.path, os.strerror(EDQUOT))}"
        disk.answer()
        store.does("append", "close")
    assert [file.name for file in disk.files.iterdir()] == ["state.db", "state.db.last-record"]


def test_a_disk_without_locks_is_refused_with_what_to_do(tmp_path: Path) -> None:
    disk = Disk(tmp_path, has_locks=False)
    with store_on(disk) as store:
        assert store.tells("load") == f"StoreUnavailable {words.cannot_lock(store.path, os.strerror(ENOLCK))}"
