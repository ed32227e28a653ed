"""Calls that may take long, in threads, so that the event loop does not wait for them.

Each call has a thread of its own. A pool would keep a call for which it could start no thread, and make it later. These
threads are daemons: an exit does not wait for a disk or a name server that hangs.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from errno import EAGAIN
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from rdzv_server.words import service as words

T = TypeVar("T")


class NoThread(OSError):
    """No thread can be started. The call was not made, and will not be."""

    def __init__(self) -> None:
        super().__init__(EAGAIN, words.NO_THREAD)


async def in_thread(call: Callable[[], T]) -> T:
    """Make a call in a thread, and return its result. Raises `NoThread`, or what the call raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            tell = partial(done.set_result, call())
        except Exception as error:
            tell = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: done.done() or tell())

    try:
        Thread(target=work, daemon=True).start()
    except RuntimeError:
        raise NoThread from None
    return await done


async def in_thread_or_here(call: Callable[[], T]) -> T:
    """Make a call in a thread, or in the event loop if no thread can be started. Raises what the call raises."""
    try:
        return await in_thread(call)
    except NoThread:
        return call()


class Loop(asyncio.SelectorEventLoop):
    """Event loop whose look-ups of names have threads of their own. They raise `NoThread` if none can be started."""

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        return await in_thread(partial(socket.getaddrinfo, *args, **kwargs))
