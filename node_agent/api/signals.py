"""Signals that a program with workers listens to: in the main thread alone, and never instead of its own handlers."""

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import FrameType

Callback = Callable[[signal.Signals], None]

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


def undo_in_child() -> None:
    """Give a forked child the program's handlers, but for those of event loops, which it does not have."""
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
