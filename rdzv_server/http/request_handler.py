"""aiohttp's side of a connection, with limits that apply to a request's head: before its body is read or kept."""

import asyncio
from http import HTTPStatus
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import _ErrInfo
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES

from rdzv_server.http.responses import plain_text
from rdzv_server.words import http as words

MOST_HEAD_BYTES = 16_384
"""Most bytes of a request's line and headers together."""
LINGER_S = 1.0
"""Seconds for which the rest of a refused request is read and dropped, so that its sender reads the answer."""

_TOO_LARGE = words.head_too_large(MOST_HEAD_BYTES)


class RequestHandler(web.RequestHandler):
    """aiohttp's protocol of one connection, which answers bad HTTP with a refusal of this server."""

    __slots__ = ("_body", "_head_bytes", "drops_rest")

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._body: StreamReader | None = None
        """Body of the last request."""
        self._head_bytes = 0
        """Least number of bytes of the next request's head so far; 0 between two requests, or in a body."""
        self.drops_rest = False
        """Whether the rest of this connection's data is ignored, because its last request was refused by its head."""

    @property
    def is_whole(self) -> bool:
        """Whether the last request has arrived to its last byte, and no other has begun."""
        return not self._head_bytes and (self._body is None or self._body.is_eof())

    @property
    def is_full(self) -> bool:
        """Whether aiohttp has stopped reading for its own reasons; then it also continues by itself."""
        return self._reading_paused or self._buffer_paused

    @property
    def is_reading_body(self) -> bool:
        return self._body is not None and not self._body.is_eof()

    def connection_lost(self, exc: BaseException | None) -> None:
        task = self._task_handler
        super().connection_lost(exc)
        self._body = None  # the body refers to this object: without that cycle, both are freed at once
        if task:
            task.add_done_callback(_free)

    def data_received(self, data: bytes) -> None:
        if self.drops_rest:
            return
        was_in_body, count = self.is_reading_body, self._request_count
        super().data_received(data)
        if count != self._request_count:
            self._begin(data)
        elif not was_in_body and not self._buffer_paused:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse_head()

    def _begin(self, data: bytes) -> None:
        """Note the request whose head has arrived."""
        message, self._body = self._messages[-1]
        size, self._head_bytes = self._head_bytes + len(data), 0
        if not isinstance(message, RawRequestMessage):
            self.drops_rest = True
            message.exc.__traceback__ = None  # its frames refer to this object and to the exception
        elif message.chunked:
            self.drops_rest = True
        elif size > MOST_HEAD_BYTES and _size_of(message) > MOST_HEAD_BYTES:
            self._messages.pop()
            self._refuse_head()

    def _refuse_head(self) -> None:
        """Answer the request that is arriving with 431, after the requests before it."""
        self.drops_rest, self._head_bytes = True, 0
        # aiohttp waits for the end of this body before it closes the connection.
        self._body = StreamReader(self, MAX_MESSAGE_BYTES, loop=self._loop)
        self._messages.append((_ErrInfo(431, ValueError(), _TOO_LARGE), self._body))
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if request.writer.output_size:
            raise ConnectionResetError
        text = f": {message}" if message is _TOO_LARGE else ""
        answer = plain_text(f"{status} {HTTPStatus(status).phrase}{text}\n", status)
        answer.force_close()
        return answer


class Server(web.Server):
    """aiohttp's server, whose connections are `RequestHandler`s."""

    def __call__(self) -> RequestHandler:
        return RequestHandler(self, loop=self._loop, **self._kwargs)


def _free(task: "asyncio.Task[None]") -> None:
    """Break the cycle of a task that was cancelled while aiohttp dropped a body: its exception leads back to it."""
    if task.cancelled():
        task._make_cancelled_error()  # type: ignore[attr-defined]  # returns the exception, and forgets it


def _size_of(message: RawRequestMessage) -> int:
    """Return the bytes of the request's line and headers, as they were sent."""
    headers = sum(len(name) + len(value) + 4 for name, value in message.raw_headers)
    return len(message.method) + len(message.path) + headers + len("  HTTP/1.1\r\n\r\n")
