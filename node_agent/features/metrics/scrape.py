"""Requests that arrive at the port of the agent's metrics."""

from asyncio import StreamReader

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct

MOST_HEAD_BYTES = 8_192


class Request(Struct, frozen=True):
    method: bytes
    target: bytes


async def read_request(reader: StreamReader) -> Request | None:
    """Return the next request without its body, None if it is not HTTP or has too long a head."""
    head = _Head()
    received = 0
    while head.request is None and received <= MOST_HEAD_BYTES and (data := await reader.read(MOST_HEAD_BYTES)):
        received += len(data)
        try:
            head.parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            break
    return head.request


class _Head:
    """Head of a request, as far as it has arrived. The methods `on_...` are the parser's callbacks."""

    def __init__(self) -> None:
        self.parser = HttpRequestParser(self)
        self.request: Request | None = None
        self._target = b""

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_headers_complete(self) -> None:
        self.request = self.request or Request(self.parser.get_method(), self._target)
