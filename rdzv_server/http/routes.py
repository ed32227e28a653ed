"""Paths of the server, each with its handler and what OpenAPI says of it: agents' in msgpack, operators' in JSON."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web
from rdzv_protocol import paths
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.errors import (
    AgentFenced,
    Forbidden,
    MalformedMessage,
    MessageTooLarge,
    NobodyWaits,
    NodeRankTaken,
    NotLeader,
    ProtocolError,
    RunFailed,
    RunSucceeded,
    SettingsConflict,
    StaleRound,
    TlsRequired,
    Unauthorized,
    UnknownRun,
    UnsupportedMediaType,
)
from rdzv_protocol.messages import (
    Ack,
    AdmitRequest,
    JoinRequest,
    LeaderReply,
    LeaderRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    StopRequest,
)

from rdzv_server.http.connection import HttpConnection
from rdzv_server.http.limits import Gatekeeper, RefusalLog, peer_of
from rdzv_server.http.request_codec import (
    HEADERS,
    as_json,
    as_text,
    caller_of,
    connection_of,
    packed,
    read_json,
    read_packed,
    refusal,
    tell_to_go_on,
)
from rdzv_server.http.status_endpoint import Status, StatusView
from rdzv_server.service.interface import AnyRequest, Service

log = logging.getLogger("rdzv_server")

LINGER_S = 1.0
"""How long the rest of a refused request is read and thrown away, so that its sender comes to read the answer."""
SHOWN_TO_PEOPLE = ("curl/", "Wget/", "Mozilla/")
"""User agents for which the status is written in lines."""

WELCOME = f"""\
rdzv-server: the rendezvous service for elastic PyTorch runs

  GET {paths.STATUS}              every run: its nodes, who is missing and until when, failures, restarts
  GET {paths.STATUS}?run_id=ID    one run
  GET {paths.READYZ}                 whether runs can be decided about at present
  GET {paths.OPENAPI}           the whole API, for programs

Take part from each node:  node-agent --endpoint HOST:PORT --nnodes N --nproc M train.py
"""

Handler = Callable[["HttpApi", web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path: who answers it, and what is said of it in the OpenAPI document."""

    method: str
    path: str
    handler: Handler
    summary: str
    request: type[AnyRequest] | None = None
    """Message in the body."""
    answer: Any = str
    """Type of the answer 200: a message, `Status`, text, or a dict for any JSON."""
    says: str = ""
    """The answer 200 in words; empty: the summary."""
    no: str = ""
    """What an answer 503 in plain text says, if there may be one; 200 is then a yes."""
    query: tuple[tuple[str, str], ...] = ()
    """Parameters behind the `?`, with what they do."""
    refusals: tuple[type[ProtocolError], ...] = ()
    """Beside those that any request may meet."""


