"""Console of the agent: the workers' output and the agent's own lines, written by threads.

A console may block for as long as it likes (a pager, a stopped terminal): a thread waits for it, the agent does not.
While stdout blocks, stderr still has its say, unless one terminal shows both.
What piles up is bounded: above `HIGH` bytes the workers' output is no longer read until it falls below `LOW`.

Who leaves a line unfinished (a prompt, a progress bar) owns it, and may go on with it; anybody else begins a new one.
So no line ever mixes what two of them wrote. On a terminal the last line may be a live one (`draw`): whoever writes
next writes over it.
"""

import asyncio
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from time import monotonic, time

from rdzv_protocol.log_lines import Context, LineFormat

from node_agent.kernel.core.effects import Level

HIGH, LOW = 8 << 20, 4 << 20
PATIENCE_S = 2.0
"""Longest wait of an exiting agent for a console that takes nothing at all."""
WRITE_BYTES, SLOW_WRITE_BYTES = 1 << 16, 1 << 12
SLOW_S = 0.1
"""Seconds; a console that took longer for its last piece is given less, to show whether it still takes any."""

OUT, ERR = 1, 2

_Queue = SimpleQueue[tuple[int, bytes] | None]


class Console:
    """The process's stdout and stderr. `log` and `write` never block."""

    def __init__(self, form: LineFormat, loop: asyncio.AbstractEventLoop) -> None:
        self._form = form
        self.context: Context = {}
        """Fields of every JSON line of the agent: its run, node and round."""
        self._loop = loop
        self._lock = threading.Lock()
        self.pending = 0
        """Bytes that are not yet written."""
        self._paused: list[Callable[[], None]] = []
        self._err_screen = OUT if _same_file(OUT, ERR) else ERR
        self._screens: dict[int, _Screen] = {}

    def log(self, text: str, level: Level = Level.WARNING, event: str = "") -> None:
        """Write a line of the agent's own to stderr, if its level is asked for. `event`: kind of what has happened."""
        if level.number >= self._form.lowest:
            line = self._form.line(text, level.number, time(), {**self.context, "event": event})
            self.write(ERR, f"{line}\n".encode(errors="backslashreplace"))

    def show(self, text: str, block: bytes, event: str) -> None:
        """Write a block of several lines to stderr, or in JSON one line that holds its text."""
        if self.is_json:
            self.log(text, Level.ERROR, event)
        else:
            self.write(ERR, block)

    @property
    def has_live_line(self) -> bool:
        """Whether stderr is a terminal on which a line can be rewritten, and its reader wants to know of waits."""
        wanted = not self._form.is_json and self._form.lowest <= Level.NOTICE.number
        return wanted and os.environ.get("TERM", "dumb") != "dumb" and os.isatty(ERR)

    @property
    def is_one(self) -> bool:
        """Whether stdout and stderr are one terminal, file or pipe, in which readers see the order of writing."""
        return self._err_screen == OUT

    @property
    def program(self) -> str:
        return self._form.program

    @property
    def is_json(self) -> bool:
        return self._form.is_json

    def draw(self, text: str, columns: int) -> None:
        """Show the text, so many columns wide, as the live line of stderr's screen, in the place of the one before.

        Left out while the screen is behind: the next one is newer.
        """
        with self._lock:
            screen = self._screen(ERR)
            if not self.pending or not text:
                begin = b"\n" if text and screen.owner is not None else screen.erased()
                screen.owner, screen.live = (None, columns) if text else (screen.owner, 0)
                self._put(screen, ERR, begin + text.encode(errors="replace"))

    def write(self, fd: int, chunk: bytes, owner: object = None) -> None:
        """Write whole lines; or, with an `owner`, also the beginning, the middle or the end of one."""
        with self._lock:
            screen = self._screen(fd)
            if screen.owner is not None and screen.owner is not owner:
                chunk = b"\n" + chunk
            chunk = screen.erased() + chunk
            screen.owner = None if chunk.endswith(b"\n") else owner
            self._put(screen, fd, chunk)

    def owns_line(self, fd: int, owner: object) -> bool:
        """Whether the last line there is unfinished and the owner's, so that it can go on with it."""
        return self._screen(fd).owner is owner

    @property
    def is_full(self) -> bool:
        return self.pending > HIGH

    def when_drained(self, resume: Callable[[], None]) -> None:
        """Call `resume` in the event loop once there is room again."""
        with self._lock:
            if self.pending >= LOW:
                self._paused.append(resume)
                return
        self._loop.call_soon(resume)  # it has drained since the caller looked

    def _put(self, screen: "_Screen", fd: int, chunk: bytes) -> None:
        screen.queue.put((fd, chunk))
        self.pending += len(chunk)

    def close(self) -> None:
        """Wait until everything is written; or until the console has taken nothing for `PATIENCE_S`."""
        for screen in self._screens.values():
            screen.queue.put(None)
        for screen in self._screens.values():
            left = -1
            while screen.thread.is_alive() and left != self.pending:
                left = self.pending
                screen.thread.join(PATIENCE_S)

    def put(self, fd: int, view: memoryview) -> int:
        """Write some of it, in the console's thread; returns how much is done with."""
        while True:
            try:
                return os.write(fd, view)
            except BlockingIOError:  # a terminal is often left so by the program before
                select.select([], [fd], [])
            except OSError:
                return len(view)  # nobody reads any more: the run goes on

    def _screen(self, fd: int) -> "_Screen":
        number = self._err_screen if fd == ERR else fd
        if number not in self._screens:
            self._screens[number] = _Screen(self._write_all)
        return self._screens[number]

    def _write_all(self, queue: "_Queue") -> None:
        while (item := queue.get()) is not None:
            fd, chunk = item
            view, at_once = memoryview(chunk), WRITE_BYTES
            while view:
                began = monotonic()
                try:
                    written = self.put(fd, view[:at_once])
                except Exception as error:  # a bug: the run ends, but whoever waits for this thread must not be stuck
                    written = len(view)
                    self._call_in_loop(partial(_fail, error))
                at_once = SLOW_WRITE_BYTES if monotonic() - began > SLOW_S else WRITE_BYTES
                view = view[written:]
                self._account(written)

    def _account(self, written: int) -> None:
        with self._lock:
            self.pending -= written
            resumed, self._paused = (self._paused, []) if self.pending < LOW else ([], self._paused)
        for resume in resumed:
            self._call_in_loop(resume)

    def _call_in_loop(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the agent has given up waiting
            self._loop.call_soon_threadsafe(function)


class _Screen:
    """Screen or file that shows a descriptor's lines. One terminal often shows both, in the order of writing."""

    def __init__(self, write_all: "Callable[[_Queue], None]") -> None:
        self.queue: _Queue = SimpleQueue()
        self.owner: object = None
        """Owner of the last line, if that has no end yet."""
        self.live = 0
        """Columns of the live line, if there is one."""
        self.thread = threading.Thread(target=write_all, args=[self.queue], name="console", daemon=True)
        self.thread.start()

    def erased(self) -> bytes:
        """Bytes that blank the live line, with a ^C that a terminal has echoed behind it; empty if there is none.

        Carriage returns and spaces alone, which every terminal knows.
        """
        columns, self.live = self.live, 0
        return b"\r" + b" " * (columns + 2) + b"\r" if columns else b""


def _fail(error: Exception) -> None:
    raise error


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # one of them is closed
        return False
