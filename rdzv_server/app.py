"""The HTTP face of the server: the agents' paths in msgpack, the operators' in JSON."""

import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from protocol import paths
from protocol.codec import decode, encode
from protocol.errors import MalformedMessage, MessageTooLarge, ProtocolError, ServerUnavailable, Unauthorized
from protocol.messages import ErrorReply, JoinRequest, LeaveRequest, PollRequest, ReportRequest
from protocol.schema import MAX_MESSAGE_BYTES
from rdzv_server.operators import status
from rdzv_server.rendezvous import Rendezvous

log = logging.getLogger("rdzv_server")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(rendezvous: Rendezvous, token: str | None) -> web.Application:
    """The application of one server. `token`: what agents and operators must bear; None lets everybody in."""
    app = web.Application(client_max_size=MAX_MESSAGE_BYTES, middlewares=[_errors, _bearer(token)])
    agents = _AgentApi(rendezvous)
    operators = _OperatorApi(rendezvous)
    app.add_routes(
        [
            web.post(paths.JOIN, agents.join),
            web.post(paths.POLL, agents.poll),
            web.post(paths.REPORT, agents.report),
            web.post(paths.LEAVE, agents.leave),
            web.get(paths.STATUS, operators.status),
            web.get(paths.HEALTHZ, operators.healthz),
            web.get(paths.READYZ, operators.readyz),
        ]
    )
    return app


class _AgentApi:
    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous

    async def join(self, request: web.Request) -> web.Response:
        message = decode(JoinRequest, await _body(request))
        return _packed(await self._rendezvous.join(message, _server_addr(request), request.protocol))

    async def poll(self, request: web.Request) -> web.Response:
        message = decode(PollRequest, await _body(request))
        return _packed(await self._rendezvous.poll(message, request.protocol))

    async def report(self, request: web.Request) -> web.Response:
        return _packed(await self._rendezvous.report(decode(ReportRequest, await _body(request))))

    async def leave(self, request: web.Request) -> web.Response:
        return _packed(await self._rendezvous.leave(decode(LeaveRequest, await _body(request))))


class _OperatorApi:
    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous

    async def status(self, request: web.Request) -> web.Response:
        return web.json_response(status(self._rendezvous), dumps=lambda value: json.dumps(value, indent=2) + "\n")

    async def healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        ready = self._rendezvous.is_ready
        return web.Response(text="ready\n" if ready else "shutting down\n", status=200 if ready else 503)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every refusal in the language of its path, and nothing of our own insides."""
    try:
        return await handler(request)
    except ProtocolError as error:
        return _refused(request, error)
    except web.HTTPRequestEntityTooLarge:
        return _refused(request, MessageTooLarge(f"a message has at most {MAX_MESSAGE_BYTES} bytes"))
    except web.HTTPException as error:
        return web.Response(
            text=f"{error.status} {error.reason}: {request.method} {request.path}\n", status=error.status
        )
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return _refused(request, ServerUnavailable("internal error; the server's log has the details"))


def _bearer(token: str | None) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is not None and request.path.startswith("/v1/"):
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                raise Unauthorized("this server asks for a token: start the agent with --token-file")
        return await handler(request)

    return check


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:  # a chunked or compressed body that is not one
        raise MalformedMessage(f"the body cannot be read: {type(error).__name__}") from None


def _packed(message: Any, status: int = 200) -> web.Response:
    return web.Response(body=encode(message), status=status, content_type=paths.MEDIA_TYPE)


def _refused(request: web.Request, error: ProtocolError) -> web.Response:
    if request.method == "POST":
        return _packed(ErrorReply(code=error.code, message=str(error)), error.status)
    return web.json_response({"code": error.code, "message": str(error)}, status=error.status)


def _server_addr(request: web.Request) -> str:
    """The server's own address on this connection; an IPv4 one that came in by a dual-stack socket as IPv4."""
    sockname = request.get_extra_info("sockname")
    return str(sockname[0]).removeprefix("::ffff:") if sockname else ""
