"""Reads a log file while a worker writes to it. The worker never waits: what the console cannot take yet is there."""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from node_agent.output.console import Console
from node_agent.output.pipe import READ_BYTES, Sink

REST_S = 0.02
"""Between two looks at a file that is being written to: watching each write would slow the writer down."""
BLIND_S = 0.2
"""Between two looks where the kernel gives no watch."""


class Watcher(Protocol):
    """Tells when a file is next written to."""

    def when_modified(self, path: str, tell: Callable[[], None]) -> None: ...

    def forget(self, tell: Callable[[], None]) -> None: ...


class Follower:
    """Follows an open file, which becomes its own, from where it ends now. `trouble` is told of errors.

    After `finish` it reads on to where the file ended then, at the console's pace, and calls `done`.
    """

    def __init__(
        self, file: int, sinks: Sequence[Sink], console: Console | None, watcher: Watcher,
        trouble: Callable[[OSError], None], done: Callable[["Follower"], None],
    ) -> None:  # fmt: skip
        self._file = file
        self._sinks = sinks
        self._console = console
        self._watcher = watcher
        self._trouble = trouble
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._offset = os.fstat(file).st_size
        self._last: int | None = None
        """Where to stop; None while the worker is there."""
        self._rest: asyncio.TimerHandle | None = None
        self._awaits_console = False

    @property
    def behind(self) -> int:
        """Bytes that the worker wrote and nobody has taken; only after `finish`."""
        return max(0, self._last - self._offset) if self._file >= 0 and self._last is not None else 0

    def start(self) -> None:
        self._await_write()

    def finish(self) -> None:
        """The worker is gone. What the console can take now, it is given now."""
        self._watcher.forget(self._turn)
        if self._rest:
            self._rest.cancel()
        if self._file >= 0:
            self._last = os.fstat(self._file).st_size
            while self._file >= 0 and not self._is_held_up():
                self._read()

    def give_up(self) -> None:
        """Take no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            for sink in self._sinks:
                sink.end()
            self._done(self)

    def _turn(self) -> None:
        """Read a piece, and see what comes next."""
        self._awaits_console = False
        more = self._file >= 0 and self._read()
        if self._file < 0 or self._is_held_up():
            return
        if more:
            self._loop.call_soon(self._turn)
        else:
            self._rest = self._loop.call_later(REST_S, self._await_write)

    def _read(self) -> bool:
        """Whether there was something."""
        wanted = READ_BYTES if self._last is None else min(READ_BYTES, max(0, self._last - self._offset))
        try:
            chunk = os.pread(self._file, wanted, self._offset)
            if not chunk and os.fstat(self._file).st_size < self._offset:
                self._offset = 0  # somebody has emptied it; the worker goes on at its new end
                chunk = os.pread(self._file, READ_BYTES, 0)
        except OSError as error:
            self._trouble(error)
            self.give_up()
            return False
        self._offset += len(chunk)
        if chunk:
            for sink in self._sinks:
                sink.take(chunk)
        if self._last is not None and (not chunk or self._offset >= self._last):
            self.give_up()
        return bool(chunk)

    def _await_write(self) -> None:
        try:
            self._watcher.when_modified(f"/proc/self/fd/{self._file}", self._turn)
        except OSError as error:
            why = f"cannot be watched ({error.strerror}; see fs.inotify of sysctl): looked at every {BLIND_S:g} s"
            self._trouble(OSError(error.errno, why))
            self._rest = self._loop.call_later(BLIND_S, self._turn)
            return
        if os.fstat(self._file).st_size != self._offset:  # written to before it was watched
            self._watcher.forget(self._turn)
            self._turn()

    def _is_held_up(self) -> bool:
        """Whether the console takes nothing now. It calls when it does."""
        if self._console is None or self._file < 0 or not self._console.is_full:
            return False
        if not self._awaits_console:
            self._awaits_console = True
            self._console.when_drained(self._turn)
        return True
