"""A worker's stdout or stderr: relayed line by line with a prefix, and remembered for the failure report."""

import asyncio
import os
from collections import deque
from typing import Protocol

from node_agent.console import Console

READ_BYTES = 1 << 16
LONGEST_LINE = 1 << 16
TAIL_LINES = 20
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


class Relay:
    """Reads one pipe whenever it has something. Lines of several workers are never torn."""

    def __init__(self, prefix: str, console: Console, target: int) -> None:
        self._pipe, self._worker_end = os.pipe()
        self._prefix = prefix.encode()
        self._console = console
        self._target = target
        self._partial = b""
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._open = True
        os.set_blocking(self._pipe, False)
        self._loop = asyncio.get_running_loop()

    def writable(self) -> int:
        return self._worker_end

    def started(self) -> None:
        self._let_go()
        self._loop.add_reader(self._pipe, self._on_readable)

    def finish(self) -> None:
        """Take what it wrote last, also without a newline, and close."""
        self._let_go()
        while self._open and self._read():
            pass
        self._close()

    def tail(self) -> tuple[str, ...]:
        """The last lines, fit for a report."""
        return tuple(_readable(line) for line in self._tail)

    def _let_go(self) -> None:
        if self._worker_end >= 0:
            os.close(self._worker_end)
            self._worker_end = -1

    def _on_readable(self) -> None:
        self._read()
        if self._open and self._console.is_full:
            self._loop.remove_reader(self._pipe)
            self._console.when_drained(self._resume)

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._pipe, self._on_readable)

    def _read(self) -> bool:
        try:
            chunk = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return False
        if chunk:
            self._take(self._partial + chunk)
        else:
            self._close()
        return bool(chunk)

    def _take(self, data: bytes) -> None:
        """Pass whole lines on. A carriage return ends one too: progress bars redraw with it."""
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and len(data) >= LONGEST_LINE:
            end = len(data)
        self._partial = data[end:]
        if lines := data[:end].splitlines(keepends=True):
            self._tail.extend(lines[-TAIL_LINES:])
            self._console.write(self._target, self._prefix + self._prefix.join(lines))

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            if self._partial:
                self._take(self._partial + b"\n")


def _readable(line: bytes) -> str:
    text = line.decode(errors="replace").rstrip()[:TAIL_LINE_CHARACTERS]
    return "".join(character if character.isprintable() else " " for character in text)
