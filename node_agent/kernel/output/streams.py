"""A worker's stdout or stderr: dropped, or a pipe that is read when it has data."""

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence

from node_agent.kernel.output.console import Console
from node_agent.kernel.output.pieces import READ_BYTES, End, UnreadTail
from node_agent.kernel.output.sinks import Sink, Tail

USUAL_PIPE_BYTES = 1 << 16
PIPE_BYTES = 1 << 20
"""Largest pipe that Linux lets unprivileged users ask for."""
ALL_PIPES_BYTES = 16 << 20
"""Bytes in all pipes of an agent. A user has 64 MiB for all pipes of all processes, including the workers' own."""


class Stream:
    """One of a worker's two output streams, from before its start until its end. This class drops the output."""

    last_read_at: float | None = None
    """Time of the stream's last output by the event loop's clock, None if there was none."""
    is_pipe = False
    """Whether the agent reads each output at once, so that it knows how long the worker has been silent."""
    has_both = False
    """Whether the tail also holds the lines of the worker's other stream."""
    on_output: Callable[[], None] | None = None
    """Called with each piece that is read, before it is passed on."""

    def __init__(self, worker_end: int | None = None) -> None:
        self._worker_end = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if worker_end is None else worker_end

    def writable(self) -> int:
        """Return the descriptor that the worker writes to."""
        return self._worker_end

    def started(self) -> None:
        """Close the agent's copy of the descriptor, now that the worker has its own, and follow the worker's output."""
        self._close_worker_end()

    def catch_up(self) -> None:
        """Read what the worker has written so far. Its children may write more."""

    def finish(self) -> None:
        """Read what the worker wrote last, and close everything: it has ended or could not be started."""
        self._close_worker_end()

    def end(self, pid: int) -> End | None:
        """Return the end of the worker's file, for a thread to read and then for `ended`; None if it has no file.

        `pid`: the worker, which has not been reaped.
        """
        return None

    def ended(self, end: End, *, is_last: bool) -> None:
        """Take the end of the file after it was read. `is_last`: `finish` follows."""

    def tail(self) -> tuple[str, ...]:
        """Return the last lines for a report."""
        return ()

    @property
    def marked_at(self) -> float | None:
        """Time, by the event loop's clock, at which the last exception in `tail` was read that torch has marked; None
        if there was none.
        """
        return None

    def unread_tail(self) -> UnreadTail | None:
        """Return the last lines of the running worker for any thread to read; None if `tail` has them."""
        return None

    def _close_worker_end(self) -> None:
        if self._worker_end >= 0:
            os.close(self._worker_end)
            self._worker_end = -1


class Relay(Stream):
    """Reads a pipe into its sinks. With a full `console` it stops reading, and the worker waits as for a terminal.

    `pipe_bytes`: how many bytes the worker may write ahead of the agent.
    """

    is_pipe = True

    def __init__(self, sinks: Sequence[Sink], console: Console | None, pipe_bytes: int = 0) -> None:
        self._pipe, worker_end = os.pipe()
        super().__init__(worker_end)
        self._sinks = sinks
        self._console = console
        self._capacity = _widen(self._pipe, pipe_bytes)
        self._open = True
        os.set_blocking(self._pipe, False)
        self._loop = asyncio.get_running_loop()

    def started(self) -> None:
        super().started()
        self._loop.add_reader(self._pipe, self._on_readable)

    def catch_up(self) -> None:
        left = self._capacity
        while self._open and left > 0 and (taken := self._read()):
            left -= taken

    def finish(self) -> None:
        """Read what the worker wrote last, even without a newline, and close. Later output of its children is lost."""
        super().finish()
        self.catch_up()
        self._close()

    def tail(self) -> tuple[str, ...]:
        return next((sink.lines() for sink in self._sinks if isinstance(sink, Tail)), ())

    @property
    def marked_at(self) -> float | None:
        return next((sink.marked_at for sink in self._sinks if isinstance(sink, Tail)), None)

    def _on_readable(self) -> None:
        self._read()
        if self._open and self._console and self._console.is_full:
            self._loop.remove_reader(self._pipe)
            self._console.when_drained(self._resume)

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._pipe, self._on_readable)

    def _read(self) -> int:
        """Read a piece and pass it on. Return its number of bytes."""
        try:
            chunk = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return 0
        if chunk:
            self.last_read_at = self._loop.time()
            if self.on_output:
                self.on_output()
            for sink in self._sinks:
                sink.take(chunk)
        else:
            self._close()
        return len(chunk)

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            for sink in self._sinks:
                sink.end()


class Joined(Stream):
    """The stderr of a worker that writes both streams into one pipe, so that they keep the order of writing."""

    is_pipe = has_both = True

    def __init__(self, both: Relay) -> None:
        super().__init__(-1)
        self._both = both

    def writable(self) -> int:
        return self._both.writable()

    def tail(self) -> tuple[str, ...]:
        return self._both.tail()

    @property
    def marked_at(self) -> float | None:
        return self._both.marked_at


def pipe_bytes(workers: int) -> int:
    """Return the size of each pipe for this number of workers, 0 for the kernel's default."""
    share = 1 << (ALL_PIPES_BYTES // (2 * workers)).bit_length() - 1  # the kernel rounds up to a power of two
    return min(PIPE_BYTES, share) if share > USUAL_PIPE_BYTES else 0


def _widen(pipe: int, size: int) -> int:
    if size:
        try:
            return fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
        except OSError:  # the user's pipes have reached the limit
            pass
    return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
