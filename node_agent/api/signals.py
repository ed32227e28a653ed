"""Signals that a program with workers listens to: in the main thread alone, and never instead of its own handlers."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

Callback = Callable[[signal.Signals], None]

_listeners: dict[int, list[Callback]] = {}
_replaced: dict[int, Any] = {}
"""Handlers that ours stand in for."""


class SignalWatch:
    """Calls back, in the main thread, for signals that nobody else handles. Does nothing in other threads.

    SIGINT stays Python's: it is `KeyboardInterrupt`.
    """

    def __init__(self, names: Sequence[str], callback: Callback) -> None:
        self._callback = callback
        self._signals = [signal.Signals[name] for name in names if name != "SIGINT"] if _in_main_thread() else []
        for signum in self._signals:
            if signum in _replaced or signal.getsignal(signum) is signal.SIG_DFL:
                _listeners.setdefault(signum, []).append(callback)
                if signum not in _replaced:
                    _replaced[signum] = signal.signal(signum, _dispatch)

    def stop(self) -> None:
        """Put back what was there before; from another thread that is left to the next signal."""
        for signum in self._signals:
            listeners = _listeners.get(signum, [])
            if self._callback in listeners:
                listeners.remove(self._callback)
            if not listeners and signum in _replaced and _in_main_thread():
                _put_back(signum)


def undo_in_child() -> None:
    """In a process that was forked: its handlers are the program's again, but for those of the program's event loops,
    which are not there any more.
    """
    for signum in list(_replaced):
        _put_back(signum)
    _listeners.clear()
    for signum in signal.valid_signals():
        handler = signal.getsignal(signum)
        function = getattr(handler, "func", handler)
        if callable(handler) and str(getattr(function, "__module__", "")).startswith("asyncio."):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


def _dispatch(signum: int, frame: FrameType | None) -> None:
    callbacks = list(_listeners.get(signum, ()))
    for callback in callbacks:
        callback(signal.Signals(signum))
    if not callbacks:
        _put_back(signum)
        os.kill(os.getpid(), signum)


def _put_back(signum: int) -> None:
    handler = _replaced.pop(signum, None)
    if signal.getsignal(signum) is _dispatch:
        signal.signal(signum, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