class HttpApi:
    """Answers of one server to HTTP requests. `gatekeeper` judges each of them; its connections are `HttpConnection`s.

    `read_only`: without the paths on which anything can be done. The paths are few and fixed: a dict finds them, where
    aiohttp's router and middlewares take a tenth of a request.
    """

    def __init__(self, service: Service, gatekeeper: Gatekeeper, *, read_only: bool = False) -> None:
        self._service = service
        self._gatekeeper = gatekeeper
        self._refusals = RefusalLog()
        self._status = StatusView(service)
        self._routes = {route.path: route for route in ROUTES if route.method == "GET" or not read_only}

    def serve(self, idle_s: float) -> web.Server:
        """aiohttp's server. `idle_s`: how long a connection may stand between an answer and the next request."""
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
        """The answer to a request, whatever happens."""
        try:
            connection = connection_of(request)
            try:
                self._let_in(connection, request)
                handler = self._handler(request)
                if "Expect" in request.headers:
                    await tell_to_go_on(request)
                return await handler(self, request)
            finally:
                connection.request_answered()
        except ConnectionError:
            return web.Response(status=503)  # the caller is gone: nobody reads it
        except Exception as error:
            if request.writer.output_size:  # half an answer cannot be taken back, only cut off
                log.error("%s %s failed while it was being answered", request.method, request.path, exc_info=error)
                raise ConnectionResetError from error
            if isinstance(error, ProtocolError):
                self._note(request, error)
            return refusal(request, error)

    def _let_in(self, connection: HttpConnection, request: web.BaseRequest) -> None:
        """Raise the `ProtocolError` that refuses the request for what stands above its body."""
        caller, now = caller_of(request), asyncio.get_running_loop().time()
        if connection.lacks_tls:
            raise TlsRequired("this server speaks TLS: start the agent with --tls-ca (curl: https://)")
        _check_framing(request)
        if not request.body_exists:
            connection.request_arrived()
        permit = self._gatekeeper.check(request.method, request.path, caller, connection.credential, now)
        if request.path.startswith(paths.API):
            connection.let_in(permit, caller.authorization)

    def _handler(self, request: web.BaseRequest) -> Handler:
        """Raises `web.HTTPException`. HEAD asks for what GET would give."""
        route = self._routes.get(request.path)
        if route is None:
            raise web.HTTPNotFound
        if request.method != route.method and (request.method, route.method) != ("HEAD", "GET"):
            allowed = ["GET", "HEAD"] if route.method == "GET" else [route.method]
            raise web.HTTPMethodNotAllowed(request.method, allowed)
        return route.handler

    def _note(self, request: web.BaseRequest, error: ProtocolError) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(error, Unauthorized | Forbidden):
            self._gatekeeper.note_refusal(caller_of(request), now)
        if not self._service.state().unhealthy_reason:  # which is said by itself
            self._refusals.note(peer_of(request.remote or ""), error, now)

    # Handlers.

    async def take(self, kind: type[AnyRequest], request: web.BaseRequest) -> web.Response:
        """Answer an agent's message of this kind."""
        message, connection = await read_packed(kind, request), connection_of(request)
        if isinstance(message, JoinRequest) and connection.permit.has_quota:
            connection.permit.check_quota(message.run_id, self._going_on())
        return packed(await self._service.ask(message, connection))

    async def act(self, kind: type[StopRequest | AdmitRequest], done: str, request: web.BaseRequest) -> web.Response:
        """Do what an operator asks, and log that it is `done`, if there was anything to do."""
        message = await read_json(kind, request)
        is_going_on = message.run_id in self._going_on()
        answer = await self._service.ask(message, connection_of(request))
        if is_going_on:
            log.info("run %s: %s by %s", message.run_id, done, peer_of(request.remote or ""))
        return as_json(answer)

    async def status(self, request: web.BaseRequest) -> web.StreamResponse:
        query, permit = request.rel_url.query, connection_of(request).permit
        only = query.get("run_id")
        in_lines = query.get("pretty") not in ("0", "false") and (
            "pretty" in query or request.headers.get("User-Agent", "").startswith(SHOWN_TO_PEOPLE)
        )
        answer = web.StreamResponse(headers=HEADERS | {"Content-Type": "application/json; charset=utf-8"})
        await answer.prepare(request)
        if request.method != "HEAD":
            shows = permit.covers if only is None else lambda run_id: run_id == only and permit.covers(run_id)
            async for piece in self._status.pieces(shows, in_lines=in_lines):
                await answer.write(piece)
        await answer.write_eof()
        return answer

    async def openapi(self, request: web.BaseRequest) -> web.Response:
        from rdzv_server.http.openapi import document

        return as_json(document(ROUTES))

    async def root(self, request: web.BaseRequest) -> web.Response:
        return as_text(WELCOME)

    async def healthz(self, request: web.BaseRequest) -> web.Response:
        return as_text("ok\n")

    async def readyz(self, request: web.BaseRequest) -> web.Response:
        reason = self._service.state().unhealthy_reason
        return as_text(f"{reason or 'ready'}\n", 503 if reason else 200)

    async def leaderz(self, request: web.BaseRequest) -> web.Response:
        state = self._service.state()
        leads = state.leads and not state.unhealthy_reason
        return as_text("leads\n" if leads else "does not lead\n", 200 if leads else 503)

    def _going_on(self) -> set[str]:
        """Ids of the runs that have not ended."""
        return {run.run_id for run in self._service.runs() if not run.stage.is_end}


