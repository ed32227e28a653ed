"""How the agent reaches a server: one exchange at a time, over HTTP or within the process."""

import asyncio
from typing import Any, Protocol

from rdzv_protocol.messages import Ack, Reply, Request


def raise_in_loop(task: "asyncio.Task[Any]") -> None:
    """Callback of a task that nobody awaits: its exception goes to the event loop's handler when it ends."""
    if not task.cancelled():
        task.result()


class Link(Protocol):
    """A line to the server. A second line may be open beside it."""

    async def connect(self) -> str:
        """Make sure that the line stands; returns this node's address on it. Raises `Unreachable`."""

    async def exchange(self, request: Request) -> Reply | Ack:
        """Send a request and return its answer. Raises the `ProtocolError` that refuses it, or `Unreachable`."""

    async def close(self) -> None:
        """Give the line up."""
