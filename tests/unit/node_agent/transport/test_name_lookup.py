"""Names are looked up while a name server is silent, as when the host behind the name is gone."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from node_agent.core.backoff import Unreachable
from node_agent.transport.http import HttpTransport
from tests.support.programs import PATIENCE_S

MORE_THAN_THREADS = 100


class Resolver:
    """The system's, but for hosts that are gone nothing comes until it is let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self._answer = socket.getaddrinfo

    def __call__(self, host: bytes | str, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        self.asked.append(name)
        if name == "localhost":
            return self._answer(host, *args, **kwargs)
        assert self.may_answer.wait(PATIENCE_S)
        if name == "unknown":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._answer("localhost", *args, **kwargs)


@pytest.fixture
async def resolver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Resolver]:
    """Asynchronous, so that it lets go before the loop waits for its threads."""
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.may_answer.set()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A port on which somebody listens."""
    async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def gives_up(transport: HttpTransport) -> None:
    """The transport begins to connect, and is given no time for it."""
    connecting = asyncio.create_task(transport.connect())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting


async def test_tries_of_a_server_that_is_gone_leave_a_thread_for_the_one_that_lives(
    resolver: Resolver, port: int
) -> None:
    for _ in range(MORE_THAN_THREADS):
        await gives_up(HttpTransport("gone", port, None))
    living = HttpTransport("localhost", port, None)
    async with asyncio.timeout(PATIENCE_S):
        await living.connect()
    assert resolver.asked == ["gone", "localhost"]
    await living.close()


async def test_an_answer_for_which_nobody_could_wait_is_there_for_the_next_try(resolver: Resolver, port: int) -> None:
    slow = HttpTransport("slow", port, None)
    await gives_up(slow)
    resolver.may_answer.set()
    async with asyncio.timeout(PATIENCE_S):
        await slow.connect()
    assert resolver.asked == ["slow"]
    await slow.close()


async def test_a_host_that_may_have_moved_is_looked_for_anew(resolver: Resolver, port: int) -> None:
    resolver.may_answer.set()
    moving = HttpTransport("moving", port, None)
    for _ in range(2):
        async with asyncio.timeout(PATIENCE_S):
            await moving.connect()
        await moving.close()
    assert resolver.asked == ["moving", "moving"]


async def test_a_name_that_is_not_known_is_looked_up_again_at_the_next_try(resolver: Resolver, port: int) -> None:
    resolver.may_answer.set()
    for _ in range(2):
        with pytest.raises(Unreachable, match="unknown: Name or service not known"):
            await HttpTransport("unknown", port, None).connect()
    assert resolver.asked == ["unknown", "unknown"]
