"""Answers: messages in msgpack, JSON, plain text, and refusals."""

import logging
from typing import Any

import msgspec
from aiohttp import web
from rdzv_protocol import errors, messages, paths
from rdzv_protocol.codec import encode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.errors import LengthRequired, MessageTooLarge, NotLeader, ProtocolError, UnsupportedMediaType

from rdzv_server.words import http as words

log = logging.getLogger("rdzv_server")

HEADERS = {"Server": "rdzv-server", "X-Content-Type-Options": "nosniff"}
"""Headers of every answer: without a version, and browsers must not guess the type of a body."""


def packed(message: Any, status: int = 200) -> web.Response:
    """Return a response with a message in msgpack, for an agent."""
    return web.Response(body=encode(message), status=status, headers=HEADERS, content_type=paths.MEDIA_TYPE)


def plain_text(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, headers=HEADERS)


def json_of(value: Any, status: int = 200) -> web.Response:
    """Return a response with a message or map in JSON, for people and their programs."""
    return json_answer(msgspec.json.encode(value), status)


def json_answer(body: bytes, status: int = 200) -> web.Response:
    """Return a response with this JSON."""
    return web.Response(body=body, status=status, headers=HEADERS, content_type="application/json", charset="utf-8")


def refusal_of(request: web.BaseRequest, error: Exception) -> web.Response:
    """Return the response to a request that failed with `error`. It says nothing about the server's internals."""
    match error:
        case ProtocolError():
            return _refused(request, error)
        case web.HTTPRequestEntityTooLarge():
            return _refused(request, MessageTooLarge(words.message_too_large(MAX_MESSAGE_BYTES)))
        case web.HTTPException():
            answer = plain_text(f"{error.status} {error.reason}\n", error.status)
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
            return answer
    return _refused(request, as_refusal(error, request.method, request.path))


def as_refusal(error: Exception, method: str, path: str) -> ProtocolError:
    """Return the refusal of a request that failed with `error`. An error of this server is logged, and not shown."""
    if isinstance(error, ProtocolError):
        return error
    log.error(words.request_failed(method, path), exc_info=error)
    return errors.ServerUnavailable(words.INTERNAL_ERROR)


def reply_to(error: ProtocolError) -> messages.ErrorReply:
    """Return the message that tells the sender why its request is refused."""
    if isinstance(error, NotLeader):
        return messages.ErrorReply(
            code=error.code, message=str(error), leader=error.leader, leadership=error.leadership
        )  # fmt: skip
    return messages.ErrorReply(code=error.code, message=str(error))


def _refused(request: web.BaseRequest, error: ProtocolError) -> web.Response:
    is_agents = request.path.startswith(paths.AGENT) and request.method == "POST"
    answer = (packed if is_agents else json_of)(reply_to(error), error.status)
    if isinstance(error, LengthRequired | MessageTooLarge | UnsupportedMediaType):
        answer.force_close()  # the unread body would follow on the connection
    return answer
