"""HTTP/1.1 client on an open connection: one request at a time, with the answer read whole or in parts.

httptools parses the answers (ADR 2).
"""

from collections.abc import Iterable, Mapping
from typing import NoReturn

from httptools import HttpParserError, HttpResponseParser
from msgspec import Struct
from rdzv_protocol.flag_values import address

from node_agent import words
from node_agent.kernel.transport.connecting import Streams, give_up

PART_BYTES = 65_536
"""Most bytes to read at once."""
MOST_FRAMING_BYTES = 65_536
"""Most bytes to read without an answer's head or a part of its body, such as endless headers."""

Header = tuple[str, str]


class HttpError(Exception):
    """The answer is not valid HTTP, or the request would not be. `str(error)` says why."""


FAILURES = (OSError, EOFError, HttpError)
"""Errors that `ask`, `part` and `body` raise if the connection breaks, or if an answer or a request is not HTTP."""


class Head(Struct, frozen=True):
    """Status and headers of an answer."""

    status_code: int
    headers: Mapping[str, str]
    """By name in lower case. The values of a repeated header are joined with commas."""


class HttpConnection:
    """Open connection to a server. Send the next request only after the previous answer has been read.

    `most_bytes`: limit for an answer that is read whole.
    """

    def __init__(self, streams: Streams, most_bytes: int) -> None:
        self.streams = streams
        self._most_bytes = most_bytes
        self._answer = _Answer()

    async def ask(self, method: str, path: str, headers: Iterable[Header], body: bytes = b"") -> Head:
        """Send a request, and return the head of its answer. Any method but HEAD and CONNECT."""
        assert self.is_reusable
        request = _request(method, path, headers, body)
        self._answer.begin()
        self.streams[1].write(request)
        while self._answer.head is None:
            await self._receive()
        return self._answer.head

    async def part(self) -> bytes:
        """Return the next part of the answer's body, empty at its end."""
        parts = self._answer.parts
        while not parts and not self._answer.is_whole:
            await self._receive()
        part = b"".join(parts)
        parts.clear()
        return part

    async def body(self) -> bytes:
        """Return the answer's whole body. Raises `EOFError` also if it is too long."""
        answer = bytearray()
        while part := await self.part():
            answer += part
            if len(answer) > self._most_bytes:
                raise EOFError(words.connection.answer_too_long(self._most_bytes))
        return bytes(answer)

    async def _receive(self) -> None:
        received = await self.streams[0].read(PART_BYTES)
        if received:
            self._answer.feed(received)
        else:
            self._answer.end()

    @property
    def is_reusable(self) -> bool:
        """Whether the last answer was read to its end, and the other side keeps the connection open."""
        return self._answer.is_whole and not self._answer.is_last

    @property
    def is_over(self) -> bool:
        """Whether the other side has closed the connection, has sent more than answers, or whether it broke."""
        reader, writer = self.streams
        if reader.at_eof() or reader.exception() is not None or writer.is_closing():
            return True
        unread = reader.read(1)
        try:
            unread.send(None)
        except StopIteration:
            return True  # data of no request, such as a notice that the connection was idle for too long
        unread.close()  # there is none, and the coroutine would wait for it
        return False

    def close(self) -> None:
        """Close the connection at once."""
        give_up(self.streams)


class _Answer:
    """The latest answer on a connection, as far as it has arrived. The methods `on_...` are the parser's callbacks."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._framing_bytes = 0
        self._problem = ""
        self.head: Head | None = None
        self.parts: list[bytes] = []
        """Parts of the body that have arrived and are not yet read."""
        self.is_whole = True
        self.is_last = False
        """Whether the connection cannot carry another answer."""

    def begin(self) -> None:
        """Expect the next answer."""
        self.head, self.is_whole, self._framing_bytes = None, False, 0

    def feed(self, received: bytes) -> None:
        """Parse data from the connection. Raises `HttpError`."""
        head = self.head
        try:
            self._parser.feed_data(received)
        except HttpParserError as error:
            self.is_last = True
            if not self.is_whole:
                raise HttpError(words.connection.answer_invalid(self._problem or str(error))) from None
        has_gained = self.parts or self.head is not head
        self._framing_bytes = 0 if has_gained else self._framing_bytes + len(received)
        if self._framing_bytes > MOST_FRAMING_BYTES:
            raise HttpError(words.connection.framing_too_long(MOST_FRAMING_BYTES))

    def end(self) -> None:
        """Take the end of the connection as the end of the answer. Raises `EOFError` if the answer is cut off."""
        if self.head is None:
            raise EOFError(words.connection.CLOSED)
        if not self.head.headers.keys().isdisjoint(("content-length", "transfer-encoding")):
            raise EOFError(words.connection.CUT_OFF)
        self.is_whole = self.is_last = True

    def on_message_begin(self) -> None:
        if self.is_whole:
            raise HttpError  # data after the answer; the parser stops
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:  # the others are trailers, which nothing uses
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        status, coding = self._parser.get_status_code(), self._headers.get("transfer-encoding", "chunked")
        if status == 101:
            self._refuse(words.connection.OTHER_PROTOCOL)
        if coding.lower() != "chunked":
            self._refuse(words.connection.OTHER_CODING)
        if not 100 <= status < 200:
            self.head = Head(status, self._headers)

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)

    def on_message_complete(self) -> None:
        if self.head:  # otherwise it was an interim answer, such as 102
            self.is_whole, self.is_last = True, not self._parser.should_keep_alive()

    def _refuse(self, why: str) -> NoReturn:
        """Make the parser stop here and fail."""
        self._problem = why
        raise HttpError(why)


def _request(method: str, path: str, headers: Iterable[Header], body: bytes) -> bytes:
    """Return a request. Raises `HttpError` if its path or the text of a header would break its line."""
    sent = [*headers, ("Content-Length", str(len(body)))] if method != "GET" else list(headers)
    unfit = [name for name, text in sent if not (text.isascii() and text.isprintable())]
    if not (path.isascii() and path.isprintable()) or " " in path:
        unfit.append("the path")
    if unfit:
        raise HttpError(words.connection.unsendable(", ".join(unfit)))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in sent), "", ""]
    return "\r\n".join(lines).encode() + body


def authority(host: str, port: int) -> str:
    """Return the `Host` header of a request to this server."""
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            host = ""  # not a valid name, which its look-up reports
    return address(host, port)
