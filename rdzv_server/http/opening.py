"""Connections that have been accepted and from which nothing has been read."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from rdzv_server.service.fair_scheduler import scheduler


class Opening:
    """Opening of one connection: it waits until the peer has sent something and has its turn.

    Until then the connection takes 2 kB. Its transport, its protocol and what they read take ten times as much.
    """

    __slots__ = ("_accepted", "_first", "_gone", "_loop", "_peer", "_ready", "_task", "waits_for_turn")

    def __init__(
        self, accepted: socket.socket, peer: str, ready: Callable[[bytes], None], gone: Callable[[], None]
    ) -> None:  # fmt: skip
        """`ready` is called with the first byte, which is not read yet. `gone` is called if the opening ends."""
        self._accepted, self._peer, self._ready, self._gone = accepted, peer, ready, gone
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._first: bytes | None = None
        """First byte that has come; empty if there will be none."""
        self.waits_for_turn = False
        """Whether the peer has sent something, and it is for the server to read it."""

    def begin(self) -> None:
        """Wait for the first byte. As a rule it is there: the system holds connections back until it is."""
        self._accepted.setblocking(False)
        self._first = self._first_byte()
        if self._first is None:
            self._loop.add_reader(self._accepted.fileno(), self._readable)
        else:
            self._wait_for_turn()

    def run(self, task: Coroutine[Any, Any, None]) -> None:
        """Open the connection by this task."""
        self._task = self._loop.create_task(task)

    def cancel(self) -> None:
        """End the opening, and with it the connection if it has no transport yet."""
        if self._task:
            self._task.cancel()
        elif self._accepted.fileno() >= 0:
            self._loop.remove_reader(self._accepted.fileno())
            self._end()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """Task that opens the connection; None before it has its turn."""
        return self._task

    def _readable(self) -> None:
        self._loop.remove_reader(self._accepted.fileno())
        self._first = self._first_byte()
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        """Ask for a turn, beside those of the peer's open connections: as many are opened as are served."""
        self.waits_for_turn = True
        scheduler().ask(f"new {self._peer}", self._take_turn, is_stranger=True)

    def _take_turn(self) -> None:
        self.waits_for_turn = False
        if self._accepted.fileno() < 0:
            return
        if self._first:
            self._ready(self._first)
        else:
            self._end()

    def _first_byte(self) -> bytes | None:
        """First byte that the peer has sent; None if there is none yet, empty if there will be none."""
        try:
            return self._accepted.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _end(self) -> None:
        self._accepted.close()
        self._gone()
