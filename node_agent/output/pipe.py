"""A worker's stdout or stderr: a pipe that is read whenever it has something, and what becomes of the bytes."""

import asyncio
import fcntl
import os
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from node_agent.output.console import Console

READ_BYTES = 1 << 18
USUAL_PIPE_BYTES = 1 << 16
PIPE_BYTES = 1 << 20
"""The most that Linux lets anybody ask for."""
ALL_PIPES_BYTES = 16 << 20
"""Sum over all pipes of an agent: a user has 64 MiB for every pipe of every process, the workers' own included."""
TAIL_BYTES = 1 << 16
TAIL_LINES = 64
TAIL_LINE_CHARACTERS = 500


class Stream(Protocol):
    """One of a worker's two output streams, from before its start until it is gone."""

    def writable(self) -> int:
        """The descriptor that the worker writes to."""

    def started(self) -> None:
        """The worker has its copy of the descriptor: let ours go, and follow what it writes."""

    def finish(self) -> None:
        """The worker is gone, or could not be started: take what it wrote last, and let everything go."""

    def tail(self) -> tuple[str, ...]:
        """The last lines, fit for a report."""


class Sink(Protocol):
    """Takes what a worker writes, in pieces that end anywhere."""

    def take(self, chunk: bytes) -> None: ...

    def end(self) -> None:
        """Note that nothing more comes."""


class Tail:
    """Remembers the last of it."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def take(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) >= TAIL_BYTES:
            self._size -= len(self._chunks.popleft())

    def end(self) -> None:
        pass

    def lines(self) -> tuple[str, ...]:
        return last_lines(b"".join(self._chunks))


class Relay:
    """Reads a pipe into its sinks. With a `console`, not while that is full: the worker then waits, as for a terminal.

    `pipe_bytes`: how much the worker may be ahead of us.
    """

    def __init__(self, sinks: Sequence[Sink], console: Console | None, pipe_bytes: int = 0) -> None:
        self._pipe, self._worker_end = os.pipe()
        self._sinks = sinks
        self._console = console
        self._capacity = _widen(self._pipe, pipe_bytes)
        self._open = True
        os.set_blocking(self._pipe, False)
        self._loop = asyncio.get_running_loop()

    def writable(self) -> int:
        return self._worker_end

    def started(self) -> None:
        self._close_worker_end()
        self._loop.add_reader(self._pipe, self._on_readable)

    def finish(self) -> None:
        """Take what it wrote last, also without a newline, and close. What a child of it writes from now on is lost."""
        self._close_worker_end()
        left = self._capacity
        while self._open and left > 0 and (taken := self._read()):
            left -= taken
        self._close()

    def tail(self) -> tuple[str, ...]:
        return next((sink.lines() for sink in self._sinks if isinstance(sink, Tail)), ())

    def _close_worker_end(self) -> None:
        if self._worker_end >= 0:
            os.close(self._worker_end)
            self._worker_end = -1

    def _on_readable(self) -> None:
        self._read()
        if self._open and self._console and self._console.is_full:
            self._loop.remove_reader(self._pipe)
            self._console.when_drained(self._resume)

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._pipe, self._on_readable)

    def _read(self) -> int:
        """Returns how much there was."""
        try:
            chunk = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return 0
        if chunk:
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


def pipe_bytes(workers: int) -> int:
    """Room of each pipe of so many workers; 0: what the kernel gives it anyway."""
    share = 1 << (ALL_PIPES_BYTES // (2 * workers)).bit_length() - 1  # the kernel rounds up to a power of two
    return min(PIPE_BYTES, share) if share > USUAL_PIPE_BYTES else 0


def last_lines(data: bytes) -> tuple[str, ...]:
    """The last lines of an output, fit for a report: of a line that was redrawn, what one saw last."""
    lines = data.removesuffix(b"\n").rsplit(b"\n", TAIL_LINES)[-TAIL_LINES:]
    return tuple(map(_readable, lines)) if data else ()


def _readable(line: bytes) -> str:
    seen = line.rstrip(b"\r").rpartition(b"\r")[2]
    text = seen.decode(errors="replace").rstrip()[:TAIL_LINE_CHARACTERS]
    return "".join(character if character.isprintable() else " " for character in text)


def _widen(pipe: int, size: int) -> int:
    if size:
        try:
            return fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
        except OSError:  # the user's pipes have used up what he may have
            pass
    return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
