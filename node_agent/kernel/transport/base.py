"""Transport to a server: one exchange at a time, over HTTP or within the process."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from rdzv_protocol.messages import Ack, Reply, Request

from node_agent.kernel.output.threads import in_thread, join_threads

T = TypeVar("T")


class Transport(Protocol):
    """A connection to the server, opened anew when it is needed. An agent has two, side by side."""

    async def connect(self) -> str:
        """Make sure that there is a connection; returns this node's address on it. Raises `Unreachable`."""

    async def exchange(self, request: Request) -> Reply | Ack:
        """Send a request and return its answer. Raises the `ProtocolError` that refuses it, or `Unreachable`."""

    async def close(self) -> None:
        """Give the connection up."""


def spawn(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]] | None = None) -> asyncio.Task[None]:
    """Start a task that nobody awaits: its exception goes to the event loop's handler. `tasks` has it until it ends."""
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
    """Result of a call that may block for long, such as one that waits for a name server, in a thread of its own."""
    return await in_thread(partial(function, *args, **kwargs))


class ThreadLoop(asyncio.SelectorEventLoop):
    """Event loop of a thread beside the main one. Its look-ups have threads of their own (`in_own_thread`): an
    interpreter that exits has no other thread left for them. The end of the loop waits for such threads for a moment.
    """

    def close(self) -> None:
        super().close()
        join_threads(self)

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        return await in_own_thread(socket.getaddrinfo, *args, **kwargs)
