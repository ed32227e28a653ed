"""Garbage is looked for when nobody waits for it: a little at a time, and after a mass disconnect in a quiet moment."""

import asyncio
from collections.abc import Callable

import pytest
from rdzv_protocol import paths

from rdzv_server.http import garbage
from rdzv_server.http.garbage import CLOSED, QUIET_S, YOUNG_S, GarbageCollector
from rdzv_server.server import RendezvousServer, bind

PATIENCE_S = 20.0


class Later:
    """Event loop whose timers end when the test says so."""

    def __init__(self) -> None:
        self.due: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: object) -> None:
        assert delay_s == QUIET_S
        self.due.append((callback, args))

    def passes(self) -> None:
        due, self.due = self.due, []
        for callback, args in due:
            callback(*args)


async def test_no_garbage_is_collected_while_many_disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would be answered meanwhile, in the very moment when rounds form anew."""
    collected: list[int] = []
    monkeypatch.setattr(garbage, "CLOSED", 10)
    monkeypatch.setattr(garbage.gc, "collect", lambda: collected.append(closed))
    collector, closed = GarbageCollector(), 0
    collector._loop = later = Later()  # type: ignore[assignment]

    def disconnect(count: int) -> None:
        nonlocal closed
        for _ in range(count):
            closed += 1
            collector.connection_closed()

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


async def test_new_objects_are_looked_through_once_soon_after_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are not left until ten thousand more were made than freed: by then a million may have been made."""
    looked: asyncio.Queue[int] = asyncio.Queue()
    monkeypatch.setattr(garbage.gc, "collect", looked.put_nowait)
    async with asyncio.timeout(PATIENCE_S), RendezvousServer() as server:
        listener = bind("127.0.0.1", 0)
        await server.listen(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        for _ in range(3):
            writer.write(f"GET {paths.HEALTHZ} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            assert await looked.get() == 0, "what the request has made, and no more"
        writer.close()


async def test_many_requests_at_once_are_one_look_and_none_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(garbage.gc, "collect", looked.append)
    collector, loop = GarbageCollector(), asyncio.get_running_loop()
    for times in (1, 2):
        for _ in range(CLOSED):
            collector.request_arrived()
        over = loop.create_future()
        loop.call_at(loop.time() + 2 * YOUNG_S, over.set_result, None)
        await over
        assert looked == [0] * times
