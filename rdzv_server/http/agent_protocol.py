"""HTTP of connections that carry agents' requests, without aiohttp. aiohttp handles every other request.

Each agent of a large run sends a request at the same moment, and aiohttp takes half of the time of a request. So a
request in the plain form that agents send is parsed by httptools and answered here. If a request has any other form,
aiohttp gets it, and everything that follows on its connection. So all rules about bad HTTP are aiohttp's. See ADR 72.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from typing import cast

from aiohttp.helpers import rfc822_formatted_time
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct
from rdzv_protocol import paths

from rdzv_server.http.connection import HttpConnection
from rdzv_server.http.request_handler import Server
from rdzv_server.http.responses import HEADERS
from rdzv_server.service.timeouts import Timeouts
from rdzv_server.words import http as words

log = logging.getLogger("rdzv_server")

MOST_BYTES = 8_192
"""Most bytes of a request that is answered here, with its head."""
MOST_PIECES = 4
"""Most pieces in which such a request may arrive: it is parsed anew with each."""
MOST_HEADERS = 64
_UNUSUAL = frozenset({"content-encoding", "cookie", "expect", "proxy-connection", "transfer-encoding"})
"""Headers that no agent sends, and that change how a request is handled."""
_NEEDED = frozenset({"content-length", "host"})


class AgentRequest(Struct, frozen=True):
    """A whole request of an agent."""

    path: str
    headers: dict[str, str]
    """Values of the headers, by name in lower case."""
    body: bytes
    peer: str
    """Address of the sender."""
    is_tls: bool


class AgentAnswer(Struct, frozen=True):
    """Answer to an agent: a status, and a message in msgpack."""

    status: int
    body: bytes
    is_last: bool = False
    """Whether the connection is closed after it."""


Answer = Callable[[AgentRequest, HttpConnection], Awaitable[AgentAnswer]]


class AgentServer:
    """Maker of the protocols of one server's connections, as aiohttp's `Server` is."""

    def __init__(self, answer: Answer, agent_paths: Collection[str], others: Server, idle_s: float) -> None:
        """Prepare a server. `answer` answers a request to one of `agent_paths`, and raises nothing.

        `others`: aiohttp's server, for all other requests. `idle_s`: most seconds from an answer to the connection's
        next request.
        """
        self.answer, self.others = answer, others
        self._starts = tuple(f"POST {path} HTTP/1.1\r\n".encode() for path in agent_paths)
        self.idle = Timeouts[AgentProtocol](idle_s, lambda protocol: protocol.close())
        self.open: set[AgentProtocol] = set()

    def __call__(self) -> "AgentProtocol":
        return AgentProtocol(self)

    def may_be_agents(self, data: bytes) -> bool:
        """Return whether `data` begins a request to a path of agents."""
        return data.startswith(self._starts)

    async def shutdown(self, timeout_s: float) -> None:
        """Close all connections: each after the answer that is being made, within `timeout_s` seconds."""
        self.others.pre_shutdown()
        answering = [protocol.finish() for protocol in self.open]
        await asyncio.gather(
            self.others.shutdown(timeout_s),
            *(asyncio.wait([task], timeout=timeout_s) for task in answering if task),
        )
        for protocol in list(self.open):
            protocol.close()


class AgentProtocol:
    """HTTP of one connection, until a request comes that aiohttp has to handle."""

    __slots__ = (
        "_connection",
        "_is_closing",
        "_is_paused",
        "_later",
        "_peer",
        "_pieces",
        "_received",
        "_server",
        "_task",
        "_transport",
    )

    drops_rest = False

    def __init__(self, server: AgentServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._connection: HttpConnection | None = None
        """Connection of the transport, which asyncio no longer knows once the peer is gone."""
        self._peer = ""
        self._task: asyncio.Task[None] | None = None
        """Task that answers the current request."""
        self._received, self._pieces = b"", 0
        """Received part of the next request, and the number of its pieces."""
        self._later = b""
        """Data that arrived while the current request was being answered."""
        self._is_paused = self._is_closing = False

    @property
    def is_whole(self) -> bool:
        """Whether the last request has arrived to its last byte, and no other has begun."""
        return not (self._received or self._later)

    @property
    def is_full(self) -> bool:
        """Whether no more is read until the current request is answered."""
        return len(self._later) >= MOST_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connection = cast(HttpConnection, self._transport.get_protocol())
        self._peer = str((transport.get_extra_info("peername") or ("",))[0])
        self._server.open.add(self)

    def data_received(self, data: bytes) -> None:
        if self._connection is None or self._connection.is_lost:
            return
        if self._task is None and not self._is_paused:
            self._take(self._received + data)
            return
        self._later += data
        if self.is_full and self._transport:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._task is None:
            self._take_later()

    def connection_lost(self, error: BaseException | None) -> None:
        self._forget()
        if self._task:
            self._task.cancel()

    def close(self) -> None:
        """Close the connection."""
        if self._transport:
            self._transport.close()

    def finish(self) -> asyncio.Task[None] | None:
        """Close the connection after the current answer. Return the task that makes it; None if there is none."""
        self._is_closing = True
        if self._task is None:
            self.close()
        return self._task

    def _take(self, data: bytes) -> None:
        """Begin to answer the request if it is whole, or give its connection to aiohttp if it is not an agent's."""
        assert self._transport and self._connection
        self._server.idle.stop(self)
        self._received, self._pieces = data, self._pieces + 1
        parsed = self._parse(data, self._connection)
        if parsed is None:
            self._hand_over(data)
        elif parsed.is_whole:
            self._received, self._pieces = b"", 0
            is_tls = self._transport.get_extra_info("sslcontext") is not None
            request = AgentRequest(parsed.path, parsed.headers, parsed.body, self._peer, is_tls)
            self._task = asyncio.get_running_loop().create_task(self._respond(request, self._connection))

    def _parse(self, data: bytes, connection: HttpConnection) -> "_Parsed | None":
        """Parse the received part of a request. Return None if aiohttp has to handle it.

        That includes a stranger's request without all of its body: aiohttp refuses it by its head.
        """
        if len(data) > MOST_BYTES or self._pieces > MOST_PIECES or connection.lacks_tls:
            return None
        parsed = parse(data) if self._server.may_be_agents(data) else None
        if parsed and parsed.has_head and not parsed.is_whole and connection.is_unauthenticated:
            return None
        return parsed

    def _hand_over(self, data: bytes) -> None:
        """Give the connection to aiohttp, with the data that is not answered yet."""
        connection, transport = self._connection, self._transport
        self._forget()
        assert transport and connection
        http = connection.http = self._server.others()
        http.connection_made(transport)
        http.data_received(data)

    def _forget(self) -> None:
        """Forget the connection, because it has closed or because aiohttp handles it from now on."""
        self._server.idle.stop(self)
        self._server.open.discard(self)
        self._transport = self._connection = None

    async def _respond(self, request: AgentRequest, connection: HttpConnection) -> None:
        try:
            try:
                answer = await self._server.answer(request, connection)
            finally:
                self._task = None
            self._write(answer)
            self._take_later()
        except Exception as error:
            log.error(words.answer_failed("POST", request.path), exc_info=error)
            self.close()

    def _write(self, answer: AgentAnswer) -> None:
        if self._transport is None:
            return
        is_last = answer.is_last or self._is_closing
        self._transport.write(head_of(answer.status, len(answer.body), is_last=is_last) + answer.body)
        if is_last:
            self._transport.close()

    def _take_later(self) -> None:
        """Handle the data that arrived meanwhile, or wait for the next request."""
        connection = self._connection
        if self._transport is None or connection is None or connection.is_closed:
            return
        if self._later and not self._is_paused:
            if self.is_full:
                self._transport.resume_reading()
            data, self._later = self._later, b""
            self._take(data)
            if connection.http.is_whole:
                connection.request_arrived()
        if self._transport and self._task is None:
            self._server.idle.start(self)


