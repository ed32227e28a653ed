"""Connections that have been accepted but have no transport yet; in a crowd of strangers, these are most of them."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from rdzv_server.service.fair_scheduler import FairScheduler


class PendingConnection:
    """An accepted connection, which waits until its peer has sent something and has its turn.

    Until then the connection takes 3 kB. Its transport, its protocol and what they read take several times as much.
    """

    __slots__ = ("_accepted", "_gone", "_loop", "_peer", "_read", "_ready", "_task", "_turns", "waits_for_turn")

    def __init__(
        self, accepted: socket.socket, peer: str, turns: FairScheduler, read: Callable[[socket.socket], bytes],
        ready: Callable[[bytes], None], gone: Callable[[], None],
    ) -> None:  # fmt: skip
        """`ready` is called with the result of `read`, in the peer's turn. `gone` is called if the opening ends."""
        self._accepted, self._peer, self._turns = accepted, peer, turns
        self._loop = asyncio.get_running_loop()
        self._read, self._ready, self._gone = read, ready, gone
        self._task: asyncio.Task[None] | None = None
        self.waits_for_turn = False
        """Whether the peer has sent something that the server has not read yet."""

    def begin(self) -> None:
        """Wait for data from the peer."""
        self._accepted.setblocking(False)
        self._loop.add_reader(self._accepted, self._wait_for_turn)

    def run(self, task: Coroutine[Any, Any, None]) -> None:
        """Open the connection by this task."""
        self._task = self._loop.create_task(task)
        self._task.add_done_callback(self._end_if_cancelled)

    def cancel(self) -> None:
        """End the opening, and with it the connection if it has no transport yet."""
        if self._task:
            self._task.cancel()
        elif self._accepted.fileno() >= 0:
            self._loop.remove_reader(self._accepted)
            self._end()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """Task that opens the connection; None before its turn."""
        return self._task

    def _wait_for_turn(self) -> None:
        """Ask for a turn, in a queue beside the peer's open connections: openings and open ones get equal turns."""
        self._loop.remove_reader(self._accepted)
        self.waits_for_turn = True
        self._turns.ask(f"new {self._peer}", self._take_turn, is_unauthenticated=True)

    def _take_turn(self) -> None:
        self.waits_for_turn = False
        if self._accepted.fileno() < 0:
            return
        try:
            received = self._read(self._accepted)
        except OSError:
            received = b""
        if received:
            self._ready(received)
        else:
            self._end()

    def _end_if_cancelled(self, task: asyncio.Task[None]) -> None:
        """End the connection if its task was cancelled. A task that never began cannot do that itself."""
        if task.cancelled():
            self._end()

    def _end(self) -> None:
        self._accepted.close()
        self._gone()
