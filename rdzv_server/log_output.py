"""Output of the server's log: a thread writes the lines to stderr, so the event loop never waits for their reader.

A reader may take nothing for any time: a stopped terminal (Ctrl-S), a pager, a log collector, or a disk that hangs. The
server then continues, and keeps at most `MOST_BYTES` of lines. Further lines are left out and counted.
The log then contains their number, at the latest once the reader has taken all other lines.
"""

import logging
import os
import select
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread

from rdzv_server.words import service as words

MOST_BYTES = 4 << 20
"""Most bytes of lines that wait for the reader."""
CLOSE_S = 2.0
"""Most seconds that an exiting server waits for the reader."""
STDERR = 2


class LogOutput(logging.Handler):
    """Handler that writes lines to a descriptor. After `begin`, `emit` blocks only if no thread can be started."""

    def __init__(self, descriptor: int = STDERR) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._counting = Lock()
        self._waiting = 0
        """Number of bytes that are not written yet."""
        self._left_out = 0
        self._thread: Thread | None = None
        self._has_begun = self._is_closed = False

    def begin(self) -> None:
        """Leave later lines to a thread.

        Call this when the server's other threads have started. The server cannot do without those, so they come first
        if the limit of processes allows only a few threads.
        """
        self._has_begun = True

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
        except Exception:
            self.handleError(record)
            return
        if self._is_closed or not self._ensure_thread():
            self._write(line)
            return
        with self._counting:
            if self._waiting and self._waiting + len(line) > MOST_BYTES:
                self._left_out += 1
                return
            line = self._lost() + line
            self._waiting += len(line)
        self._lines.put(line)

    def close(self) -> None:
        """Write what waits, for at most `CLOSE_S`. Later lines are written at once."""
        if not self._is_closed:
            self._is_closed = True
            self._lines.put(None)
            if self._thread:
                self._thread.join(CLOSE_S)
        super().close()

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _ensure_thread(self) -> bool:
        """Start the thread if it may and does not run. Return False if it does not run."""
        if self._thread is None and self._has_begun:
            thread = Thread(target=self._work, name="log", daemon=True)
            with suppress(RuntimeError):  # too many threads
                thread.start()
                self._thread = thread
        return self._thread is not None

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)
            with self._counting:
                self._waiting -= len(line)
                lost = b"" if self._waiting else self._lost()
            if lost:
                self._write(lost)

    def _lost(self) -> bytes:
        """Return a line with the number of lines that were left out since the last such line; empty if none were."""
        left_out, self._left_out = self._left_out, 0
        return self._line(_warning(words.log_lines_lost(left_out))) if left_out else b""

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        with suppress(OSError):  # the reader is gone, or the disk is full
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # the program before left a terminal in this mode
                    select.select([], [self._descriptor], [])


def _warning(text: str) -> logging.LogRecord:
    return logging.LogRecord("rdzv_server", logging.WARNING, __file__, 0, text, None, None)
