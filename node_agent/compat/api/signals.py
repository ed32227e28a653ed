"""Signals that a program with workers listens to: in the main thread alone, and never instead of its own handlers."""

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
_BELL = b"\0"

_listeners: defaultdict[int, list[Callback]] = defaultdict(list)


class SignalWatch:
    """Calls back, in the main thread, for signals that nobody else handles. Does nothing in other threads.

    SIGINT stays Python's: it is `KeyboardInterrupt`.
    """

    def __init__(self, names: Sequence[str], callback: Callback) -> None:
        self._callback = callback
        asked = [signal.Signals[name] for name in names if name != "SIGINT"] if _in_main_thread() else []
        self._signals = [signum for signum in asked if signal.getsignal(signum) in (signal.SIG_DFL, _dispatch)]
        for signum in self._signals:
            _listeners[signum].append(callback)
            signal.signal(signum, _dispatch)

    def close(self) -> None:
        """Put back the handlers that were there before; in another thread, leave that to the next signal."""
        for signum in self._signals:
            _listeners[signum].remove(self._callback)
            if not _listeners[signum] and _in_main_thread():
                _put_back(signum)
        self._signals.clear()


class Bell:
    """Ends a wait of the main thread: rung by any thread, or by the kernel for a signal.

    Python runs handlers between two of its steps. A wait is not interrupted by a signal that comes just before it
    begins, or to another thread. While this is installed as Python's wakeup descriptor, such a signal ends the wait.

    A handler may raise anything at any time. So `install` belongs inside a `try`, and its `finally` has the line
    `if bell.before: signal.set_wakeup_fd(bell.before[0])`, which a handler cannot interrupt; then comes `removed`.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.before: list[int] = []
        """Wakeup descriptor of the program's own, or -1, while this one takes its place."""
        self._signals = b""

    def install(self) -> None:
        """Become the wakeup descriptor. Only the main thread may do so."""
        self.before.extend(map(signal.set_wakeup_fd, (self._writer,)))  # in one step, or a handler comes between

    def ring(self) -> None:
        """End the wait that is going on, or else the next one. Any thread may do so."""
        with suppress(BlockingIOError):  # it has been rung more than enough
            os.write(self._writer, _BELL)

    def wait(self, limit_s: float) -> None:
        """Return when it is rung, when a signal has come, or when the time is up."""
        waited = select.poll()
        waited.register(self._reader, select.POLLIN)
        waited.poll(ceil(1000 * min(limit_s, _LONGEST_WAIT_S)))
        self._drain()

    def removed(self) -> None:
        """Tell the program's own wakeup descriptor, an event loop's for instance, of the signals that have come."""
        self._drain()
        for owner in self.before:
            if owner >= 0 and self._signals:
                with suppress(OSError):  # it is full, or closed
                    os.write(owner, self._signals)
        self.before.clear()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            self._signals += os.read(self._reader, 1 << 16).replace(_BELL, b"")

    def __del__(self) -> None:
        if not self.before:  # else Python may still write to it
            os.close(self._reader)
            os.close(self._writer)


def undo_in_child() -> None:
    """Give a forked child the program's handlers, but for those of event loops, which it does not have."""
    signal.set_wakeup_fd(-1)  # or the program's event loop would hear of the child's signals
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
