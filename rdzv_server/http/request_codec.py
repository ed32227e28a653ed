"""One HTTP request and its answer: bytes that become a message, and a refusal in the language of its path."""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from multidict import CIMultiDict
from rdzv_protocol import paths
from rdzv_protocol.codec import convert, decode, encode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.errors import (
    MalformedMessage,
    MessageTooLarge,
    NotLeader,
    ProtocolError,
    ServerUnavailable,
    UnsupportedMediaType,
)
from rdzv_protocol.messages import ErrorReply, LeaderRequest

from rdzv_server.auth.authorization import Caller
from rdzv_server.http.connection import HttpConnection

log = logging.getLogger("rdzv_server")

_BROWSER_HEADERS = frozenset({"origin", "referer", "accept-language", "sec-fetch-site", "sec-fetch-mode"})
"""Headers of which every browser sends at least one with each request; no agent, curl or probe does by itself."""

HEADERS = {"Server": "rdzv-server", "X-Content-Type-Options": "nosniff"}
"""Headers of every answer: no version for those who look for one, and no guesses at what a body is."""
_MSGPACK = CIMultiDict(HEADERS | {"Content-Type": paths.MEDIA_TYPE})


Message = TypeVar("Message")


async def tell_to_go_on(request: web.BaseRequest) -> None:
    """Have the body sent: curl asks before it sends a large one. Raises `web.HTTPExpectationFailed`."""
    if request.headers["Expect"].lower() != "100-continue":
        raise web.HTTPExpectationFailed
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def connection_of(request: web.BaseRequest) -> HttpConnection:
    connection = request.transport.get_protocol() if request.transport else None
    if not isinstance(connection, HttpConnection):
        raise ConnectionResetError
    return connection


def caller_of(request: web.BaseRequest) -> Caller:
    headers = request.headers
    return Caller(
        peer=request.remote or "",
        authorization=headers.get("Authorization", ""),
        host=request.host,
        origin=headers.get("Origin"),
        is_browser=not _BROWSER_HEADERS.isdisjoint(map(str.lower, headers))
        or headers.get("User-Agent", "")[:8] == "Mozilla/",
        is_tls=request.secure,
    )


async def read_packed(kind: type[Message], request: web.BaseRequest) -> Message:
    """The message, if it is about a run that the caller may take part in."""
    message = decode(kind, await _body(request))
    _turn_to(request, message)
    return message


async def read_json(kind: type[Message], request: web.BaseRequest) -> Message:
    """The same of a body in JSON."""
    try:
        value = msgspec.json.decode(await _body(request))
    except (msgspec.MsgspecError, ValueError, RecursionError):  # the last: a hundred thousand brackets
        raise MalformedMessage('the body is not JSON: give {"run_id": "..."}') from None
    message = convert(kind, value)
    _turn_to(request, message)
    return message


def _turn_to(request: web.BaseRequest, message: Any) -> None:
    """From here on the connection takes its turns with the message's run. Raises `Forbidden`."""
    if not isinstance(message, LeaderRequest):  # which names a run at most
        connection = connection_of(request)
        connection.permit.check_run(message.run_id)
        connection.run = message.run_id


async def _body(request: web.BaseRequest) -> bytes:
    content = request.content
    try:
        if content.is_eof() and content.total_bytes <= MAX_MESSAGE_BYTES:
            body = content.read_nowait()  # as a rule all of it came with the headers
        else:
            body = await request.read()
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:  # a chunked or compressed body that is not one
        raise MalformedMessage(f"the body cannot be read: {type(error).__name__}") from None
    connection_of(request).request_arrived()
    return body


def packed(message: Any, status: int = 200) -> web.Response:
    return web.Response(body=encode(message), status=status, headers=_MSGPACK)


def as_text(text: str, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> web.Response:
    return web.Response(text=text, status=status, headers={**HEADERS, **headers})


def as_json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        headers=HEADERS,
        content_type="application/json",
        charset="utf-8",
    )


def refusal(request: web.BaseRequest, error: Exception) -> web.Response:
    """The answer to a request that failed, which tells nothing of our own insides."""
    match error:
        case ProtocolError():
            return _refused(request, error)
        case web.HTTPRequestEntityTooLarge():
            return _refused(request, MessageTooLarge(f"a message has at most {MAX_MESSAGE_BYTES} bytes"))
        case web.HTTPException():
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return as_text(f"{error.status} {error.reason}\n", error.status, allow)
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return _refused(request, ServerUnavailable("internal error; the server's log has the details"))


def _refused(request: web.BaseRequest, error: ProtocolError) -> web.Response:
    if request.path.startswith(paths.AGENT) and request.method == "POST":
        answer = packed(_reply(error), error.status)
    else:
        answer = as_json(_reply(error), error.status)
    if isinstance(error, MessageTooLarge | UnsupportedMediaType):
        answer.force_close()  # what follows on the connection is the body that nobody reads
    return answer


def _reply(error: ProtocolError) -> ErrorReply:
    if isinstance(error, NotLeader):
        return ErrorReply(code=error.code, message=str(error), leader=error.leader, leadership=error.leadership)
    return ErrorReply(code=error.code, message=str(error))
