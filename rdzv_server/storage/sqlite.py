"""Store in one SQLite file (WAL, synchronous): the default.

A thread of its own writes it, so that the event loop never waits for a disk. A batch is one transaction. The file is
held exclusively for as long as the server runs. Every failure says what to do; a file that cannot be read is never
replaced by an empty one.
"""

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

from rdzv_protocol.events import RunEvent

from rdzv_server.core.effects import Record
from rdzv_server.storage.base import WITHOUT_MEMORY, Key, StoreBroken, StoreUnavailable, damaged, of_another_format
from rdzv_server.storage.record_codec import (
    MalformedRecord,
    UnknownKind,
    dropped_below,
    pack,
    pack_events,
    unpack,
    unpack_events,
)

APPLICATION_ID = 0x72647A76
"""Application id in SQLite's header, which marks the file as this server's."""
FORMAT = 5
"""Version of the tables and of what is in them; a file of any other is refused."""

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
"""Tables of a new file. `last`: number of the last event that is packed in `body`; row 0 has the number of the last one
that has been delivered."""
_EVENTS_INSERT = "INSERT INTO events (run_id, attempt, last, body) VALUES (?, ?, ?, ?)"
_EVENTS_DELETE = "DELETE FROM events WHERE run_id = ? AND attempt = ?"
_EVENTS_SELECT = "SELECT body FROM events WHERE run_id = ? AND attempt = ? AND last > ? ORDER BY last"
_DELIVERED = "INSERT OR REPLACE INTO events (run_id, attempt, last, body) VALUES (?, ?, 0, ?)"
EVENTS_OF_ROW = 256
"""Most events that are packed into one row."""

_INSERT = "INSERT INTO records (run_id, attempt, at, kind, body) VALUES "
_ROW = "(?, ?, ?, ?, ?)"
ROWS_AT_ONCE = 1_000
"""Most rows that one statement inserts. Each statement waits for the interpreter, which the event loop's thread holds:
a statement for each row would take seconds when the server is busy."""
_DELETE = "DELETE FROM records WHERE run_id = ? AND attempt = ?"

T = TypeVar("T")
Statement = tuple[str, Sequence[object]]
"""SQL statement and its values."""


