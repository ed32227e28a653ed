"""The HTTP face of the server: the agents' paths in msgpack, the operators' in JSON."""

import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from protocol import paths
from protocol.codec import decode, encode
from protocol.errors import MalformedMessage, MessageTooLarge, NotLeader, ProtocolError, ServerUnavailable, Unauthorized
from protocol.messages import (
    ErrorReply,
    JoinRequest,
    LeaderReply,
    LeaderRequest,
    LeaveRequest,
    PollRequest,
    ReportRequest,
)
from protocol.schema import MAX_MESSAGE_BYTES
from rdzv_server.operators import status
from rdzv_server.service import Service

log = logging.getLogger("rdzv_server")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TellLeader = Callable[[LeaderRequest], Awaitable[LeaderReply]]


def make_app(service: Service, tell_leader: TellLeader, token: str | None) -> web.Application:
    """The application of one server. `token`: what agents and operators must bear; None lets everybody in."""
    app = web.Application(client_max_size=MAX_MESSAGE_BYTES, middlewares=[_errors, _bearer(token)])
    agents = _AgentApi(service, tell_leader)
    operators = _OperatorApi(service)
    app.add_routes(
        [
            web.post(paths.JOIN, agents.join),
            web.post(paths.POLL, agents.poll),
            web.post(paths.REPORT, agents.report),
            web.post(paths.LEAVE, agents.leave),
            web.post(paths.LEADER, agents.leader),
            web.get(paths.STATUS, operators.status),
            web.get(paths.HEALTHZ, operators.healthz),
            web.get(paths.READYZ, operators.readyz),
            web.get(paths.LEADERZ, operators.leaderz),
        ]
    )
    return app


class _AgentApi:
    def __init__(self, service: Service, tell_leader: TellLeader) -> None:
        self._service = service
        self._tell_leader = tell_leader

    async def join(self, request: web.Request) -> web.Response:
        message = decode(JoinRequest, await _body(request))
        return _packed(await self._service.join(message, _server_addr(request), request.protocol))

    async def poll(self, request: web.Request) -> web.Response:
        message = decode(PollRequest, await _body(request))
        return _packed(await self._service.poll(message, request.protocol))

    async def report(self, request: web.Request) -> web.Response:
        return _packed(await self._service.report(decode(ReportRequest, await _body(request))))

    async def leave(self, request: web.Request) -> web.Response:
        return _packed(await self._service.leave(decode(LeaveRequest, await _body(request))))

    async def leader(self, request: web.Request) -> web.Response:
        return _packed(await self._tell_leader(decode(LeaderRequest, await _body(request))))


class _OperatorApi:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def status(self, request: web.Request) -> web.Response:
        return web.json_response(status(self._service), dumps=lambda value: json.dumps(value, indent=2) + "\n")

    async def healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        trouble = self._service.trouble
        return web.Response(text=f"{trouble or 'ready'}\n", status=503 if trouble else 200)

    async def leaderz(self, request: web.Request) -> web.Response:
        """For load balancers that should know the leader alone."""
        leads = self._service.leads and not self._service.trouble
        return web.Response(text="leads\n" if leads else "does not lead\n", status=200 if leads else 503)


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
        return _packed(_reply(error), error.status)
    return web.json_response({"code": error.code, "message": str(error)}, status=error.status)


def _reply(error: ProtocolError) -> ErrorReply:
    if isinstance(error, NotLeader):
        return ErrorReply(code=error.code, message=str(error), leader=error.leader, leadership=error.leadership)
    return ErrorReply(code=error.code, message=str(error))


def _server_addr(request: web.Request) -> str:
    """The server's own address on this connection; an IPv4 one that came in by a dual-stack socket as IPv4."""
    sockname = request.get_extra_info("sockname")
    return str(sockname[0]).removeprefix("::ffff:") if sockname else ""
