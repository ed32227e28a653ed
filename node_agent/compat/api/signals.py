"""Signals that a program with workers handles, only in the main thread, and never in place of its own handlers."""

import os
import select
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import ceil
from types import FrameType

Callback = Callable[[signal.Signals], None]

_LONGEST_WAIT_S = 1e6
_WAKEUP = b"\0"

_listeners: defaultdict[int, list[Callback]] = defaultdict(list)


class SignalWatch:
    """Calls back, in the main thread, for signals without a handler. Does nothing in other threads.

    SIGINT keeps Python's handler, which raises `KeyboardInterrupt`.
    """

    def __init__(self, names: Sequence[str], callback: Callback) -> None:
        self._callback = callback
        asked = [signal.Signals[name] for name in names if name != "SIGINT"] if _in_main_thread() else []
        self._signals = [signum for signum in asked if signal.getsignal(signum) in (signal.SIG_DFL, _dispatch)]
        for signum in self._signals:
            _listeners[signum].append(callback)
            signal.signal(signum, _dispatch)

    def close(self) -> None:
        """Restore the previous handlers. In another thread, leave that to the next signal."""
        for signum in self._signals:
            _listeners[signum].remove(self._callback)
            if not _listeners[signum] and _in_main_thread():
                _put_back(signum)
        self._signals.clear()


class WakeupPipe:
    """Ends a wait of the main thread. Any thread can call `wake`; the kernel wakes it for a signal.

    Python runs signal handlers between two of its steps. A signal does not interrupt a wait if it comes just before the
    wait begins, or to another thread. While this pipe is Python's wakeup descriptor, such a signal ends the wait.

    A handler may raise anything at any time. So call `install` inside a `try`, whose `finally` has the line `if
    pipe.before: signal.set_wakeup_fd(pipe.before[0])`, which a handler cannot interrupt, and then calls `removed`.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.before: list[int] = []
        """The program's own wakeup descriptor, or -1, while this one replaces it."""
        self._signals = b""

    def install(self) -> None:
        """Become the wakeup descriptor. Only the main thread may call this."""
        # in one step, so that no handler can run in between
        self.before.extend(map(signal.set_wakeup_fd, (self._writer,)))

    def wake(self) -> None:
        """End the current wait, or else the next one. Any thread may call this."""
        with suppress(BlockingIOError):  # it is full, so it wakes the thread anyway
            os.write(self._writer, _WAKEUP)

    def wait(self, limit_s: float) -> None:
        """Return when another thread calls `wake`, a signal has come, or the time is up."""
        waited = select.poll()
        waited.register(self._reader, select.POLLIN)
        waited.poll(ceil(1000 * min(limit_s, _LONGEST_WAIT_S)))
        self._drain()

    def removed(self) -> None:
        """Pass signals that have come to the program's own wakeup descriptor, for example an event loop's."""
        self._drain()
        for owner in self.before:
            if owner >= 0 and self._signals:
                with suppress(OSError):  # it is full, or closed
                    os.write(owner, self._signals)
        self.before.clear()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            self._signals += os.read(self._reader, 1 << 16).replace(_WAKEUP, b"")

    def __del__(self) -> None:
        if not self.before:  # otherwise Python may still write to it
            os.close(self._reader)
            os.close(self._writer)


def undo_in_child() -> None:
    """Give a forked child the program's handlers, except those of event loops, which the child does not have."""
    signal.set_wakeup_fd(-1)  # otherwise the program's event loop would receive the child's signals
    _listeners.clear()
    for signum in signal.valid_signals():
        handler = signal.getsignal(signum)
        module = getattr(getattr(handler, "func", handler), "__module__", None) or ""
        if handler is _dispatch or module.startswith("asyncio."):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


def _dispatch(signum: int, frame: FrameType | None) -> None:
    callbacks = list(_listeners[signum])
    for callback in callbacks:
        callback(signal.Signals(signum))
    if not callbacks:
        _put_back(signum)
        os.kill(os.getpid(), signum)


def _put_back(signum: int) -> None:
    if signal.getsignal(signum) is _dispatch:
        signal.signal(signum, signal.SIG_DFL)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
