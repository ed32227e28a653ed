"""The memory of closed connections is collected when nobody waits for it."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from rdzv_server.config import Limits
from rdzv_server.http import listener
from rdzv_server.http.connection import HttpConnection
from rdzv_server.http.listener import Listener


class Later:
    """Event loop whose timers end when the test says so."""

    def __init__(self) -> None:
        self.due: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: object) -> None:
        assert delay_s == listener.QUIET_S
        self.due.append((callback, args))

    def passes(self) -> None:
        due, self.due = self.due, []
        for callback, args in due:
            callback(*args)


async def test_no_garbage_is_collected_while_many_disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would be answered meanwhile, in the very moment when rounds form anew."""
    collected: list[int] = []
    monkeypatch.setattr(listener, "GARBAGE", 10)
    monkeypatch.setattr(listener.gc, "collect", lambda: collected.append(len(closed)))
    closed: list[HttpConnection] = []
    with socket.socket() as unbound:
        listening = Listener(unbound, asyncio.Protocol, Limits(), None, closed.append)
        listening._loop = later = Later()  # type: ignore[assignment]

        def disconnect(count: int) -> None:
            for _ in range(count):
                timeouts = (listening._arriving, listening._unread)
                gone = HttpConnection(asyncio.Protocol(), "peer", *timeouts, closed.append, closed.append)
                listening._connections.add(gone)
                listening._gone(gone)

        disconnect(9)
        assert not later.due, "a few are left to Python"
        for _ in range(3):
            disconnect(10)
            later.passes()
            assert not collected
        later.passes()
        assert collected == [39]
        later.passes()
        assert collected == [39] and not later.due, "until as many have closed again"
