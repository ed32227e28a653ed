"""Transport to a server: one exchange at a time, over HTTP or within the process."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from rdzv_protocol.messages import Ack, Reply, Request

from node_agent.kernel.threads import in_thread, join_threads

T = TypeVar("T")


class Transport(Protocol):
    """A connection to the server, reopened when needed. An agent uses two at the same time."""

    async def connect(self) -> str:
        """Make sure that there is a connection, and return this node's address on it. Raises `Unreachable`."""

    async def exchange(self, request: Request) -> Reply | Ack:
        """Send a request and return its answer. Raises `Unreachable`, or the `ProtocolError` with which the server
        refuses.
        """

    async def close(self) -> None:
        """Close the connection."""


def spawn(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]] | None = None) -> asyncio.Task[None]:
    """Start a task that is never awaited. The loop's handler gets its exception. `tasks` holds it until it ends."""
    task = asyncio.create_task(work)
    if tasks is not None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    task.add_done_callback(_raise)
    return task


def _raise(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()


async def in_own_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a call in a thread of its own and return its result. For calls that may block for long, such as look-ups."""
    return await in_thread(partial(function, *args, **kwargs))


class ThreadLoop(asyncio.SelectorEventLoop):
    """Event loop of a thread other than the main one.

    Its look-ups run in threads of their own (`in_own_thread`), because an exiting interpreter has no other threads for
    them. At its end the loop waits for such threads for a moment.
    """

    def close(self) -> None:
        super().close()
        join_threads(self)

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        return await in_own_thread(socket.getaddrinfo, *args, **kwargs)
