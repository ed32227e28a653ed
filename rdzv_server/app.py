"""The HTTP face of the server: the agents' paths in msgpack, the operators' in JSON."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from aiohttp import web
from multidict import CIMultiDict

from protocol import paths
from protocol.codec import decode, encode, read
from protocol.errors import (
    Forbidden,
    MalformedMessage,
    MessageTooLarge,
    NotLeader,
    ProtocolError,
    ServerUnavailable,
    TlsRequired,
    Unauthorized,
)
from protocol.messages import (
    AdmitRequest,
    ErrorReply,
    JoinRequest,
    LeaderReply,
    LeaderRequest,
    LeaveRequest,
    PollRequest,
    ReportRequest,
    StopRequest,
)
from protocol.schema import MAX_MESSAGE_BYTES
from rdzv_server import openapi
from rdzv_server.access import Caller
from rdzv_server.guard import Guard
from rdzv_server.operators import StatusView
from rdzv_server.service import Service
from rdzv_server.visits import Visit

log = logging.getLogger("rdzv_server")


class OfARun(Protocol):
    @property
    def run_id(self) -> str: ...


Message = TypeVar("Message", bound=OfARun)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TellLeader = Callable[[LeaderRequest], Awaitable[LeaderReply]]

_MSGPACK = CIMultiDict({"Content-Type": paths.MEDIA_TYPE})


def make_app(service: Service, tell_leader: TellLeader, guard: Guard) -> web.Application:
    """The application of one server. `guard` judges every request; their connections are `Visit`s."""
    app = web.Application(client_max_size=MAX_MESSAGE_BYTES, middlewares=[_guarded(guard)])
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
            web.post(paths.STOP, operators.stop),
            web.post(paths.ADMIT, operators.admit),
            web.get(paths.HEALTHZ, operators.healthz),
            web.get(paths.READYZ, operators.readyz),
            web.get(paths.LEADERZ, operators.leaderz),
            web.get(paths.OPENAPI, operators.openapi),
        ]
    )
    return app


class _AgentApi:
    def __init__(self, service: Service, tell_leader: TellLeader) -> None:
        self._service = service
        self._tell_leader = tell_leader

    async def join(self, request: web.Request) -> web.Response:
        message = await _read(JoinRequest, request)
        return _packed(await self._service.join(message, _server_addr(request), request.protocol))

    async def poll(self, request: web.Request) -> web.Response:
        message = await _read(PollRequest, request)
        return _packed(await self._service.poll(message, request.protocol))

    async def report(self, request: web.Request) -> web.Response:
        return _packed(await self._service.report(await _read(ReportRequest, request)))

    async def leave(self, request: web.Request) -> web.Response:
        return _packed(await self._service.leave(await _read(LeaveRequest, request)))

    async def leader(self, request: web.Request) -> web.Response:
        return _packed(await self._tell_leader(decode(LeaderRequest, await _body(request))))


class _OperatorApi:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._view = StatusView(service)

    async def status(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        await answer.prepare(request)
        if request.method != "HEAD":
            async for piece in self._view.pieces():
                await answer.write(piece)
        await answer.write_eof()
        return answer

    async def stop(self, request: web.Request) -> web.Response:
        message = await _read_json(StopRequest, request)
        log.info("run %s: stopped by %s", message.run_id, request.remote)
        return web.json_response(asdict(await self._service.stop(message)))

    async def admit(self, request: web.Request) -> web.Response:
        message = await _read_json(AdmitRequest, request)
        log.info("run %s: those that stand by are admitted by %s", message.run_id, request.remote)
        return web.json_response(asdict(await self._service.admit(message)))

    async def openapi(self, request: web.Request) -> web.Response:
        return web.json_response(openapi.document())

    async def healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        trouble = self._service.trouble
        return web.Response(text=f"{trouble or 'ready'}\n", status=503 if trouble else 200)

    async def leaderz(self, request: web.Request) -> web.Response:
        """For load balancers that should know the leader alone."""
        leads = self._service.leads and not self._service.trouble
        return web.Response(text="leads\n" if leads else "does not lead\n", status=200 if leads else 503)


def _guarded(guard: Guard) -> Any:
    """What stands before every handler: the guard first, and every refusal in the language of its path."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            visit = _visit(request)
            try:
                _let_in(guard, visit, request)
                return await handler(request)
            finally:
                visit.request_answered()
        except Exception as error:
            if isinstance(error, (Unauthorized, Forbidden)):
                guard.note_refusal(_caller(request), asyncio.get_running_loop().time())
            return _refusal(request, error)

    return answer


