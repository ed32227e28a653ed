"""A stream that a worker writes straight into a file, so that nothing that the agent does can slow it down."""

import errno
import os
import stat
from collections.abc import Callable

from node_agent.output.file_tail import FileTail
from node_agent.output.pipe import TAIL_BYTES, last_lines

FULL_BYTES = 1 << 16
"""A disk with less room than this is full."""

MakeTail = Callable[[int], FileTail]
"""Makes the tail of an open file."""


class FileStream:
    """Opens the file, at its end. Raises `OSError`. `on_error` is told what becomes of it while the worker runs."""

    def __init__(self, path: str, make_tail: MakeTail | None, on_error: Callable[[OSError], None]) -> None:
        self._path = path
        self._on_error = on_error
        # A named pipe without a reader is an error, for it would hold up the agent until there is one.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._worker_end = os.open(path, flags, 0o666)
        os.set_blocking(self._worker_end, True)
        self._file = -1
        self._tail: FileTail | None = None
        self._end = b""
        if stat.S_ISREG(os.fstat(self._worker_end).st_mode):  # a plug-in may name a device or a pipe
            try:
                self._open_for_reading(make_tail)
            except OSError:
                os.close(self._worker_end)
                raise

    def writable(self) -> int:
        return self._worker_end

    def started(self) -> None:
        self._close_worker_end()
        if self._tail:
            self._tail.start()

    def finish(self) -> None:
        self._close_worker_end()
        if self._file >= 0:
            self._end = self._take_end()
            os.close(self._file)
            self._file = -1
            if self._tail:
                self._tail.finish()

    def tail(self) -> tuple[str, ...]:
        return last_lines(self._end)

    def _open_for_reading(self, make_tail: MakeTail | None) -> None:
        if _is_full(self._worker_end):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        if make_tail:
            self._tail = make_tail(os.dup(self._file))

    def _take_end(self) -> bytes:
        try:
            status = os.fstat(self._file)
            if status.st_nlink == 0:
                self._on_error(FileNotFoundError(None, "it was removed while a worker wrote to it", self._path))
            if _is_full(self._file):
                self._on_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path))
            return os.pread(self._file, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
        except OSError as error:
            self._on_error(error)
            return b""

    def _close_worker_end(self) -> None:
        if self._worker_end >= 0:
            os.close(self._worker_end)
            self._worker_end = -1


def _is_full(file: int) -> bool:
    """Whether the next lines would make a worker fail."""
    disk = os.fstatvfs(file)
    free = disk.f_bavail if os.geteuid() else disk.f_bfree
    return disk.f_blocks > 0 and free * disk.f_frsize < FULL_BYTES


class Dropped:
    """A stream that nobody wants."""

    def __init__(self) -> None:
        self._worker_end = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def writable(self) -> int:
        return self._worker_end

    def started(self) -> None:
        self.finish()

    def finish(self) -> None:
        if self._worker_end >= 0:
            os.close(self._worker_end)
            self._worker_end = -1

    def tail(self) -> tuple[str, ...]:
        return ()
