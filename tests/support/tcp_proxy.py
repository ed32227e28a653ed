"""TCP proxy on loopback that can hold traffic back, and record the HTTP exchanges that pass through it."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """A request, and the answer of the server behind the proxy. `at`: time of the answer, by CLOCK_MONOTONIC."""

    at: float
    proxy: str
    path: str
    request: bytes
    status: int
    answer: bytes


class TcpProxy:
    """Proxy to `target`, HOST:PORT, which may change. An async context manager.

    `exchanges`: list to which HTTP exchanges are appended, in the order of their answers. Several proxies may share it.
    `on_request`: called with the path and the body of each HTTP request that is passed on.
    """

    def __init__(
        self,
        target: str = "",
        exchanges: list[Exchange] | None = None,
        on_request: Callable[[str, bytes], None] | None = None,
    ) -> None:
        self.target = target
        self._exchanges = exchanges
        self._on_request = on_request
        self._passes, self._answers_pass = asyncio.Event(), asyncio.Event()
        self.release()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._opened = asyncio.Semaphore(0)
        self._held = asyncio.Event()

    async def __aenter__(self) -> "TcpProxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        """Hold all bytes back from now on and refuse nothing, like a network that drops packets."""
        self._passes.clear()
        self.hold_answers()

    def hold_answers(self) -> None:
        """Hold only the bytes from the target back, like a network that drops packets in one direction."""
        self._answers_pass.clear()

    def hold_answers_of_new(self) -> asyncio.Event:
        """Hold the bytes from the target back on connections that open from now on, until `release`.

        Return the event of the other connections: their bytes arrive while it is set.
        """
        of_open, self._answers_pass = self._answers_pass, asyncio.Event()
        return of_open

    async def holds(self) -> None:
        """Return once further bytes are held back."""
        self._held.clear()
        await self._held.wait()

    def release(self) -> None:
        """Let the held bytes arrive."""
        self._passes.set()
        self._answers_pass.set()

    async def drop(self, connections: int) -> None:
        """Close all connections, like a balancer that restarts. Return when this number of connections has been
        reopened.
        """
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:  # a task that was cancelled before its start closes nothing
            writer.close()
        self._writers.clear()
        self._opened = asyncio.Semaphore(0)
        for _ in range(connections):
            await self._opened.acquire()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            host, _, port = self.target.rpartition(":")
            there, to_there = await asyncio.open_connection(host, int(port))
        except (OSError, asyncio.CancelledError):
            writer.close()
            return
        finally:
            self._tasks.discard(task)
        self._writers |= {writer, to_there}
        self._opened.release()
        on_request, on_answer = self._observers()
        for source, sink, observe, passes in (
            (reader, to_there, on_request, self._passes),
            (there, writer, on_answer, self._answers_pass),
        ):
            pipe = asyncio.create_task(self._pipe(source, sink, observe, passes))
            self._tasks.add(pipe)
            pipe.add_done_callback(self._tasks.discard)

    def _observers(self) -> tuple[Callable[[bytes], None], ...]:
        """Return the observers of a connection's bytes to and from the server."""
        exchanges = self._exchanges
        if exchanges is None:
            return _ignore, _ignore
        pending: list[tuple[str, bytes]] = []

        def on_request(line: str, body: bytes) -> None:
            path = line.split()[1]
            pending.append((path, body))
            if self._on_request:
                self._on_request(path, body)

        def on_answer(line: str, body: bytes) -> None:
            exchanges.append(Exchange(time.monotonic(), self.address, *pending.pop(0), int(line.split()[1]), body))

        return _HttpMessages(on_request).feed, _HttpMessages(on_answer).feed

    async def _pipe(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        observe: Callable[[bytes], None],
        passes: asyncio.Event,
    ) -> None:
        with suppress(ConnectionError):
            try:
                while chunk := await source.read(1 << 16):
                    if not passes.is_set():
                        self._held.set()
                        await passes.wait()
                    observe(chunk)
                    sink.write(chunk)
                    await sink.drain()
            finally:
                sink.close()
                self._writers.discard(sink)


class _HttpMessages:
    """HTTP messages of one direction."""

    def __init__(self, found: Callable[[str, bytes], None]) -> None:
        self._found = found
        self._buffer = b""

    def feed(self, chunk: bytes) -> None:
        self._buffer += chunk
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            line, *headers = head.decode().split("\r\n")
            fields = {name.lower(): value for name, _, value in (header.partition(": ") for header in headers)}
            is_chunked = "transfer-encoding" in fields
            message = _chunked(rest) if is_chunked else _sized(rest, int(fields.get("content-length", 0)))
            if message is None:
                return
            body, self._buffer = message
            self._found(line, body)


def _sized(rest: bytes, length: int) -> tuple[bytes, bytes] | None:
    """Return a body of this length and the rest, None until the body is complete."""
    return (rest[:length], rest[length:]) if len(rest) >= length else None


def _chunked(rest: bytes) -> tuple[bytes, bytes] | None:
    """Return the same for a body in chunks (RFC 9112, 7.1), without trailers."""
    body = b""
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if len(rest) < length + 2:
            return None
        body, rest = body + rest[:length], rest[length + 2 :]
        if not length:
            return body, rest
    return None


def _ignore(chunk: bytes) -> None:
    pass
