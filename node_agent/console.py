"""What people see: the workers' lines and the agent's own, written by a thread.

A console may block for as long as it likes (a pager, a stopped terminal): the thread waits for it, the agent does not.
What piles up is bounded: above `HIGH` bytes the workers' pipes are no longer read until it falls below `LOW`.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

HIGH, LOW = 8 << 20, 4 << 20
CLOSE_TIMEOUT_S = 2.0

OUT, ERR = 1, 2


class Console:
    """The process's stdout and stderr. `say` and `write` never block."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._loop = loop
        self._queue: SimpleQueue[tuple[int, bytes] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._paused: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._write_all, name="console", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """A line of the agent's own, on stderr."""
        self.write(ERR, f"{self._name}: {text}\n".encode(errors="backslashreplace"))

    def write(self, fd: int, chunk: bytes) -> None:
        """Whole lines, already marked with whose they are."""
        with self._lock:
            self._pending += len(chunk)
        self._queue.put((fd, chunk))

    @property
    def is_full(self) -> bool:
        return self._pending > HIGH

    def when_drained(self, resume: Callable[[], None]) -> None:
        """Call `resume` in the event loop once there is room again."""
        with self._lock:
            if self._pending >= LOW:
                self._paused.append(resume)
                return
        self._loop.call_soon(resume)  # it has drained since the caller looked

    def close(self) -> None:
        """Wait until everything is written, or for as long as a person may wait for a console that blocks."""
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            fd, chunk = item
            _write(fd, chunk)
            with self._lock:
                self._pending -= len(chunk)
                resumed, self._paused = (self._paused, []) if self._pending < LOW else ([], self._paused)
            for resume in resumed:
                self._loop.call_soon_threadsafe(resume)


def _write(fd: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            _wait_writable(fd)
        except OSError:
            return  # nobody reads any more: the run goes on


def _wait_writable(fd: int) -> None:
    import select

    select.select([], [fd], [])
