"""Garbage on every path gets a 4xx answer and leaves the server unharmed."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import msgpack
import pytest

from protocol import paths
from protocol.codec import decode
from protocol.messages import ErrorReply
from protocol.schema import MAX_MESSAGE_BYTES
from tests.integration.programs import Server

AGENT_PATHS = [paths.JOIN, paths.POLL, paths.REPORT, paths.LEAVE]
OPERATOR_PATHS = [paths.STATUS, paths.HEALTHZ, paths.READYZ]

DEEP: object = 1
for _ in range(100):
    DEEP = [DEEP]

BODIES = {
    "empty": (b"", 400),
    "text": (b"hello", 400),
    "truncated": (msgpack.packb({"run_id": "x"})[:-1], 400),
    "not a map": (msgpack.packb([1, 2, 3]), 400),
    "wrong types": (msgpack.packb({"run_id": 1, "agent_id": [], "node_id": None}), 400),
    "integer keys": (msgpack.packb({1: 2}), 400),
    "deep": (msgpack.packb({"run_id": DEEP}), 400),
    "a promise of 4 GB": (b"\xdd\xff\xff\xff\xff", 400),
    "oversized": (b"\xc1" * (MAX_MESSAGE_BYTES + 1), 413),
    "control characters": (msgpack.packb({"run_id": "a\x00b", "agent_id": "a", "revision": 1}), 400),
}


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server.listen()
    yield server
    await server.end()


async def test_garbage_on_the_agents_paths(server: Server) -> None:
    async with aiohttp.ClientSession(f"http://{server.endpoint}") as session:
        for path in AGENT_PATHS:
            for name, (body, status) in BODIES.items():
                async with session.post(path, data=body) as answer:
                    assert answer.status == status, (path, name)
                    refusal = decode(ErrorReply, await answer.read())
                    assert refusal.code == ("message_too_large" if status == 413 else "malformed_message")
                    assert refusal.message
    await is_unharmed(server)


async def test_oversized_without_a_length(server: Server) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 65_536

    async with (
        aiohttp.ClientSession(f"http://{server.endpoint}") as session,
        session.post(paths.JOIN, data=endless()) as a,
    ):
        assert a.status == 413
    await is_unharmed(server)


async def test_wrong_methods_and_unknown_paths(server: Server) -> None:
    async with aiohttp.ClientSession(f"http://{server.endpoint}") as session:
        for path in AGENT_PATHS:
            async with session.get(path) as answer:
                assert answer.status == 405
        for path in OPERATOR_PATHS:
            async with session.post(path, data=b"x") as answer:
                assert answer.status == 405
        for path in ("/", "/v1", "/v1/agent/../../etc/passwd", "/v1/agent/join/x", "/%00"):
            async with session.get(path) as answer:
                assert answer.status == 404
    await is_unharmed(server)


async def test_bytes_that_are_not_http(server: Server) -> None:
    for noise in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"A" * 100_000 + b"\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(noise)
        answer = await asyncio.wait_for(reader.read(4096), 10)
        assert answer == b"" or (answer.startswith(b"HTTP/1.") and answer.split()[1].startswith(b"4"))
        writer.close()
    await is_unharmed(server)


async def test_agents_that_do_not_exist_are_told_so(server: Server) -> None:
    nobody = {"run_id": "r", "agent_id": "a", "revision": 0, "round": 1, "reason": "x"}
    async with aiohttp.ClientSession(f"http://{server.endpoint}") as session:
        for path in (paths.POLL, paths.REPORT, paths.LEAVE):
            async with session.post(path, data=msgpack.packb(nobody)) as answer:
                assert answer.status == 409
                assert decode(ErrorReply, await answer.read()).code == "agent_fenced"


async def is_unharmed(server: Server) -> None:
    """It answers, knows of no run, and has logged no failure of its own."""
    assert '"runs": []' in await server.get(paths.STATUS)
    assert await server.get(paths.HEALTHZ) == "ok\n"
    assert await server.get(paths.READYZ) == "ready\n"
    assert not any("Traceback" in line or "failed" in line for line in server.err)
