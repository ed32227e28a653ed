"""Pieces and ends of files to which workers write. Any thread can read them."""

import os
from contextlib import suppress
from errno import EFBIG
from math import inf
from weakref import finalize

from node_agent import words
from node_agent.kernel.output.disk_space import why_full
from node_agent.kernel.output.sinks import TAIL_BYTES, has_enough_lines, last_bytes, report_lines

READ_BYTES = 1 << 18
"""Most bytes to read at a time."""
REST_BYTES = 1 << 22
"""Most bytes to read of a worker's last output, and of the end of its file."""


class End:
    """End of a file as its worker has left it, with the output that is still unread. Any thread can read it."""

    def __init__(self, descriptor: int, offset: int, pid: int = 0) -> None:
        """`pid`: the worker, if it has not been reaped."""
        self._descriptor, self._offset, self._pid = descriptor, offset, pid
        self.size, self.tail = 0, b""
        self.why_full: OSError | None = None
        """Error that the worker would get if it wrote more, None if there is room."""
        self.rest: list[Piece] = []
        self.problems: list[tuple[OSError | str, str]] = []
        """Problems, each with what may follow from it."""

    def read(self) -> "End":
        try:
            status = os.fstat(self._descriptor)
            if status.st_nlink == 0:
                self.problems.append((words.output.REMOVED, ""))
            self.why_full = why_full(self._descriptor, self._pid)
            if self.why_full:
                is_at_limit = self.why_full.errno == EFBIG
                outlook = words.output.WORKER_AT_LIMIT if is_at_limit else words.output.WORKER_MAY_FAIL
                self.problems.append((self.why_full, outlook))
            self.tail = _read_tail(self._descriptor, status.st_size)
        except OSError as error:
            return self.unread(error)
        self.size = status.st_size
        if self.size < self._offset:  # the file was emptied
            self.rest.append(Piece(self._descriptor, self._offset).read())
        for offset in range(self._offset, min(self.size, self._offset + REST_BYTES), READ_BYTES):
            self.rest.append(Piece(self._descriptor, offset).read())
        return self

    def unread(self, problem: OSError) -> "End":
        """Record that the end could not be read."""
        self.problems.append((problem, ""))
        return self


class Piece:
    """Next piece of a file. The event loop requests and takes it; any thread can read it."""

    def __init__(self, descriptor: int, offset: int) -> None:
        self.offset = self.begin = offset
        """Requested offset, and the offset at which the piece begins."""
        self.chunk = b""
        self.error: OSError | None = None
        self._descriptor = descriptor

    def read(self) -> "Piece":
        try:
            self.chunk = os.pread(self._descriptor, READ_BYTES, self.begin)
            if not self.chunk and os.fstat(self._descriptor).st_size < self.begin:
                self.begin = 0  # the file was emptied; the worker continues at its new end
                self.chunk = os.pread(self._descriptor, READ_BYTES, 0)
        except OSError as error:
            self.error = error
        return self


class UnreadTail:
    """Last lines of a file to which a running worker writes. Any thread can read them."""

    def __init__(self, path: str, descriptor: int) -> None:
        """Raises `OSError` if the agent has no descriptor left."""
        self.path = path
        self.written_at = inf
        """Time of the last output that was read, in seconds since 1970. It is never if nothing was read."""
        self._descriptor = os.dup(descriptor)  # the log closes its own
        finalize(self, os.close, self._descriptor)

    def read(self) -> tuple[str, ...]:
        """Return the lines, none if the file cannot be read."""
        with suppress(OSError):
            status = os.fstat(self._descriptor)
            lines = report_lines(_read_tail(self._descriptor, status.st_size))
            self.written_at = status.st_mtime
            return lines
        return ()


def _read_tail(descriptor: int, size: int) -> bytes:
    """Return the last lines of a file for a report. Most files have enough of them in a few bytes."""
    end = os.pread(descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES))
    if size > len(end) and not has_enough_lines(end):
        end = os.pread(descriptor, REST_BYTES, max(0, size - REST_BYTES))
    return last_bytes(end)
