"""Calls that may never return, such as those to a network disk or a name server, without blocking the event loop.

Each call has a thread of its own: an event loop has few threads for such calls, and waits for them before it closes.
These threads are daemons, so that an exit does not wait for them.
"""

import asyncio
import socket
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from errno import ETIMEDOUT
from functools import partial
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from node_agent import words

T = TypeVar("T")

LEFT_BEHIND_S = 2.0
"""Most seconds that the end of an event loop waits for its threads."""

_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, list[LockType]] = WeakKeyDictionary()
"""Locks that threads hold while they run, by the loop that has started them. Some threads may have ended."""
_unclaimed: WeakKeyDictionary[asyncio.AbstractEventLoop, set[Callable[[], object]]] = WeakKeyDictionary()
"""Undo functions for results that threads have passed to a loop and that the loop has not taken yet."""


async def in_thread(
    call: Callable[[], T], within_s: float | None = None, undo: Callable[[T], object] = lambda result: None
) -> T:
    """Make a call in a thread, and return its result.

    Raises what the call raises, and `OSError` if it takes longer than `within_s`. If a result comes after the caller
    has stopped waiting, `undo` is called with it, perhaps in a thread. An exiting interpreter does not start threads;
    the call is then made in this thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    untaken = _unclaimed.setdefault(loop, set())

    def work() -> None:
        try:
            result = call()
        except Exception as error:
            _tell(loop, fail, error)
        else:
            undo_it = partial(undo, result)
            untaken.add(undo_it)
            if not _tell(loop, partial(tell, undo_it), result) and _take(untaken, undo_it):
                undo_it()

    def tell(undo_it: Callable[[], object], result: T) -> None:
        untaken.discard(undo_it)
        if future.done():
            _start(loop, undo_it)
        else:
            future.set_result(result)

    def fail(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    if not _start(loop, work):
        return call()
    try:
        async with asyncio.timeout(within_s):
            return await future
    except TimeoutError as error:
        raise OSError(ETIMEDOUT, words.output.disk_hangs(within_s or 0.0)) from error


def leave_to_thread(call: Callable[[], object]) -> None:
    """Make a call in a thread without waiting for it, and drop its `OSError`."""

    def work() -> None:
        with suppress(OSError):
            call()

    if not _start(asyncio.get_running_loop(), work):
        work()


def join_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Wait for the threads of a closed loop. A thread that still hangs after `LEFT_BEHIND_S` is left behind.

    Results that came too late for the loop are undone.
    """
    give_up_at = monotonic() + LEFT_BEHIND_S
    for thread in _threads.pop(loop, ()):
        thread.acquire(timeout=max(0.0, give_up_at - monotonic()))
    untaken = _unclaimed.pop(loop, set())
    for undo_it in list(untaken):
        if _take(untaken, undo_it):
            undo_it()


class ThreadLoop(asyncio.SelectorEventLoop):
    """Event loop of a thread other than the main one.

    Its look-ups are made by `in_thread`, because an exiting interpreter has no other threads for them.
    At its end the loop waits for such threads for a moment.
    """

    def close(self) -> None:
        super().close()
        join_threads(self)

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        return await in_thread(partial(socket.getaddrinfo, *args, **kwargs))


def _take(untaken: set[Callable[[], object]], undo_it: Callable[[], object]) -> bool:
    """Remove the undo function in one step. Return False if another thread has taken it."""
    try:
        untaken.remove(undo_it)
    except KeyError:
        return False
    return True


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[T], None], value: T) -> bool:
    """Call back in the loop. Return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, value)
    except RuntimeError:
        return False
    return True


def _start(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> bool:
    """Start a thread. Return False if none can be started."""
    lasts = allocate_lock()
    lasts.acquire()

    def begin() -> None:
        try:
            work()
        finally:
            lasts.release()

    try:
        start_new_thread(begin, ())  # not `threading.Thread`, whose start waits until the thread runs
    except RuntimeError:
        return False
    _threads[loop] = [other for other in _threads.get(loop, ()) if other.locked()] + [lasts]
    return True
