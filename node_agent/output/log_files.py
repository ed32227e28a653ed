"""Files that workers write straight into, and the console's reading of them while they do.

A worker never waits: what the console cannot take yet is in the file. All files of an agent are looked at together,
ever more seldom while nothing is written: a writer that is not watched pays nothing, and an idle agent next to nothing.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Sequence
from errno import ENOSPC

from node_agent.output.console import PATIENCE_S, Console
from node_agent.output.sinks import TAIL_BYTES, Sink, report_lines
from node_agent.output.streams import READ_BYTES, Stream

SHORTEST_S, LONGEST_S = 0.02, 1.5
"""Least and longest seconds between two looks at the files."""
SHARE = 4
"""Output that comes after a silence is late by no more than this part of the silence."""
DRAIN_TIMEOUT_S = 30.0
"""Longest time for which an exiting agent goes on showing what is in the files anyway."""
FULL_BYTES = 1 << 16
"""Free bytes below which a disk counts as full."""


def interval_s(silence_s: float) -> float:
    """Wait before the next look after so long a silence."""
    return min(max(silence_s / SHARE, SHORTEST_S), LONGEST_S)


class LogFiles:
    """All log files of an agent, also those whose worker is gone while the console is not yet done with its output.

    `outlook`: said after trouble with a file, of which each kind is said once; it stops nobody.
    """

    def __init__(self, console: Console, outlook: str = "the run goes on") -> None:
        self.console = console
        self._outlook = outlook
        self._problems: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._read: set[LogFile] = set()
        self._wrote_at = 0.0
        self._timer: asyncio.Handle | None = None

    def report(self, path: str, problem: OSError | str) -> None:
        """Tell the user what is wrong with a file."""
        text = (problem.strerror or str(problem)) if isinstance(problem, OSError) else problem
        if text not in self._problems:
            self._problems.add(text)
            self.console.log(f"log files: {path}: {text}; {self._outlook}")

    def follow(self, file: "LogFile") -> None:
        """Look at the file from now on."""
        self._read.add(file)
        self._wrote_at = self._loop.time()
        self._look_in(SHORTEST_S)

    def forget(self, file: "LogFile") -> None:
        """Leave out a file that has been closed."""
        self._read.discard(file)

    def look(self) -> None:
        """Look at all files, and again when it is time."""
        most = max([file.look() for file in list(self._read)], default=0)
        if most:
            self._wrote_at = self._loop.time()
        if self._read:
            self._look_in(0.0 if most == READ_BYTES else interval_s(self._loop.time() - self._wrote_at))

    async def drain(self) -> int:
        """Wait for the files whose worker is gone, as long as the console takes anything; how many bytes are left."""
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
        for file in list(self._read):
            file.close()
        if self._timer:
            self._timer.cancel()

    def _look_in(self, delay_s: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self.look)


class LogFile(Stream):
    """A worker's own file, opened at its end. Raises `OSError`.

    If there are sinks, it is followed into them; after `finish` to where it ended then. `shown`: the console is among
    them, and sets the pace.
    """

    def __init__(self, path: str, make_sinks: Callable[[], Sequence[Sink]], files: LogFiles, *, shown: bool) -> None:
        self._path = path
        self._files = files
        self._shown = shown
        # A named pipe without a reader is an error, for it would hold up the agent until there is one.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        super().__init__(os.open(path, flags, 0o666))
        os.set_blocking(self._worker_end, True)
        self._file = -1
        self._sinks: Sequence[Sink] = ()
        self._last: int | None = None
        """Offset at which to stop reading; None while the worker is there."""
        self._end = b""
        try:
            status = os.fstat(self._worker_end)
            if not stat.S_ISREG(status.st_mode):
                return  # a plug-in may name a device or a pipe
            if is_full(self._worker_end):
                raise OSError(ENOSPC, os.strerror(ENOSPC), path)
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._close_worker_end()
            raise
        self._offset = status.st_size
        self._sinks = make_sinks()

    @property
    def behind(self) -> int:
        """Bytes that the worker wrote and nobody has taken; only after `finish`."""
        return max(0, self._last - self._offset) if self._last is not None else 0

    def started(self) -> None:
        super().started()
        if self._sinks:
            self._files.follow(self)

    def finish(self) -> None:
        super().finish()
        if self._file < 0 or self._last is not None:
            return
        self._last = self._take_end()
        if self._sinks:
            self._files.follow(self)  # until the console has taken all of it
            while self._file >= 0 and self.look():
                pass
        else:
            self.close()

    def tail(self) -> tuple[str, ...]:
        return report_lines(self._end)

    def look(self) -> int:
        """Read a piece of what is new, unless the console takes nothing now; how many bytes that were."""
        if self._shown and self._files.console.is_full:
            return 0
        wanted = READ_BYTES if self._last is None else min(READ_BYTES, max(0, self._last - self._offset))
        try:
            chunk = os.pread(self._file, wanted, self._offset)
            if not chunk and os.fstat(self._file).st_size < self._offset:
                self._offset = 0  # somebody has emptied it; the worker goes on at its new end
                chunk = os.pread(self._file, READ_BYTES, 0)
        except OSError as error:
            self._files.report(self._path, error)
            self.close()
            return 0
        self._offset += len(chunk)
        if chunk:
            for sink in self._sinks:
                sink.take(chunk)
        if self._last is not None and (not chunk or self._offset >= self._last):
            self.close()
        return len(chunk)

    def close(self) -> None:
        """Read no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            for sink in self._sinks:
                sink.end()
            self._files.forget(self)

    def _take_end(self) -> int:
        """Keep the last lines; returns the size."""
        try:
            status = os.fstat(self._file)
            if status.st_nlink == 0:
                self._files.report(self._path, "it was removed while a worker wrote to it")
            if is_full(self._file):
                self._files.report(self._path, os.strerror(ENOSPC))
            self._end = os.pread(self._file, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
        except OSError as error:
            self._files.report(self._path, error)
            return 0
        return status.st_size


def is_full(file: int | str) -> bool:
    """Whether the file's disk is full: the next lines would make a worker fail. Raises `OSError`."""
    disk = os.statvfs(file)
    free = disk.f_bavail if os.geteuid() else disk.f_bfree
    return disk.f_blocks > 0 and free * disk.f_frsize < FULL_BYTES