class _Parsed:
    """A request as far as it is parsed. The methods `on_...` are the parser's callbacks."""

    def __init__(self) -> None:
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body = b""
        self.begun = self.fields = 0
        """Number of requests and of headers that have begun."""
        self.has_head = self.is_whole = False

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_url(self, url: bytes) -> None:
        self.path += url.decode("ascii")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields += 1
        self.headers[name.decode("ascii").lower()] = value.decode("ascii").strip(" \t")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True


def parse(data: bytes) -> _Parsed | None:
    """Parse the beginning of a request, or all of it. Return None unless it has the plain form that agents send."""
    parsed = _Parsed()
    try:
        HttpRequestParser(parsed).feed_data(data)
    except (HttpParserError, HttpParserUpgrade):
        return None
    headers = parsed.headers
    is_plain = parsed.begun == 1 and len(headers) == parsed.fields and _UNUSUAL.isdisjoint(headers)
    if is_plain and parsed.has_head:
        is_plain = (
            headers.keys() >= _NEEDED
            and len(headers) <= MOST_HEADERS
            and int(headers["content-length"]) <= MOST_BYTES
            and headers.get("content-type") == paths.MEDIA_TYPE
            and headers.get("connection", "keep-alive") == "keep-alive"
        )
    return parsed if is_plain else None


def head_of(status: int, length: int, *, is_last: bool) -> bytes:
    """Return the head of an answer with a message of `length` bytes."""
    close = "Connection: close\r\n" if is_last else ""
    return (
        f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n{_HEADERS}Content-Length: {length}\r\n"
        f"Date: {rfc822_formatted_time()}\r\n{close}\r\n"
    ).encode("ascii")


_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_HEADERS = "".join(f"{name}: {value}\r\n" for name, value in (HEADERS | {"Content-Type": paths.MEDIA_TYPE}).items())
