"""Store in one SQLite file (WAL, synchronous): the default.

A thread of its own writes the file, so that the event loop never waits for a disk. A batch is one transaction. The
server holds the file exclusively while it runs. Every failure says what to do, and a file that cannot be read is never
replaced by an empty one. Before each piece of work, the thread checks whether another program has removed the file.
"""

import asyncio
import errno
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from typing import TypeVar

from rdzv_protocol.events import RunEvent

from rdzv_server.core.effects import ForgetRun, Record
from rdzv_server.core.journals import Key
from rdzv_server.storage.base import (
    Change,
    StoreBroken,
    StoreUnavailable,
    damaged,
    drops_of,
    internal_error,
    of_another_format,
)
from rdzv_server.storage.file_watch import LastRecord, OpenFile, is_mounted, refusal, size
from rdzv_server.storage.record_codec import (
    MalformedRecord,
    OfLaterVersion,
    pack,
    pack_events,
    unpack,
    unpack_events,
)
from rdzv_server.threads import NoThread, OneThread
from rdzv_server.words import storage as words

log = logging.getLogger("rdzv_server")

APPLICATION_ID = 0x72647A76
"""Application id in SQLite's header, which marks the file as this server's."""
FORMAT = 5
"""Version of the tables and of their contents; the server refuses a file of any other version."""

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (
    id      INTEGER PRIMARY KEY,
    run_id  TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    at      REAL NOT NULL,
    kind    TEXT NOT NULL,
    body    BLOB NOT NULL
) STRICT;
CREATE INDEX records_of_attempt ON records (run_id, attempt, id);
CREATE TABLE events (
    run_id  TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    last    INTEGER NOT NULL,
    body    BLOB NOT NULL,
    PRIMARY KEY (run_id, attempt, last)
) STRICT, WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
COMMIT;
"""
"""Tables of a new file. `last`: number of the last event that is packed in `body`. Row 0 has the number of the last
delivered event, and row 0 of `COUNTER` the highest record id when an attempt was last dropped."""
COUNTER: Key = ("", 0)
"""Key that no attempt has."""
_EVENTS_INSERT = "INSERT INTO events (run_id, attempt, last, body) VALUES (?, ?, ?, ?)"
_EVENTS_DELETE = "DELETE FROM events WHERE run_id = ? AND attempt = ?"
_EVENTS_SELECT = "SELECT body FROM events WHERE run_id = ? AND attempt = ? AND last > ? ORDER BY last"
_DELIVERED = "INSERT OR REPLACE INTO events (run_id, attempt, last, body) VALUES (?, ?, 0, ?)"
EVENTS_OF_ROW = 256
"""Most events that are packed into one row."""

_INSERT = "INSERT INTO records (id, run_id, attempt, at, kind, body) VALUES "
_ROW = "(?, ?, ?, ?, ?, ?)"
ROWS_AT_ONCE = 1_000
"""Most rows that one statement inserts. Each statement waits for the interpreter, which the event loop's thread holds:
with a statement for each row, a busy server would need seconds."""
_DELETE = "DELETE FROM records WHERE run_id = ? AND attempt = ?"

CLOSE_S = 5.0
"""Most seconds for which a stopping server waits for its disk."""

OWN_ERRORS = (
    sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError,
    sqlite3.NotSupportedError,
)  # fmt: skip
"""Errors of SQLite that are faults of this server, not of the file."""
NOT_PERMITTED = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG,
}  # fmt: skip
"""Errors of the file system that do not pass by themselves."""
LOCK_ERRORS = {"SQLITE_IOERR_LOCK", "SQLITE_IOERR_RDLOCK", "SQLITE_IOERR_UNLOCK", "SQLITE_IOERR_CHECKRESERVEDLOCK"}
READ_ERRORS = {"SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ", "SQLITE_IOERR_CORRUPTFS"}
_UNREAD = re.compile(r"unable to get the page\. error code=(\d+)")
"""Verdict of SQLite about a page that it could not read, with the code of the error."""

T = TypeVar("T")
Statement = tuple[str, Sequence[object]]
"""SQL statement and its values."""


class SqliteStore:
    """Store in the SQLite file at `path`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._thread = OneThread()
        self._file: sqlite3.Connection | None = None
        self._on_disk: list[OpenFile] = []
        self._last_record = LastRecord(path)
        self._last_id = 0
        """Highest id that a record ever had. Ids are never used twice, so a lower one shows a loss."""

    async def load(self) -> Sequence[Record]:
        """Open or create the file, and read all records. Raises `StoreBroken` or `StoreUnavailable`."""
        return await self._call(self._load)

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        """Write a batch in one transaction. Raises `StoreUnavailable`, with nothing written; a retry may help."""
        records = [change for change in changes if isinstance(change, Record)]
        inserts, last_id = self._inserts(records), self._last_id
        statements = inserts + self._deletes(changes) + _event_deletes(changes) + _event_inserts(events)
        await self._call(lambda: self._transact(*statements, last_id=last_id if records else None))

    async def check(self) -> None:
        """Write the file's format again. Raises `StoreUnavailable` if that fails; a retry may help."""
        await self._call(lambda: self._transact((f"PRAGMA user_version = {FORMAT}", ())))

    async def event_numbers(self) -> Mapping[Key, int]:
        return await self._call(self._event_numbers)

    async def read_records(self, run_id: str, attempt: int) -> Sequence[Record]:
        return await self._call(lambda: self._records_of(run_id, attempt))

    async def read_events(self, run_id: str, attempt: int, after: int, most: int) -> Sequence[RunEvent]:
        return await self._call(lambda: self._events(run_id, attempt, after, most))

    async def read_delivered(self, run_id: str, attempt: int) -> int:
        return await self._call(lambda: self._delivered(run_id, attempt))

    async def write_delivered(self, run_id: str, attempt: int, number: int) -> None:
        await self._call(lambda: self._transact((_DELIVERED, (run_id, attempt, b"%d" % number))))

    async def compact(self, records: Sequence[Record]) -> None:
        """Replace an attempt's records in one transaction. Raises `StoreUnavailable`, with nothing changed."""
        statements = ((_DELETE, records[0].key), *self._inserts(records))
        last_id = self._last_id
        await self._call(lambda: self._transact(*statements, last_id=last_id))

    async def close(self) -> None:
        """Close the file. After that, another server may open it. Stop waiting for a disk after `CLOSE_S`."""
        if file := self._file:
            self._file = None
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._call(lambda: self._close(file))
            except TimeoutError:
                log.error("%s", words.not_closed(self.path, CLOSE_S))
        self._thread.end()

    def _close(self, file: sqlite3.Connection) -> None:
        file.close()
        self._last_record.close()

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await self._thread.call(partial(self._explained, work))
        except NoThread as error:
            raise StoreUnavailable(words.cannot_start(self.path, str(error.strerror))) from error

    def _explained(self, work: Callable[[], T]) -> T:
        try:
            self._look()
            return work()
        except sqlite3.OperationalError as error:
            raise self._unavailable(error) from error
        except OWN_ERRORS as error:
            raise internal_error(self.path, error) from error
        except OSError as error:
            raise StoreUnavailable(words.cannot_write(self.path, error.strerror)) from error
        except (sqlite3.DatabaseError, MalformedRecord) as error:
            if isinstance(error, sqlite3.DatabaseError) and self._is_whole():
                raise StoreUnavailable(words.disk_fails(self.path)) from error
            is_later = isinstance(error, OfLaterVersion)
            raise damaged(self.path, error, is_later=is_later, restore=words.COPY_OR_MOVE_AWAY) from error

    def _is_whole(self) -> bool:
        """Return whether no damage is found in the open file: if its disk fails to read, SQLite also reports damage."""
        if not self._file:
            return False
        try:
            return not self._damage(self._file)
        except StoreUnavailable:  # the disk still fails
            return True
        except sqlite3.Error:
            return _has_unread_page(self._file)

    def _damage(self, file: sqlite3.Connection) -> str:
        """Return what is damaged in the file, "" if nothing. Raises `StoreUnavailable` if its disk fails."""
        (verdict,) = file.execute("PRAGMA quick_check(1)").fetchone()
        unread = _UNREAD.search(verdict)
        if unread and int(unread[1]) & 0xFF == sqlite3.SQLITE_IOERR:
            raise StoreUnavailable(words.disk_fails(self.path))
        return "" if verdict == "ok" else str(verdict)

    def _unavailable(self, error: sqlite3.OperationalError) -> Exception:
        kind = getattr(error, "sqlite_errorname", "")
        if kind in READ_ERRORS:
            return StoreUnavailable(words.disk_fails(self.path))
        if kind == "SQLITE_FULL":
            return StoreUnavailable(words.cannot_write(self.path, error))
        found = refusal(self.path)
        if kind in LOCK_ERRORS or (found and found.errno == errno.ENOLCK):
            return StoreUnavailable(words.cannot_lock(self.path, found.strerror if found else error))
        if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return StoreBroken(words.in_use(self.path))
        if os.path.isdir(self.path):
            return StoreBroken(words.is_a_folder(self.path))
        if kind.startswith("SQLITE_CANTOPEN") or (kind.startswith("SQLITE_READONLY") and not self._file):
            return self._cannot_open(found) if found else StoreBroken(words.cannot_open(self.path, error))
        return StoreUnavailable(words.cannot_write(self.path, found.strerror if found else error))

    def _cannot_open(self, error: OSError) -> Exception:
        """Return the error for a file that cannot be opened: a person has to act, or the failure may pass."""
        if error.errno in NOT_PERMITTED:
            return StoreBroken(words.cannot_open(self.path, error.strerror))
        return StoreUnavailable(words.cannot_write(self.path, error.strerror))

    def _load(self) -> list[Record]:
        if os.path.islink(self.path):  # SQLite names its other files after the target
            self.path = os.path.realpath(self.path)
            self._last_record = LastRecord(self.path)
        self._file = self._open()
        return self._records()

    def _look(self) -> None:
        """If another program took a file away, write it again. Raises `StoreUnavailable` if that fails."""
        changes = ((file.path, change) for file in self._on_disk if self._file and (change := file.change()))
        if not (found := next(changes, None)):
            return
        path, what = found
        if (path, what) == (self.path, words.WAS_REPLACED):  # it may be a copy that an operator restored
            self._set_wal_aside()
            raise self._taken(path, what)
        try:
            self._rewrite()
        except (sqlite3.Error, OSError, StoreBroken) as error:
            raise self._taken(path, what) from error
        log.error("%s", words.rewritten(path, what, self.path))

    def _set_wal_aside(self) -> None:
        """Rename the WAL of the replaced file. Otherwise SQLite would apply it to the file that is there now."""
        wal = self._on_disk[1]
        if not wal.change():
            os.rename(wal.path, f"{wal.path}-replaced")

    def _taken(self, path: str, what: str) -> StoreUnavailable:
        return StoreUnavailable(words.only_in_memory(path, what, self.path))

    def _rewrite(self) -> None:
        """Copy the contents of the open file, which no longer has a name, to a new file at its path."""
        assert self._file
        new, old = f"{self.path}-new", self._file
        with suppress(FileNotFoundError):
            os.unlink(new)
        self._copy(old, new)
        os.replace(new, self.path)
        _sync_folder(self.path)
        with suppress(FileNotFoundError):
            os.unlink(f"{self.path}-wal")
        self._file = self._open()
        old.close()  # it does not touch the file at its path, which is another one

    def _copy(self, old: sqlite3.Connection, new: str) -> None:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(new, isolation_level=None)) as copy:
            old.backup(copy)
            if damage := self._damage(copy) or ("" if _last_id(copy) >= _last_id(old) else words.INCOMPLETE_COPY):
                raise sqlite3.DatabaseError(damage)

    def _records(self) -> list[Record]:
        assert self._file
        rows = self._file.execute("SELECT run_id, attempt, at, kind, body FROM records ORDER BY id")
        return [unpack(*row) for row in rows]

    def _records_of(self, run_id: str, attempt: int) -> list[Record]:
        assert self._file
        select = "SELECT run_id, attempt, at, kind, body FROM records WHERE run_id = ? AND attempt = ? ORDER BY id"
        return [unpack(*row) for row in self._file.execute(select, (run_id, attempt))]

    def _event_numbers(self) -> dict[Key, int]:
        assert self._file
        rows = self._file.execute("SELECT run_id, attempt, max(last) FROM events GROUP BY run_id, attempt")
        return {(run_id, attempt): last for run_id, attempt, last in rows if last}

    def _delivered(self, run_id: str, attempt: int) -> int:
        assert self._file
        return _delivered(self._file, (run_id, attempt))

    def _events(self, run_id: str, attempt: int, after: int, most: int) -> list[RunEvent]:
        assert self._file
        found: list[RunEvent] = []
        for (body,) in self._file.execute(_EVENTS_SELECT, (run_id, attempt, after)):
            found += [event for event in unpack_events(body) if event.number > after]
            if len(found) >= most:
                break
        return found[:most]

    def _open(self) -> sqlite3.Connection:
        if is_mounted(self.path):
            raise StoreBroken(words.mounted_alone(self.path))
        self._last_record.refuse_empty()
        has_wal = bool(size(f"{self.path}-wal"))
        self._make_private()
        file = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            file.execute("PRAGMA locking_mode = EXCLUSIVE")
            file.execute("PRAGMA synchronous = FULL")
            file.execute("PRAGMA temp_store = MEMORY")  # otherwise a statement with many rows writes to /var/tmp
            if self._check(file, has_wal=has_wal):
                file.executescript(_SCHEMA)  # before there is a WAL: if it gets lost, the file is not empty
            file.execute("PRAGMA journal_mode = WAL")
            file.executescript("BEGIN IMMEDIATE; COMMIT;")  # takes the lock now
            self._opened(file)
        except sqlite3.OperationalError:  # another server may use the file
            file.close()
            raise
        except BaseException:
            self._leave(file)
            raise
        return file

    def _opened(self, file: sqlite3.Connection) -> None:
        self._on_disk = [OpenFile.of(path) for path in (self.path, f"{self.path}-wal")]
        self._last_id = max(self._last_id, _last_id(file))
        self._last_record.close()  # it may have been removed together with the file
        self._last_record.write(_last_id(file))

    def _leave(self, file: sqlite3.Connection) -> None:
        """Close a refused file. SQLite would remove its WAL, so the WAL is moved aside meanwhile."""
        wal, aside = f"{self.path}-wal", f"{self.path}-wal-aside"
        is_kept = bool(size(wal))
        if is_kept:
            os.rename(wal, aside)
        file.close()
        if is_kept:
            os.rename(aside, wal)

    def _make_private(self) -> None:
        """Create the file if it does not exist, for this user only. SQLite gives `-wal` and `-shm` the same mode."""
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            if not os.access(self.path, os.R_OK | os.W_OK):
                raise StoreBroken(words.cannot_open(self.path, words.NOT_WRITABLE)) from None
        except OSError as error:
            raise self._cannot_open(error) from None

    def _check(self, file: sqlite3.Connection, *, has_wal: bool) -> bool:
        """Return whether the file is empty. Raises `StoreBroken` if it is not this server's, or has another format."""
        (application_id,) = file.execute("PRAGMA application_id").fetchone()
        (tables,) = file.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application_id != APPLICATION_ID and tables:
            raise StoreBroken(words.another_programs(self.path))
        if damage := self._damage(file):
            raise sqlite3.DatabaseError(damage)
        (version,) = file.execute("PRAGMA user_version").fetchone()
        if tables and version != FORMAT:
            raise of_another_format(self.path, f"format {version}", FORMAT, words.MOVE_FILE_AWAY)
        if has_wal and not tables:
            raise sqlite3.DatabaseError(words.empty_with_wal(self.path))
        self._last_record.refuse_behind(_last_id(file) if tables else 0)
        return not tables

    def _transact(self, *statements: Statement, last_id: int | None = None) -> None:
        """Run the statements in one transaction. `last_id`: id of the last record that they insert."""
        assert self._file
        try:
            self._file.execute("BEGIN IMMEDIATE")
            for statement, values in statements:
                self._file.execute(statement, values)
            self._file.execute("COMMIT")
        except sqlite3.Error:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise
        if last_id is not None:
            self._last_record.write(last_id)
        for file in self._on_disk:
            file.change()  # notes its current size; a loss is found before the next work

    def _inserts(self, records: Sequence[Record]) -> list[Statement]:
        first = self._last_id + 1
        self._last_id += len(records)
        rows = [
            (number, record.run_id, record.attempt, record.at, *pack(record))
            for number, record in enumerate(records, first)
        ]
        portions = (rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE))
        return [(_INSERT + ", ".join([_ROW] * len(portion)), list(chain(*portion))) for portion in portions]

    def _deletes(self, changes: Sequence[Change]) -> list[Statement]:
        forgotten = [change.key for change in changes if isinstance(change, ForgetRun)]
        deletes: list[Statement] = [(each, attempt) for attempt in forgotten for each in (_DELETE, _EVENTS_DELETE)]
        return [*deletes, (_DELIVERED, (*COUNTER, b"%d" % self._last_id))] if forgotten else []


