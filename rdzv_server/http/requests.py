"""Incoming requests: their sender, refusals before a body is read, and the message in the body."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import structs
from rdzv_protocol import actions, messages, paths
from rdzv_protocol.codec import convert
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.errors import LengthRequired, MalformedMessage, MessageTooLarge, UnsupportedMediaType

from rdzv_server.auth import session
from rdzv_server.auth.authorization import Caller
from rdzv_server.http.connection import HttpConnection
from rdzv_server.service.interface import AnyRequest
from rdzv_server.words import http as words

Message = TypeVar("Message")

_BROWSER_HEADERS = frozenset({"origin", "referer", "accept-language", "sec-fetch-site", "sec-fetch-mode"})
"""Every browser sends at least one of these headers with each request. Agents, curl and probes send none by default."""


def connection_of(request: web.BaseRequest) -> HttpConnection:
    """Return the connection over which the request came. Raises `ConnectionResetError` if it has closed."""
    transport = request.transport
    connection = transport.get_protocol() if transport else None
    if not isinstance(connection, HttpConnection):
        raise ConnectionResetError
    return connection


def caller_of(request: web.BaseRequest) -> Caller:
    """Return the sender of the request, as far as its address and its headers show."""
    caller = caller_from(request.headers, request.remote or "", is_tls=request.secure)
    cookies = request.cookies if "Cookie" in request.headers else {}
    return structs.replace(caller, host=request.host, session=cookies.get(session.cookie_name(request.host), ""))


def caller_from(headers: Mapping[str, str], peer: str, *, is_tls: bool) -> Caller:
    """Return the sender of a request without cookies. `headers`: by name in lower case, or in any case."""
    return Caller(
        peer=peer,
        authorization=headers.get("authorization", ""),
        csrf=headers.get("x-csrf-token", ""),
        host=headers.get("host", ""),
        origin=headers.get("origin"),
        is_browser=not _BROWSER_HEADERS.isdisjoint(map(str.lower, headers))
        or headers.get("user-agent", "").startswith("Mozilla/"),
        is_tls=is_tls,
    )


def check_framing(request: web.BaseRequest) -> None:
    """Refuse a body that no valid request has, from any sender, before a byte of it is read.

    Raises `UnsupportedMediaType`, `LengthRequired` or `MessageTooLarge`.
    """
    if "Content-Encoding" in request.headers:
        raise UnsupportedMediaType(words.COMPRESSED)
    if "Transfer-Encoding" in request.headers:
        raise LengthRequired(words.NO_LENGTH)
    if (request.content_length or 0) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(words.message_too_large(MAX_MESSAGE_BYTES))
    is_agents = request.method == "POST" and request.path.startswith(paths.AGENT)
    if is_agents and request.content_type != paths.MEDIA_TYPE:
        raise UnsupportedMediaType(words.other_media_type(paths.MEDIA_TYPE))


async def send_continue(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`: curl asks before it sends a large body. Raises `web.HTTPExpectationFailed`."""
    if request.headers["Expect"].lower() != "100-continue":
        raise web.HTTPExpectationFailed
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun: it may still be a refusal


async def read_body(request: web.BaseRequest, most: int = MAX_MESSAGE_BYTES) -> bytes:
    """Return the whole body, of at most `most` bytes.

    Raises `MalformedMessage` if it is framed wrongly, `MessageTooLarge`, or `web.HTTPRequestEntityTooLarge`.
    """
    if (request.content_length or 0) > most:
        raise MessageTooLarge(words.body_too_large(most))
    try:
        body = await request.read()
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:  # an invalid chunked or compressed body
        raise MalformedMessage(words.unreadable_body(type(error).__name__)) from None
    connection_of(request).request_arrived()
    return body


def read_json(kind: type[Message], body: bytes) -> Message:
    """Decode an operator's message. Raises `MalformedMessage`, with an example."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # RecursionError: from a hundred thousand brackets
        raise MalformedMessage(words.not_json(_example(kind))) from None
    return convert(kind, value)


def _example(kind: type[Any]) -> str:
    return '{"node_id": "..."}' if issubclass(kind, actions.NodeAction) else '{"run_id": "..."}'


def summary_of(kind: type[Any]) -> str:
    """Return the summary of a message: its docstring in one line."""
    return " ".join((kind.__doc__ or "").split())


def assign_to_run(connection: HttpConnection, message: AnyRequest) -> None:
    """Schedule the connection with the message's run from now on. Raises `Forbidden`."""
    if not isinstance(message, messages.LeaderRequest):  # a `LeaderRequest` only names a run
        connection.permit.check_run(message.run_id)
        connection.run = message.run_id or connection.run  # an action on a node is about no run