_OF_EVERY_MESSAGE = (MalformedMessage, MessageTooLarge, UnsupportedMediaType)


def _agents(path: str, kind: type[AnyRequest], answer: Any, summary: str, *refusals: type[ProtocolError]) -> Route:
    async def handle(api: HttpApi, request: web.BaseRequest) -> web.StreamResponse:
        return await api.take(kind, request)

    return Route(
        method="POST", path=path, handler=handle, summary=summary, request=kind, answer=answer,
        says=" ".join((answer.__doc__ or "").split()), refusals=(*_OF_EVERY_MESSAGE, *refusals),
    )  # fmt: skip


def _action(path: str, kind: Any, done: str, summary: str, *refusals: type[ProtocolError]) -> Route:
    async def handle(api: HttpApi, request: web.BaseRequest) -> web.StreamResponse:
        return await api.act(kind, done, request)

    return Route(
        method="POST", path=path, handler=handle, summary=summary, request=kind, answer=Ack,
        says="It is done, or was before.", refusals=(*_OF_EVERY_MESSAGE, NotLeader, UnknownRun, *refusals),
    )  # fmt: skip


def _question(path: str, handler: Handler, summary: str, **more: Any) -> Route:
    return Route(method="GET", path=path, handler=handler, summary=summary, **more)


ROUTES: tuple[Route, ...] = (
    _agents(
        paths.JOIN, JoinRequest, Reply, "Join the next round of a run; itself the first long poll.",
        NotLeader, AgentFenced, SettingsConflict, NodeRankTaken, RunSucceeded, RunFailed,
    ),
    _agents(paths.POLL, PollRequest, Reply, "Wait for the next directive: a long poll.", NotLeader, AgentFenced),
    _agents(
        paths.REPORT, ReportRequest, Ack, "Say how a round's workers ended.", NotLeader, AgentFenced, StaleRound
    ),
    _agents(paths.LEAVE, LeaveRequest, Ack, "Leave the run.", NotLeader, AgentFenced),
    _agents(paths.LEADER, LeaderRequest, LeaderReply, "Ask one of several servers who leads: a long poll."),
    _question(
        paths.STATUS, HttpApi.status, "The server and every run that it remembers.", answer=Status,
        says="Durations are seconds.",
        query=(
            ("run_id", "This run alone."),
            ("pretty", "Whether in lines, for people: 0 or 1; without it, for curl, wget and browsers."),
        ),
    ),
    _action(paths.STOP, StopRequest, "stopped", "End a run, whatever it does."),
    _action(
        paths.ADMIT, AdmitRequest, "nodes that stand by were admitted",
        "Give the free seats of a running round to nodes that stand by.", NobodyWaits,
    ),
    _question(paths.ROOT, HttpApi.root, "Where to look, for people."),
    _question(paths.HEALTHZ, HttpApi.healthz, "Whether the process answers."),
    _question(paths.READYZ, HttpApi.readyz, "Whether the server can decide.", no="It cannot; the body says why."),
    _question(paths.LEADERZ, HttpApi.leaderz, "Whether this server leads.", no="Another one leads, or none."),
    _question(paths.OPENAPI, HttpApi.openapi, "This document.", answer=dict),
)  # fmt: skip


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
        answer = as_text(f"{status} {HTTPStatus(status).phrase}\n", status)
        answer.force_close()
        return answer