def _sync_folder(path: str) -> None:
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _delivered(file: sqlite3.Connection, key: Key) -> int:
    select = "SELECT body FROM events WHERE run_id = ? AND attempt = ? AND last = 0"
    row = file.execute(select, key).fetchone()
    return int(row[0]) if row else 0


def _has_unread_page(file: sqlite3.Connection) -> bool:
    """Return whether the disk fails to read a page. A backup names that error; a statement would report damage.

    Do not read the file without SQLite: its lock ends when this process closes another descriptor of the file.
    """
    try:
        with closing(sqlite3.connect(":memory:")) as copy:
            file.backup(copy)
    except sqlite3.Error as error:
        return getattr(error, "sqlite_errorname", "") in READ_ERRORS
    return False


def _last_id(file: sqlite3.Connection) -> int:
    (last,) = file.execute("SELECT max(id) FROM records").fetchone()
    return max(last or 0, _delivered(file, COUNTER))


def _event_deletes(changes: Sequence[Change]) -> list[Statement]:
    """Return the statements that delete the rows whose events are all dropped."""
    delete = f"{_EVENTS_DELETE} AND last > 0 AND last < ?"
    return [(delete, (*key, below)) for key, below in drops_of(changes)]


def _event_inserts(events: Sequence[RunEvent]) -> list[Statement]:
    return [
        (_EVENTS_INSERT, (run_id, attempt, last, body))
        for run_id, attempt, _, last, body in pack_events(events, EVENTS_OF_ROW)
    ]
