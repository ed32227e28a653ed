"""Agents take precedence over operators, over HTTP: operators wait, and agents do not."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest
from rdzv_protocol import paths
from rdzv_protocol.codec import encode
from rdzv_protocol.messages import PollRequest
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.config import Limits
from rdzv_server.server import RendezvousServer, bind
from rdzv_server.service.operator_scheduler import operator_scheduler
from tests.support.scenario import RUN_ID, Connection, a_join

OPERATORS = 60
PATIENCE_S = 20.0
REQUEST_S = 0.3
LOOKS = (paths.STATUS, f"{paths.STATUS}?run_id={RUN_ID}", paths.events_of(RUN_ID), paths.METRICS, paths.ROOT)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with RendezvousServer() as server:
        listener = bind("127.0.0.1", 0)
        await server.listen(listener)
        settings = RequestedSettings(min_nodes=1, max_nodes=1)
        await server.rendezvous.ask(a_join("agent", settings=settings), Connection("agent"))
        yield listener.getsockname()[1]


async def connected(port: int) -> socket.socket:
    """Return a connection that the server has accepted and answered once."""
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, look(paths.HEALTHZ))
    assert (await loop.sock_recv(client, 65_536)).startswith(b"HTTP/1.1 200 ")
    return client


def look(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def poll() -> bytes:
    body = encode(PollRequest(run_id=RUN_ID, agent_id="agent", revision=0, hold=False))
    head = f"POST {paths.POLL} HTTP/1.1\r\nHost: x\r\nContent-Type: {paths.MEDIA_TYPE}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("request_", [poll(), look(paths.READYZ)], ids=["agent", "probe"])
async def test_an_agent_and_a_probe_that_come_last_are_answered_among_the_first(port: int, request_: bytes) -> None:
    clients = [await connected(port) for _ in range(OPERATORS + 1)]
    requests = [look(LOOKS[number % len(LOOKS)]) for number in range(OPERATORS)] + [request_]
    for client, request in zip(clients, requests, strict=True):
        assert client.send(request) == len(request)  # the server, on this same loop, reads none of them before the last
    answered: list[int] = []

    async def wait_for(number: int) -> None:
        answer = await asyncio.get_running_loop().sock_recv(clients[number], 65_536)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        answered.append(number)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*map(wait_for, range(OPERATORS + 1)))
    assert answered.index(OPERATORS) < OPERATORS // 4, answered
    assert len(answered) == OPERATORS + 1, "no operator is forgotten"
    for client in clients:
        client.close()


async def test_a_request_that_waits_for_its_slice_is_not_taken_for_one_that_does_not_arrive() -> None:
    async with RendezvousServer() as server:
        listener = bind("127.0.0.1", 0)
        await server.listen(listener, limits=Limits(request_s=REQUEST_S))
        client = await connected(listener.getsockname()[1])
        operator_scheduler().ask("somebody else", work_for_longer_than_a_request_may_take)
        assert client.send(look(paths.STATUS))
        answer = await asyncio.get_running_loop().sock_recv(client, 65_536)
        assert answer.startswith(b"HTTP/1.1 200 ")
        client.close()


def work_for_longer_than_a_request_may_take() -> None:
    """Work without a break. Another piece of at least the same length follows."""
    until = time.thread_time() + 2 * REQUEST_S
    while time.thread_time() < until:
        pass
