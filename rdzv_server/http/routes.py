"""The HTTP face of the server: the agents' paths in msgpack, the operators' in JSON."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web
from rdzv_protocol import paths
from rdzv_protocol.codec import decode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.errors import (
    Forbidden,
    MessageTooLarge,
    ProtocolError,
    TlsRequired,
    Unauthorized,
    UnsupportedMediaType,
)
from rdzv_protocol.messages import (
    AdmitRequest,
    JoinRequest,
    LeaderRequest,
    LeaveRequest,
    PollRequest,
    ReportRequest,
    StopRequest,
)

from rdzv_server.auth.authorization import Permit
from rdzv_server.http.connection import Visit
from rdzv_server.http.limits import Gatekeeper, RefusalLog, peer_of
from rdzv_server.http.openapi import document
from rdzv_server.http.request_codec import (
    HEADERS,
    as_json,
    body_of,
    caller_of,
    packed,
    plain,
    read_json,
    read_packed,
    refusal,
    tell_to_go_on,
    visit_of,
)
from rdzv_server.http.status_endpoint import StatusView
from rdzv_server.service.interface import RunRequest, Service

log = logging.getLogger("rdzv_server")

LINGER_S = 1.0
"""How long the rest of a refused request is read and thrown away, so that its sender comes to read the answer."""

WELCOME = f"""\
rdzv-server: the rendezvous service for elastic PyTorch runs

  GET {paths.STATUS}       every run: its nodes, who is missing and until when, failures, restarts
  GET {paths.READYZ}          whether runs can be decided about at present
  GET {paths.OPENAPI}    the whole API, for programs

Take part from each node:  node-agent --endpoint HOST:PORT --nnodes N --nproc M train.py
"""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpApi:
    """What aiohttp calls for each request; its connections are `Visit`s. `guard` judges every request.

    The paths are few and fixed: a dict finds them, where aiohttp's router and middlewares take a tenth of a request.
    """

    def __init__(self, service: Service, guard: Gatekeeper, *, read_only: bool = False) -> None:
        self._service = service
        self._guard = guard
        self._refusals = RefusalLog()
        agents, operators = _AgentApi(service), _OperatorApi(service)
        self.routes: dict[str, tuple[str, Handler]] = {
            paths.JOIN: ("POST", agents.taking(JoinRequest)),
            paths.POLL: ("POST", agents.taking(PollRequest)),
            paths.REPORT: ("POST", agents.taking(ReportRequest)),
            paths.LEAVE: ("POST", agents.taking(LeaveRequest)),
            paths.LEADER: ("POST", agents.leader),
            paths.ROOT: ("GET", operators.root),
            paths.STATUS: ("GET", operators.status),
            paths.STOP: ("POST", operators.stop),
            paths.ADMIT: ("POST", operators.admit),
            paths.HEALTHZ: ("GET", operators.healthz),
            paths.READYZ: ("GET", operators.readyz),
            paths.LEADERZ: ("GET", operators.leaderz),
            paths.OPENAPI: ("GET", operators.openapi),
        }
        if read_only:
            self.routes = {path: route for path, route in self.routes.items() if route[0] == "GET"}

    def serve(self, idle_s: float) -> web.Server:
        """`idle_s`: how long a connection may stand between an answer and the next request."""
        return _Server(
            self.answer,
            request_factory=_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=idle_s,
            auto_decompress=False,
            lingering_time=LINGER_S,
        )

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            visit = visit_of(request)
            try:
                self._let_in(visit, request)
                handler = self._handler(request)
                if "Expect" in request.headers:
                    await tell_to_go_on(request)
                return await handler(request)
            finally:
                visit.request_answered()
        except ConnectionError:
            return web.Response(status=503)  # the caller is gone: nobody reads it
        except Exception as error:
            if request.writer.output_size:  # half an answer cannot be taken back, only cut off
                log.error("%s %s failed while it was being answered", request.method, request.path, exc_info=error)
                raise ConnectionResetError from error
            if isinstance(error, ProtocolError):
                self._note(request, error)
            return refusal(request, error)

    def _note(self, request: web.BaseRequest, error: ProtocolError) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(error, Unauthorized | Forbidden):
            self._guard.note_refusal(caller_of(request), now)
        if not self._service.trouble:  # which is said by itself
            self._refusals.note(peer_of(request.remote or ""), error, now)

    def _let_in(self, visit: Visit, request: web.BaseRequest) -> None:
        """Raises the `ProtocolError` that refuses the request for what stands above its body."""
        caller, now = caller_of(request), asyncio.get_running_loop().time()
        if visit.lacks_tls:
            raise TlsRequired("this server speaks TLS: start the agent with --tls-ca (curl: https://)")
        _check_framing(request)
        if not request.body_exists:
            visit.request_arrived()
        permit = self._guard.check(request.method, request.path, caller, visit.credential, now)
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


class _Server(web.Server):
    """aiohttp's server, whose connections answer what is not HTTP in our words."""

    def __call__(self) -> web.RequestHandler:
        return _RequestHandler(self, loop=self._loop, **self._kwargs)