class SqliteStore:
    """Store in the SQLite file at `path`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._file: sqlite3.Connection | None = None

    async def load(self) -> Sequence[Record]:
        """Open or create the file, and read all records. Raises `StoreBroken` or `StoreUnavailable`."""
        return await self._call(self._load)

    async def append(self, records: Sequence[Record], events: Sequence[RunEvent] = ()) -> None:
        """Write a batch in one transaction. Raises `StoreUnavailable`, with nothing written; a retry may help."""
        statements = _inserts(records) + _event_inserts(events)
        await self._call(lambda: self._transact(*statements))

    async def event_numbers(self) -> Mapping[Key, int]:
        return await self._call(self._event_numbers)

    async def read_events(self, run_id: str, attempt: int, after: int, most: int) -> Sequence[RunEvent]:
        return await self._call(lambda: self._events(run_id, attempt, after, most))

    async def read_delivered(self, run_id: str, attempt: int) -> int:
        return await self._call(lambda: self._delivered(run_id, attempt))

    async def write_delivered(self, run_id: str, attempt: int, number: int) -> None:
        await self._call(lambda: self._transact((_DELIVERED, (run_id, attempt, b"%d" % number))))

    async def forget(self, run_id: str, attempt: int) -> None:
        of_attempt = (run_id, attempt)
        await self._call(lambda: self._transact((_DELETE, of_attempt), (_EVENTS_DELETE, of_attempt)))

    async def compact(self, records: Sequence[Record]) -> None:
        """Replace an attempt's records in one transaction. Raises `StoreUnavailable`: nothing has changed."""
        statements = ((_DELETE, (records[0].run_id, records[0].attempt)), *_inserts(records))
        await self._call(lambda: self._transact(*statements))

    async def close(self) -> None:
        """Close the file; another server may open it then."""
        if self._file:
            await self._call(self._file.close)
            self._file = None
        self._thread.shutdown()

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._explained, work)

    def _explained(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.OperationalError as error:
            raise self._unavailable(error) from error
        except (sqlite3.DatabaseError, MalformedRecord) as error:
            is_later = isinstance(error, UnknownKind)
            raise damaged(self.path, error, is_later=is_later, way_on="a copy of it, or move it away") from error

    def _unavailable(self, error: sqlite3.OperationalError) -> Exception:
        if "locked" in str(error):
            return StoreBroken(f"{self.path} is in use by another rdzv-server")
        if "unable to open" in str(error):
            return StoreBroken(f"cannot open {self.path}: is its folder there, and may this user write to it?")
        return StoreUnavailable(f"cannot write to {self.path}: {error}")

    def _load(self) -> list[Record]:
        file = self._file = self._open()
        rows = file.execute("SELECT run_id, attempt, at, kind, body FROM records ORDER BY id")
        return [unpack(*row) for row in rows]

    def _event_numbers(self) -> dict[Key, int]:
        assert self._file
        rows = self._file.execute("SELECT run_id, attempt, max(last) FROM events GROUP BY run_id, attempt")
        return {(run_id, attempt): last for run_id, attempt, last in rows if last}

    def _delivered(self, run_id: str, attempt: int) -> int:
        assert self._file
        select = "SELECT body FROM events WHERE run_id = ? AND attempt = ? AND last = 0"
        row = self._file.execute(select, (run_id, attempt)).fetchone()
        return int(row[0]) if row else 0

    def _events(self, run_id: str, attempt: int, after: int, most: int) -> list[RunEvent]:
        assert self._file
        found: list[RunEvent] = []
        for (body,) in self._file.execute(_EVENTS_SELECT, (run_id, attempt, after)):
            found += [event for event in unpack_events(body) if event.number > after]
            if len(found) >= most:
                break
        return found[:most]

    def _open(self) -> sqlite3.Connection:
        self._make_private()
        file = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            file.execute("PRAGMA locking_mode = EXCLUSIVE")
            file.execute("PRAGMA synchronous = FULL")
            file.execute("PRAGMA temp_store = MEMORY")  # notes of a statement of many rows: else in /var/tmp
            is_new = self._check(file)
            file.execute("PRAGMA journal_mode = WAL")
            file.executescript(_SCHEMA if is_new else "BEGIN IMMEDIATE; COMMIT;")  # the latter takes the lock now
        except BaseException:
            file.close()
            raise
        return file

    def _make_private(self) -> None:
        """Create the file if it is not there, for this user alone. SQLite gives `-wal` and `-shm` the same mode."""
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreUnavailable(f"cannot write to {self.path}: {error.strerror}") from None
            raise sqlite3.OperationalError("unable to open") from None

    def _check(self, file: sqlite3.Connection) -> bool:
        """Whether the file is empty. Raises `StoreBroken` if it is not this server's, or of another format."""
        (application_id,) = file.execute("PRAGMA application_id").fetchone()
        (tables,) = file.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application_id != APPLICATION_ID and tables:
            raise StoreBroken(f"{self.path} is another program's database: name another file with --store")
        (verdict,) = file.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        (version,) = file.execute("PRAGMA user_version").fetchone()
        if tables and version != FORMAT:
            raise of_another_format(self.path, f"format {version}", FORMAT, f"move the file away {WITHOUT_MEMORY}")
        return not tables

    def _transact(self, *statements: Statement) -> None:
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


def _event_inserts(events: Sequence[RunEvent]) -> list[Statement]:
    """Statements that write the events, and now and then drop the oldest."""
    statements: list[Statement] = []
    for run_id, attempt, first, last, body in pack_events(events, EVENTS_OF_ROW):
        statements.append((_EVENTS_INSERT, (run_id, attempt, last, body)))
        if (oldest := dropped_below(first, last)) is not None:
            statements.append((f"{_EVENTS_DELETE} AND last > 0 AND last < ?", (run_id, attempt, oldest)))
    return statements


def _inserts(records: Sequence[Record]) -> list[Statement]:
    rows = [(record.run_id, record.attempt, record.at, *pack(record)) for record in records]
    portions = (rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE))
    return [(_INSERT + ", ".join([_ROW] * len(portion)), list(chain(*portion))) for portion in portions]
