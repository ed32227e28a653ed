"""Calls that may take long, in threads, so that the event loop does not wait for them.

There is no pool: it would keep a call for which it could start no thread, and make it later. These threads are daemons:
an exit does not wait for a disk or a name server that hangs.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EAGAIN
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

T = TypeVar("T")

HANGS_S = 5.0
"""Seconds after which files that are read again count as hanging."""
ENDS_WITHIN_S = 0.1
"""Seconds for which a thread that has done its work may still count towards the limit of processes."""


class NoThread(OSError):
    """No thread can be started. The call was not made, and will not be."""

    def __init__(self) -> None:
        super().__init__(EAGAIN, words.NO_THREAD)


async def in_thread(call: Callable[[], T]) -> T:
    """Make a call in a thread of its own, and return its result. Raises `NoThread`, or what the call raises."""
    return await _result(_begun(call, _start))


async def in_thread_or_here(call: Callable[[], T]) -> T:
    """Make a call in a thread, or in the event loop if no thread can be started. Raises what the call raises."""
    try:
        return await in_thread(call)
    except NoThread:
        return call()


async def read_again(read: Callable[[], T], paths: Sequence[str]) -> T:
    """Make a call that reads these files again, as `in_thread_or_here`. Log it if their disk hangs."""
    late = asyncio.get_running_loop().call_later(HANGS_S, log.error, "%s", words.files_hang(paths, HANGS_S))
    try:
        return await in_thread_or_here(read)
    finally:
        late.cancel()


class OneThread:
    """A thread that makes one call after another. The first call starts it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_started = self._has_ended = False
        self._starting = asyncio.Lock()

    async def call(self, call: Callable[[], T]) -> T:
        """Make a call after all earlier ones, and return its result.

        Raises `NoThread` if the thread cannot be started, or what the call raises. A call whose caller is cancelled
        before its turn is not made.
        """
        if self._has_ended:
            raise RuntimeError("the thread has ended")
        async with self._starting:
            if not self._is_started:
                await self._start()
        return await _result(_begun(call, self._calls.put))

    async def _start(self) -> None:
        """Start the thread. Raises `NoThread` if there is no room for one, and no thread is just ending."""
        try:
            _start(self._work)
        except NoThread:
            await asyncio.sleep(ENDS_WITHIN_S)
            _start(self._work)
        self._is_started = True

    def end(self) -> None:
        """Let the thread end after all calls."""
        self._has_ended = True
        self._calls.put(None)

    def _work(self) -> None:
        while work := self._calls.get():
            work()
            del work  # else its result would be kept until the next call


def _begun(call: Callable[[], T], begin: Callable[[Callable[[], None]], None]) -> asyncio.Future[T]:
    """Let `begin` have the call made in another thread. Return a future of the running loop for its result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    begin(partial(_make, call, loop, done))
    return done


def _make(call: Callable[[], T], loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]) -> None:
    """Make the call in this thread, and set the future of the loop."""
    if done.cancelled():
        return
    try:
        tell = partial(done.set_result, call())
    except Exception as error:
        tell = partial(done.set_exception, error)
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_tell, done, tell)
    del done, tell  # an exception keeps this frame, which would keep the future, which keeps the exception


def _tell(done: asyncio.Future[T], tell: Callable[[], None]) -> None:
    if not done.done():
        tell()


async def _result(done: asyncio.Future[T]) -> T:
    try:
        return await done
    finally:
        del done  # as in `_make`


def _start(work: Callable[[], None]) -> None:
    try:
        Thread(target=work, daemon=True).start()
    except RuntimeError:
        raise NoThread from None


class Loop(asyncio.SelectorEventLoop):
    """Event loop whose look-ups of names have threads of their own. They raise `NoThread` if none can be started."""

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        return await in_thread(partial(socket.getaddrinfo, *args, **kwargs))