class _RequestHandler(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if request.writer.output_size:
            raise ConnectionResetError
        answer = plain(f"{status} {HTTPStatus(status).phrase}\n", status)
        answer.force_close()
        return answer


def _check_framing(request: web.BaseRequest) -> None:
    """Refuse what no body of ours looks like, before any byte of it is read and whoever sends it.

    Raises `UnsupportedMediaType` or `MessageTooLarge`.
    """
    if "Content-Encoding" in request.headers:
        raise UnsupportedMediaType("a body may not be compressed: leave Content-Encoding out")
    if (request.content_length or 0) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(f"a message has at most {MAX_MESSAGE_BYTES} bytes")
    if request.method == "POST" and request.path.startswith(paths.AGENT) and request.content_type != paths.MEDIA_TYPE:
        raise UnsupportedMediaType(f"an agent's message is {paths.MEDIA_TYPE}: send it with this Content-Type")


def _request(message: Any, body: Any, connection: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, body, connection, writer, task, loop, client_max_size=MAX_MESSAGE_BYTES)


class _AgentApi:
    def __init__(self, service: Service) -> None:
        self._service = service

    def taking(self, kind: type[RunRequest]) -> Handler:
        """The handler of a path to which this kind of request comes."""

        async def handle(request: web.BaseRequest) -> web.Response:
            message = await read_packed(kind, request)
            if kind is JoinRequest:
                self._check_quota(visit_of(request).permit, message.run_id)
            return packed(await self._service.ask(message, visit_of(request)))

        return handle

    def _check_quota(self, permit: Permit, run_id: str) -> None:
        if permit.has_quota:
            permit.check_quota(run_id, {run.run_id for run in self._service.runs() if not run.stage.is_end})

    async def leader(self, request: web.BaseRequest) -> web.Response:
        message = decode(LeaderRequest, await body_of(request))
        return packed(await self._service.ask(message, visit_of(request)))


class _OperatorApi:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._view = StatusView(service)

    async def status(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse(headers=HEADERS | {"Content-Type": "application/json; charset=utf-8"})
        await answer.prepare(request)
        if request.method != "HEAD":
            async for piece in self._view.pieces(visit_of(request).permit.covers):
                await answer.write(piece)
        await answer.write_eof()
        return answer

    async def stop(self, request: web.BaseRequest) -> web.Response:
        message = await read_json(StopRequest, request)
        has_ended = not any(run.run_id == message.run_id and not run.stage.is_end for run in self._service.runs())
        done = await self._service.ask(message, visit_of(request))
        if not has_ended:
            log.info("run %s: stopped by %s", message.run_id, peer_of(request.remote or ""))
        return as_json(done)

    async def admit(self, request: web.BaseRequest) -> web.Response:
        message = await read_json(AdmitRequest, request)
        done = await self._service.ask(message, visit_of(request))
        log.info("run %s: nodes that stand by were admitted by %s", message.run_id, peer_of(request.remote or ""))
        return as_json(done)

    async def root(self, request: web.BaseRequest) -> web.Response:
        return plain(WELCOME)

    async def openapi(self, request: web.BaseRequest) -> web.Response:
        return as_json(document())

    async def healthz(self, request: web.BaseRequest) -> web.Response:
        return plain("ok\n")

    async def readyz(self, request: web.BaseRequest) -> web.Response:
        trouble = self._service.trouble
        return plain(f"{trouble or 'ready'}\n", 503 if trouble else 200)

    async def leaderz(self, request: web.BaseRequest) -> web.Response:
        """For load balancers that should know the leader alone."""
        leads = self._service.leads and not self._service.trouble
        return plain("leads\n" if leads else "does not lead\n", 200 if leads else 503)
