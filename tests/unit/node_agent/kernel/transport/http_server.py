"""A minimal HTTP/1.1 server on a real socket, and examples of requests and of an answer."""

import asyncio
import socket
import ssl
import struct

from rdzv_protocol.codec import encode
from rdzv_protocol.messages import LeaveRequest, PollRequest, Reply, Wait

POLL = PollRequest(run_id="run", agent_id="a.1", revision=7)
LEAVE = LeaveRequest(run_id="run", agent_id="a.1", reason="SIGTERM")
REPLY = Reply(epoch="e", revision=8, lease_s=10.0, directive=Wait(reason="waiting"))


class HttpServer:
    """Reads one request after another. `answer` returns the response."""

    def __init__(self) -> None:
        self.connections = 0
        self._readers: list[asyncio.StreamReader] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._talk, host, port, ssl=tls)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def open(self) -> int:
        """Number of connections that the client has not closed."""
        return sum(not (reader.at_eof() or reader.exception()) for reader in self._readers)

    def reset(self) -> None:
        """Reset the latest connection, as a restarted host does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def send(self, data: bytes) -> None:
        """Send this on the latest connection, although nothing was asked."""
        self._writer.write(data)

    @property
    def endpoint(self) -> tuple[str, int]:
        return self.host, self.port

    async def answer(self, head: str, body: bytes) -> tuple[bytes, bool]:
        """Return the response, and whether the connection stays open."""
        raise NotImplementedError

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self.connections += 1
        self._readers.append(reader)
        self.socket, self._writer = writer.get_extra_info("socket"), writer
        stays = True
        try:
            while stays:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = next(line for line in head.splitlines() if line.startswith("Content-Length:"))
                answer, stays = await self.answer(head, await reader.readexactly(int(size.split()[1])))
                writer.write(answer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()


def http(body: object, status: str = "200 OK", *headers: str) -> bytes:
    """Return a response with these bytes, or with this message."""
    content = body if isinstance(body, bytes) else encode(body)
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content
