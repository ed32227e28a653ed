"""Requests whose head already refuses them: what follows costs the server nothing."""

import asyncio
from unittest.mock import Mock

import pytest
from aiohttp import web

from rdzv_server.http.request_handler import MOST_HEAD_BYTES, Server

POST = b"POST /login HTTP/1.1\r\nHost: server\r\n"


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response()


@pytest.mark.parametrize(
    ("head", "is_refused"),
    [
        (POST + b"Content-Length: 5\r\n\r\n", False),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n", True),
        (POST + b"Transfer-Encoding: xchunked\r\n\r\n", True),
        (POST + b"X: " + b"a" * MOST_HEAD_BYTES, True),
        (b"no request\r\n\r\n", True),
    ],
    ids=["length", "chunks", "another encoding", "too large", "garbage"],
)
async def test_the_body_after_a_refused_head_is_dropped_unread(head: bytes, is_refused: bool) -> None:
    http, transport = Server(answer)(), Mock(spec=asyncio.Transport)
    transport.get_extra_info.return_value = None
    http.connection_made(transport)
    http.data_received(head)
    assert http.drops_rest is is_refused
    http.connection_lost(None)
