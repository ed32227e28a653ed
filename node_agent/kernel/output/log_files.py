"""Files that workers write to directly, and the console's reading of them meanwhile.

A worker never waits: the file holds what the console cannot take yet. The agent looks at all its files together, and
less often while nothing is written. So an unwatched writer costs nothing, and an idle agent almost nothing. A thread
does all disk work: a network disk that hangs delays the console's output, but not the agent.
"""

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from functools import partial
from queue import SimpleQueue

from node_agent import words
from node_agent.kernel.output.console import PATIENCE_S, Console
from node_agent.kernel.output.disk_space import in_words, why_full
from node_agent.kernel.output.pieces import READ_BYTES, End, Piece, UnreadTail
from node_agent.kernel.output.sinks import Sink, report_lines
from node_agent.kernel.output.streams import Stream

SHORTEST_S, LONGEST_S = 0.02, 1.5
"""Least and most seconds between two looks at the files."""
SHARE = 4
"""Divisor of a silence. Output that follows the silence is late by at most this part of it."""
DRAIN_TIMEOUT_S = 30.0
"""Most seconds for which an exiting agent continues to show what the files hold anyway."""
MOST_COPIED_LATE = 1 << 24
"""Most bytes that may wait to be copied to another file. Further bytes are lost."""


def interval_s(silence_s: float) -> float:
    """Return the seconds until the next look after a silence."""
    return min(max(silence_s / SHARE, SHORTEST_S), LONGEST_S)


class LogFiles:
    """All log files of an agent, including those of ended workers whose output the console has not shown completely.

    `outlook`: text for a line about a file's problem, saying what follows from it. Each kind of problem is logged once
    and does not stop the run. Empty for the usual text.
    """

    def __init__(self, console: Console, outlook: str = "") -> None:
        self.console = console
        self._outlook = outlook
        self._problems: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._read: set[LogFile] = set()
        self._wrote_at = 0.0
        self._timer: asyncio.Handle | None = None
        self._asked: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        """Work for the thread. None ends it."""
        self._copied_late = 0
        self._reader: threading.Thread | None = None
        self._is_reading = False
        """Whether the thread has still to read what the last look has found."""

    def report(self, path: str, problem: OSError | str, outlook: str = "") -> None:
        """Log what is wrong with a file. `outlook`: what follows from it, if not the usual."""
        text = in_words(problem) if isinstance(problem, OSError) else problem
        if text not in self._problems:
            self._problems.add(text)
            is_full = isinstance(problem, OSError) and problem.errno in (ENOSPC, EDQUOT)
            loses_lines = is_full and not outlook
            outlook = outlook or self._outlook or words.output.RUN_CONTINUES
            self.console.log(words.output.file_trouble(path, text, outlook, loses_lines))

    def follow(self, file: "LogFile") -> None:
        """Look at the file from now on."""
        self._read.add(file)
        self._wrote_at = self._loop.time()
        self._look_in(SHORTEST_S)

    def forget(self, file: "LogFile") -> None:
        """Remove a file that has been closed."""
        self._read.discard(file)

    def look(self) -> None:
        """Look at all files now, and again when it is time."""
        if self._is_reading:
            return
        if pieces := [(file, piece) for file in self._read if (piece := file.next_piece())]:
            self._is_reading = True
            self.do(lambda: self._read_all(pieces))
        elif self._read:
            self._look_in(self._interval_s())

    def do(self, work: Callable[[], object]) -> None:
        """Let the thread do some work after all earlier work, or do it now if no thread can be started yet.

        The work must not raise.
        """
        if not self._reader:
            reader = threading.Thread(target=self._work, name="log files", daemon=True)
            try:
                reader.start()
            except RuntimeError:
                work()
                return
            self._reader = reader
        self._asked.put(work)

    def copy(self, path: str, size: int, work: Callable[[], object]) -> None:
        """Let the thread copy `size` bytes to another file. They are lost if too many are waiting."""
        if self._copied_late + size > MOST_COPIED_LATE:
            self.report(path, words.output.LINES_LOST)
            return

        def copied() -> None:
            self._copied_late -= size

        def copy_now() -> None:
            try:
                work()
            except OSError as error:
                self._tell(self.report, path, error)
            self._tell(copied)

        self._copied_late += size
        self.do(copy_now)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(callback, *args)

    def _work(self) -> None:
        while work := self._asked.get():
            work()

    def _read_all(self, pieces: "list[tuple[LogFile, Piece]]") -> None:
        for _, piece in pieces:
            piece.read()
        self._tell(self._take, pieces)

    def _take(self, pieces: "list[tuple[LogFile, Piece]]") -> None:
        self._is_reading = False
        most = max([file.take(piece) for file, piece in pieces])
        if most:
            self._wrote_at = self._loop.time()
        if self._read:
            self._look_in(0.0 if most == READ_BYTES else self._interval_s())

    def _interval_s(self) -> float:
        return interval_s(self._loop.time() - self._wrote_at)

    async def drain(self) -> int:
        """Wait for the files of ended workers while the console takes output. Return how many bytes are left."""
        now = moved_at = self._loop.time()
        give_up_at, left = now + DRAIN_TIMEOUT_S, -1
        while (behind := sum(file.behind for file in self._read)) and now < min(give_up_at, moved_at + PATIENCE_S):
            if behind + self.console.pending != left:
                left, moved_at = behind + self.console.pending, now
            self.look()
            await asyncio.sleep(SHORTEST_S)
            now = self._loop.time()
        return behind

    def close(self) -> None:
        """Stop reading, and end the thread. A thread that hangs on a disk is left behind."""
        for file in list(self._read):
            file.close()
        if self._timer:
            self._timer.cancel()
        if self._reader:
            self._asked.put(None)
            self._reader.join(PATIENCE_S)

    def _look_in(self, delay_s: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self.look)