def _let_in(guard: Guard, visit: Visit, request: web.Request) -> None:
    """Raises the `ProtocolError` that refuses the request for what stands above its body."""
    caller, now = _caller(request), asyncio.get_running_loop().time()
    if visit.lacks_tls:
        raise TlsRequired("this server speaks TLS: start the agent with --tls-ca (curl: https://)")
    if not request.body_exists:
        visit.request_arrived()
    permit = guard.check(request.method, request.path, caller, visit.badge, now)
    if request.path.startswith(paths.API):
        visit.let_in(permit, caller.authorization)


def _visit(request: web.Request) -> Visit:
    visit = request.transport.get_protocol() if request.transport else None
    if not isinstance(visit, Visit):
        raise ServerUnavailable("the connection is closed")
    return visit


def _caller(request: web.Request) -> Caller:
    headers = request.headers
    return Caller(
        peer=request.remote or "",
        authorization=headers.get("Authorization", ""),
        host=request.host,
        origin=headers.get("Origin", ""),
    )


async def _read(kind: type[Message], request: web.Request) -> Message:
    """The message, if it is about a run that the caller may take part in."""
    message = decode(kind, await _body(request))
    _visit(request).permit.check_run(message.run_id)
    return message


async def _read_json(kind: type[Message], request: web.Request) -> Message:
    try:
        value = json.loads(await _body(request))
    except (ValueError, RecursionError):  # the latter: a hundred thousand brackets
        raise MalformedMessage('the body is not JSON: give {"run_id": "..."}') from None
    message = read(kind, value)
    _visit(request).permit.check_run(message.run_id)
    return message


async def _body(request: web.Request) -> bytes:
    try:
        body = await request.read()
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:  # a chunked or compressed body that is not one
        raise MalformedMessage(f"the body cannot be read: {type(error).__name__}") from None
    _visit(request).request_arrived()
    return body


def _packed(message: Any, status: int = 200) -> web.Response:
    return web.Response(body=encode(message), status=status, headers=_MSGPACK)


def _refusal(request: web.Request, error: Exception) -> web.Response:
    """Nothing of our own insides."""
    match error:
        case ProtocolError():
            return _refused(request, error)
        case web.HTTPRequestEntityTooLarge():
            return _refused(request, MessageTooLarge(f"a message has at most {MAX_MESSAGE_BYTES} bytes"))
        case web.HTTPException():
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            text = f"{error.status} {error.reason}: {request.method} {request.path}\n"
            return web.Response(text=text, status=error.status, headers=allow)
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return _refused(request, ServerUnavailable("internal error; the server's log has the details"))


def _refused(request: web.Request, error: ProtocolError) -> web.Response:
    if request.path.startswith(paths.AGENT) and request.method == "POST":
        return _packed(_reply(error), error.status)
    return web.json_response(asdict(_reply(error)), status=error.status)


def _reply(error: ProtocolError) -> ErrorReply:
    if isinstance(error, NotLeader):
        return ErrorReply(code=error.code, message=str(error), leader=error.leader, leadership=error.leadership)
    return ErrorReply(code=error.code, message=str(error))


def _server_addr(request: web.Request) -> str:
    """The server's own address on this connection; an IPv4 one that came in by a dual-stack socket as IPv4."""
    sockname = request.get_extra_info("sockname")
    return str(sockname[0]).removeprefix("::ffff:") if sockname else ""
