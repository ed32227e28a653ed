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
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
TellLeader = Callable[[LeaderRequest], Awaitable[LeaderReply]]

_MSGPACK = CIMultiDict({"Content-Type": paths.MEDIA_TYPE})


class HttpApi:
    """What aiohttp calls for each request; its connections are `Visit`s. `guard` judges every request.

    The paths are few and fixed: a dict finds them, where aiohttp's router and middlewares take a tenth of a request.
    """

    def __init__(self, service: Service, tell_leader: TellLeader, guard: Guard) -> None:
        self._guard = guard
        agents, operators = _AgentApi(service, tell_leader), _OperatorApi(service)
        self.routes: dict[str, tuple[str, Handler]] = {
            paths.JOIN: ("POST", agents.join),
            paths.POLL: ("POST", agents.poll),
            paths.REPORT: ("POST", agents.report),
            paths.LEAVE: ("POST", agents.leave),
            paths.LEADER: ("POST", agents.leader),
            paths.STATUS: ("GET", operators.status),
            paths.STOP: ("POST", operators.stop),
            paths.ADMIT: ("POST", operators.admit),
            paths.HEALTHZ: ("GET", operators.healthz),
            paths.READYZ: ("GET", operators.readyz),
            paths.LEADERZ: ("GET", operators.leaderz),
            paths.OPENAPI: ("GET", operators.openapi),
        }

    def serve(self, idle_s: float) -> web.Server:
        """`idle_s`: how long a connection may stand between an answer and the next request."""
        return web.Server(
            self.answer, request_factory=_request, handler_cancellation=True, access_log=None, keepalive_timeout=idle_s
        )

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            visit = _visit(request)
            try:
                self._let_in(visit, request)
                handler = self._handler(request)
                if "Expect" in request.headers:
                    await _tell_to_go_on(request)
                return await handler(request)
            finally:
                visit.request_answered()
        except Exception as error:
            if isinstance(error, Unauthorized | Forbidden):
                self._guard.note_refusal(_caller(request), asyncio.get_running_loop().time())
            return _refusal(request, error)

    def _let_in(self, visit: Visit, request: web.BaseRequest) -> None:
        """Raises the `ProtocolError` that refuses the request for what stands above its body."""
        caller, now = _caller(request), asyncio.get_running_loop().time()
        if visit.lacks_tls:
            raise TlsRequired("this server speaks TLS: start the agent with --tls-ca (curl: https://)")
        if not request.body_exists:
            visit.request_arrived()
        permit = self._guard.check(request.method, request.path, caller, visit.badge, now)
        if request.path.startswith(paths.API):
            visit.let_in(permit, caller.authorization)

    def _handler(self, request: web.BaseRequest) -> Handler:
        """Raises `web.HTTPException`. HEAD asks for what GET would give."""
        method, handler = self.routes.get(request.path, ("", None))
        if handler is None:
            raise web.HTTPNotFound
        if request.method != method and (request.method, method) != ("HEAD", "GET"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"] if method == "GET" else [method])
        return handler


def _request(message: Any, body: Any, connection: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, body, connection, writer, task, loop, client_max_size=MAX_MESSAGE_BYTES)


class _AgentApi:
    def __init__(self, service: Service, tell_leader: TellLeader) -> None:
        self._service = service
        self._tell_leader = tell_leader

    async def join(self, request: web.BaseRequest) -> web.Response:
        message = await _read(JoinRequest, request)
        return _packed(await self._service.join(message, _server_addr(request), request.protocol))

    async def poll(self, request: web.BaseRequest) -> web.Response:
        message = await _read(PollRequest, request)
        return _packed(await self._service.poll(message, request.protocol))

    async def report(self, request: web.BaseRequest) -> web.Response:
        return _packed(await self._service.report(await _read(ReportRequest, request)))

    async def leave(self, request: web.BaseRequest) -> web.Response:
        return _packed(await self._service.leave(await _read(LeaveRequest, request)))

    async def leader(self, request: web.BaseRequest) -> web.Response:
        return _packed(await self._tell_leader(decode(LeaderRequest, await _body(request))))


class _OperatorApi:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._view = StatusView(service)

    async def status(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        await answer.prepare(request)
        if request.method != "HEAD":
            async for piece in self._view.pieces():
                await answer.write(piece)
        await answer.write_eof()
        return answer

    async def stop(self, request: web.BaseRequest) -> web.Response:
        message = await _read_json(StopRequest, request)
        log.info("run %s: stopped by %s", message.run_id, request.remote)
        return web.json_response(asdict(await self._service.stop(message)))

    async def admit(self, request: web.BaseRequest) -> web.Response:
        message = await _read_json(AdmitRequest, request)
        log.info("run %s: those that stand by are admitted by %s", message.run_id, request.remote)
        return web.json_response(asdict(await self._service.admit(message)))

    async def openapi(self, request: web.BaseRequest) -> web.Response:
        return web.json_response(openapi.document())

    async def healthz(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, request: web.BaseRequest) -> web.Response:
        trouble = self._service.trouble
        return web.Response(text=f"{trouble or 'ready'}\n", status=503 if trouble else 200)

    async def leaderz(self, request: web.BaseRequest) -> web.Response:
        """For load balancers that should know the leader alone."""
        leads = self._service.leads and not self._service.trouble
        return web.Response(text="leads\n" if leads else "does not lead\n", status=200 if leads else 503)


async def _tell_to_go_on(request: web.BaseRequest) -> None:
    """Raises `web.HTTPExpectationFailed`. curl asks before it sends a large body."""
    if request.headers["Expect"].lower() != "100-continue":
        raise web.HTTPExpectationFailed
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _visit(request: web.BaseRequest) -> Visit:
    visit = request.transport.get_protocol() if request.transport else None
    if not isinstance(visit, Visit):
        raise ServerUnavailable("the connection is closed")
    return visit


def _caller(request: web.BaseRequest) -> Caller:
    headers = request.headers
    return Caller(
        peer=request.remote or "",
        authorization=headers.get("Authorization", ""),
        host=request.host,
        origin=headers.get("Origin", ""),
    )


async def _read(kind: type[Message], request: web.BaseRequest) -> Message:
    """The message, if it is about a run that the caller may take part in."""
    message = decode(kind, await _body(request))
    _about(request, message.run_id)
    return message


def _about(request: web.BaseRequest, run_id: str) -> None:
    """Raises `Forbidden`. From here on the connection takes its turns with this run."""
    visit = _visit(request)
    visit.permit.check_run(run_id)
    visit.run = run_id


async def _read_json(kind: type[Message], request: web.BaseRequest) -> Message:
    try:
        value = json.loads(await _body(request))
    except (ValueError, RecursionError):  # the latter: a hundred thousand brackets
        raise MalformedMessage('the body is not JSON: give {"run_id": "..."}') from None
    message = read(kind, value)
    _about(request, message.run_id)
    return message


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
    _visit(request).request_arrived()
    return body


def _packed(message: Any, status: int = 200) -> web.Response:
    return web.Response(body=encode(message), status=status, headers=_MSGPACK)


def _refusal(request: web.BaseRequest, error: Exception) -> web.Response:
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


def _refused(request: web.BaseRequest, error: ProtocolError) -> web.Response:
    if request.path.startswith(paths.AGENT) and request.method == "POST":
        return _packed(_reply(error), error.status)
    return web.json_response(asdict(_reply(error)), status=error.status)


def _reply(error: ProtocolError) -> ErrorReply:
    if isinstance(error, NotLeader):
        return ErrorReply(code=error.code, message=str(error), leader=error.leader, leadership=error.leadership)
    return ErrorReply(code=error.code, message=str(error))


def _server_addr(request: web.BaseRequest) -> str:
    """The server's own address on this connection; an IPv4 one that came in by a dual-stack socket as IPv4."""
    sockname = request.get_extra_info("sockname")
    return str(sockname[0]).removeprefix("::ffff:") if sockname else ""