class OpenedFile:
    """A worker's file, opened at its end by any thread. Raises `OSError`."""

    def __init__(self, path: str) -> None:
        # A named pipe without a reader is an error. Otherwise the agent would wait until there is a reader.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self.worker_end = os.open(path, flags, 0o666)
        os.set_blocking(self.worker_end, True)
        self.file, self.size = -1, 0
        """Descriptor to read the file, -1 if it is not a regular file."""
        try:
            status = os.fstat(self.worker_end)
            if stat.S_ISREG(status.st_mode):
                self.file, self.size = os.open(path, os.O_RDONLY | os.O_CLOEXEC), status.st_size
                if problem := why_full(self.file):
                    raise problem
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close a file that no worker uses."""
        for descriptor in (self.worker_end, self.file):
            if descriptor >= 0:
                os.close(descriptor)


class LogFile(Stream):
    """A worker's own file. Raises `OSError` if `opened` is missing and the file cannot be opened.

    With sinks, the file is followed into them; after `finish`, up to its end at that time. `shown`: the console is
    among the sinks and sets the pace.
    """

    def __init__(
        self,
        path: str,
        make_sinks: Callable[[], Sequence[Sink]],
        files: LogFiles,
        *,
        shown: bool,
        opened: OpenedFile | None = None,
    ) -> None:
        self._path = path
        self._files = files
        self._shown = shown
        opened = opened or OpenedFile(path)
        super().__init__(opened.worker_end)
        self._file, self._offset = opened.file, opened.size
        self._last: int | None = None
        """Offset at which to stop reading, None while the worker lives."""
        self._end = b""
        self._ended: End | None = None
        self._is_ending = False
        self._sinks: Sequence[Sink] = make_sinks() if self._file >= 0 else ()  # a plug-in may name a device or a pipe

    @property
    def behind(self) -> int:
        """Number of the worker's bytes that are still unread. Valid only after `finish`."""
        return max(0, self._last - self._offset) if self._last is not None else int(self._is_ending)

    def started(self) -> None:
        super().started()
        if self._sinks:
            self._files.follow(self)

    def finish(self) -> None:
        super().finish()
        if self._file < 0 or self._last is not None:
            return
        end, self._ended, self._is_ending = self._ended or End(self._file, self._offset).read(), None, False
        self._take(end)
        self._last = end.size
        if self._sinks:
            self._files.follow(self)  # until the console has taken all of it
            for piece in end.rest:
                if self.next_piece():  # stops while the console is full
                    self.take(piece)
            if not self.behind:
                self.close()
        else:
            self.close()

    def end(self, pid: int) -> End | None:
        """Return the end of the file, to be read by any thread before `ended`; None if there is none."""
        if self._file < 0 or self._last is not None:
            return None
        self._is_ending = True
        return End(self._file, self._offset, pid)

    def ended(self, end: End, *, is_last: bool) -> None:
        """Take the end of the file after it was read. `is_last`: `finish` follows."""
        self._ended = end if is_last else None
        self._is_ending = is_last
        if not is_last:
            self._take(end)

    def tail(self) -> tuple[str, ...]:
        return report_lines(self._end)

    def unread_tail(self) -> UnreadTail | None:
        if self._file < 0 or self._last is not None:
            return None
        try:
            return UnreadTail(self._path, self._file)
        except OSError:  # no descriptor is left
            return None

    def next_piece(self) -> Piece | None:
        """Return the next piece, None if the console takes nothing now or nothing is left."""
        is_held_up = self._shown and self._files.console.is_full
        return None if is_held_up or self._file < 0 else Piece(self._file, self._offset)

    def take(self, piece: Piece) -> int:
        """Take a piece that has been read, unless it was taken meanwhile. Return its number of bytes."""
        if self._file < 0 or piece.offset != self._offset:
            return 0
        if piece.error:
            self._files.report(self._path, piece.error)
            self.close()
            return 0
        chunk = piece.chunk if self._last is None else piece.chunk[: max(0, self._last - piece.begin)]
        self._offset = piece.begin + len(chunk)
        if chunk:
            for sink in self._sinks:
                sink.take(chunk)
        if self._last is not None and (not chunk or self._offset >= self._last):
            self.close()
        return len(chunk)

    def close(self) -> None:
        """Stop reading."""
        if self._file >= 0:
            self._files.do(partial(os.close, self._file))
            self._file = -1
            for sink in self._sinks:
                sink.end()
            self._files.forget(self)

    def _close_worker_end(self) -> None:
        if self._worker_end >= 0:
            self._files.do(partial(os.close, self._worker_end))  # closing writes buffered data to a network disk
            self._worker_end = -1

    def _take(self, end: End) -> None:
        """Keep the last lines."""
        for problem, outlook in end.problems:
            self._files.report(self._path, problem, outlook)
        self._end = end.tail
