"""Console of the agent: threads write the workers' output and the agent's own lines.

A console such as a pager or a stopped terminal may block for any time. Only a thread waits for it, not the agent. While
stdout blocks, the agent can still write to stderr, unless one terminal shows both. The backlog is bounded: above `HIGH`
bytes the agent stops reading the workers' output until the backlog falls below `LOW`.

Output that a full disk does not take is lost, because workers must not wait for a person. The agent logs when that
begins, and how much was lost when it ends.

An unfinished line, such as a prompt or a progress bar, belongs to its writer, which may continue it. Any other writer
begins a new line. So no line mixes the output of two writers. On a terminal the last line may be a live one (`draw`);
the next writer overwrites it.
"""

import asyncio
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from errno import EDQUOT, EFBIG, ENOSPC
from functools import partial
from queue import SimpleQueue
from time import monotonic, time

from rdzv_protocol.log_lines import Context, LineFormat

from node_agent import words
from node_agent.kernel.core.effects import Level
from node_agent.kernel.output.disk_space import in_words

HIGH, LOW = 8 << 20, 4 << 20
PATIENCE_S = 2.0
"""Most seconds that an exiting agent waits for a console that takes nothing."""
WRITE_BYTES, SLOW_WRITE_BYTES = 1 << 16, 1 << 12
SLOW_S = 0.1
"""Seconds after which a console counts as slow. The next piece is smaller, to show whether it still takes any."""

HELD_S = 10.0
"""Seconds for which the console has taken nothing before the agent logs that workers wait for it."""

OUT, ERR = 1, 2
_NAMES = {OUT: "stdout", ERR: "stderr"}
_FULL = (ENOSPC, EDQUOT, EFBIG)

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
        """Number of bytes that are not written yet."""
        self._full_at = 0.0
        """Time at which the backlog last exceeded `HIGH`."""
        self._paused: list[Callable[[], None]] = []
        self._complaint: asyncio.TimerHandle | None = None
        self._err_screen = OUT if _same_file(OUT, ERR) else ERR
        self._screens: dict[int, _Screen] = {}
        self._lost: dict[int, int] = {}
        """Numbers of bytes that were lost on a full disk, by descriptor. 0 if there is room again."""

    def log(self, text: str, level: Level = Level.WARNING, event: str = "") -> None:
        """Write one of the agent's own lines to stderr, if its level is enabled. `event`: kind of what has happened."""
        if level.number >= self._form.lowest:
            line = self._form.line(text, level.number, time(), {**self.context, "event": event})
            self.write(ERR, f"{line}\n".encode(errors="backslashreplace"))

    def show(self, text: str, block: bytes, event: str) -> None:
        """Write a block of several lines to stderr, or in JSON one line with the text."""
        if self.is_json:
            self.log(text, Level.ERROR, event)
        else:
            self.write(ERR, block)

    @property
    def can_redraw(self) -> bool:
        """Whether stderr is a terminal on which a line can be rewritten, and waits are to be logged."""
        wanted = not self._form.is_json and self._form.lowest <= Level.NOTICE.number
        return wanted and os.environ.get("TERM", "dumb") != "dumb" and os.isatty(ERR)

    @property
    def is_one(self) -> bool:
        """Whether stdout and stderr are one terminal, file or pipe, which shows the order of writing."""
        return self._err_screen == OUT

    @property
    def program(self) -> str:
        return self._form.program

    @property
    def is_json(self) -> bool:
        return self._form.is_json

    def draw(self, text: str, columns: int) -> None:
        """Show the text, `columns` wide, as the live line on stderr's screen, replacing the previous one.

        The text is skipped while the screen lags behind: the next one is newer.
        """
        with self._lock:
            screen = self._screen(ERR)
            if not self.pending or not text:
                begin = b"\n" if text and screen.owner is not None else screen.erased()
                screen.owner, screen.live = (None, columns) if text else (screen.owner, 0)
                self._put(screen, ERR, begin + text.encode(errors="replace"))

    def write(self, fd: int, chunk: bytes, owner: object = None) -> None:
        """Write whole lines. With an `owner`, write also the beginning, the middle or the end of a line."""
        with self._lock:
            screen = self._screen(fd)
            if screen.owner is not None and screen.owner is not owner:
                chunk = b"\n" + chunk
            chunk = screen.erased() + chunk
            screen.owner = None if chunk.endswith(b"\n") else owner
            self._put(screen, fd, chunk)

    def owns_line(self, fd: int, owner: object) -> bool:
        """Return whether the last line there is unfinished and belongs to the owner, which can continue it."""
        return self._screen(fd).owner is owner

    @property
    def is_full(self) -> bool:
        return self.pending > HIGH

    @property
    def held_since(self) -> float | None:
        """Time since which the console takes nothing and workers may wait for it, by the loop's clock. None if they do
        not wait, or if the console is only slow.
        """
        with self._lock:
            if not (self.is_full or self._paused):
                return None
            return max(self._full_at, max(self._screens.values(), key=lambda screen: screen.pending).moved_at)

    def when_drained(self, resume: Callable[[], None]) -> None:
        """Call `resume` in the event loop once there is room again."""
        with self._lock:
            if self.pending >= LOW:
                if not self._paused:
                    self._complain_later()
                self._paused.append(resume)
                return
        self._loop.call_soon(resume)  # the console has drained since the caller checked

    def _complain_later(self) -> None:
        if self._complaint:
            self._complaint.cancel()
        self._complaint = self._loop.call_later(HELD_S, self._complain)

    def _complain(self) -> None:
        if not self._paused or (since := self.held_since) is None:
            return
        if (due := since + HELD_S) > self._loop.time():  # it has taken something meanwhile
            self._complaint = self._loop.call_at(due, self._complain)
        else:
            self.log(words.output.console_held(HELD_S))

    def _put(self, screen: "_Screen", fd: int, chunk: bytes) -> None:
        screen.begin()
        now, was_full = self._loop.time(), self.is_full
        screen.put(fd, chunk, now)
        self.pending += len(chunk)
        if self.is_full and not was_full:
            self._full_at = now

    def close(self) -> None:
        """Wait until everything is written, or until the console has taken nothing for `PATIENCE_S`."""
        for screen in self._screens.values():
            screen.queue.put(None)
        for screen in self._screens.values():
            left = -1
            if not screen.begin():
                self._write_all(screen)
            while screen.thread and screen.thread.is_alive() and left != self.pending:
                left = self.pending
                screen.thread.join(PATIENCE_S)

    def put(self, fd: int, view: memoryview) -> int:
        """Write a part of it in the console's thread. Return the number of bytes that are done."""
        while True:
            try:
                written = os.write(fd, view)
            except BlockingIOError:  # the program before often leaves a terminal in this mode
                select.select([], [fd], [])
            except OSError as error:
                self._lose(fd, len(view), error)
                return len(view)  # the reader is gone, or the disk is full: the run continues
            else:
                if self._lost.get(fd) and written == len(view):
                    self._call_in_loop(partial(self.log, words.output.console_lost(_NAMES[fd], self._lost[fd])))
                    self._lost[fd] = 0
                return written

    def _lose(self, fd: int, size: int, error: OSError) -> None:
        if error.errno in _FULL:
            if fd not in self._lost:
                self._call_in_loop(partial(self.log, words.output.console_full(_NAMES[fd], in_words(error))))
            self._lost[fd] = self._lost.get(fd, 0) + size

    def _screen(self, fd: int) -> "_Screen":
        number = self._err_screen if fd == ERR else fd
        if number not in self._screens:
            self._screens[number] = _Screen(self._write_all)
        return self._screens[number]

    def _write_all(self, screen: "_Screen") -> None:
        while (item := screen.queue.get()) is not None:
            fd, chunk = item
            view, at_once = memoryview(chunk), WRITE_BYTES
            while view:
                began = monotonic()
                try:
                    written = self.put(fd, view[:at_once])
                # a bug: the run ends, but a caller that waits for this thread must not be stuck
                except Exception as error:
                    written = len(view)
                    self._call_in_loop(partial(_fail, error))
                at_once = SLOW_WRITE_BYTES if monotonic() - began > SLOW_S else WRITE_BYTES
                view = view[written:]
                self._account(screen, written)

    def _account(self, screen: "_Screen", written: int) -> None:
        with self._lock:
            self.pending -= written
            screen.pending -= written
            screen.moved_at = self._loop.time()
            resumed, self._paused = (self._paused, []) if self.pending < LOW else ([], self._paused)
        for resume in resumed:
            self._call_in_loop(resume)

    def _call_in_loop(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the agent has stopped waiting
            self._loop.call_soon_threadsafe(function)


class _Screen:
    """Screen or file that shows a descriptor's lines. One terminal often shows both, in the order of writing."""

    def __init__(self, write_all: "Callable[[_Screen], None]") -> None:
        self.queue: _Queue = SimpleQueue()
        self.pending = 0
        """Number of bytes that are not written yet."""
        self.moved_at = 0.0
        """Time of the last successful write, or of the first byte that waits for one."""
        self.owner: object = None
        """Owner of the last line, if the line is unfinished."""
        self.live = 0
        """Columns of the live line, 0 if there is none."""
        self.thread: threading.Thread | None = None
        self._write_all = write_all

    def begin(self) -> bool:
        """Start the thread if it does not run. Return False if it cannot be started now; the lines then wait."""
        if self.thread is None:
            thread = threading.Thread(target=self._write_all, args=[self], name="console", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self.thread = thread
        return self.thread is not None

    def put(self, fd: int, chunk: bytes, now: float) -> None:
        if not self.pending:
            self.moved_at = now
        self.pending += len(chunk)
        self.queue.put((fd, chunk))

    def erased(self) -> bytes:
        """Return bytes that blank the live line, with a ^C that the terminal has echoed after it; empty if there is
        none.

        They are only carriage returns and spaces, which every terminal supports.
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
