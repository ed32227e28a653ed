"""Paths of the server, each with its handler and its OpenAPI description: agents' in msgpack, operators' in JSON."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from aiohttp import web
from rdzv_protocol import actions, errors, messages, paths
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES, NodeCount
from rdzv_protocol.errors import (
    LengthRequired,
    MalformedMessage,
    MessageTooLarge,
    NotLeader,
    ProtocolError,
    UnsupportedMediaType,
)
from rdzv_protocol.events import EventPage
from rdzv_protocol.exposition import CONTENT_TYPE
from rdzv_protocol.text import printable

from rdzv_server.auth.authorization import Caller
from rdzv_server.core.kernel.run import Run
from rdzv_server.core.views import timeline_view
from rdzv_server.core.views.costs import Question
from rdzv_server.core.views.node_costs import NodeCosts
from rdzv_server.core.views.timeline_view import TimelineView
from rdzv_server.http.agent_protocol import AgentAnswer, AgentRequest, AgentServer
from rdzv_server.http.connection import LOOKS, PROBES, HttpConnection
from rdzv_server.http.costs_endpoint import NAMES as ACTION_NAMES
from rdzv_server.http.costs_endpoint import Costs, costs_of, costs_of_node
from rdzv_server.http.events_endpoint import (
    DEFAULT_LIMIT,
    LAST_NUMBER,
    MOST_EVENTS,
    After,
    EventsView,
    Limit,
    number_of,
)
from rdzv_server.http.find_nodes import FoundNodes, find_nodes
from rdzv_server.http.metrics import MetricsView
from rdzv_server.http.peer_limits import Gatekeeper, RefusalLog, address_of, peer_of
from rdzv_server.http.request_handler import LINGER_S, Server
from rdzv_server.http.requests import (
    assign_to_run,
    caller_from,
    caller_of,
    check_framing,
    connection_of,
    read_body,
    read_json,
    send_continue,
    summary_of,
)
from rdzv_server.http.responses import (
    HEADERS,
    as_refusal,
    json_answer,
    json_of,
    packed,
    plain_text,
    refusal_of,
    reply_to,
)
from rdzv_server.http.route import Handler, Route
from rdzv_server.http.status_endpoint import Status, StatusView
from rdzv_server.service.driver import Driver
from rdzv_server.service.interface import Answer, AnyRequest, OperatorRequest, Service
from rdzv_server.service.operator_scheduler import checkpoint
from rdzv_server.service.reading import read
from rdzv_server.service.watch import Watch
from rdzv_server.threads import in_thread_or_here
from rdzv_server.words import http as words

if TYPE_CHECKING:
    from rdzv_server.http.page import Pages

log = logging.getLogger("rdzv_server")

Made = TypeVar("Made")
GONE = 499
"""Status in the metrics, as in nginx, of an answer that is not read because the caller is gone."""
MOST_NODES = 100_000
"""Highest number of nodes that a request may ask about."""
OTHER_PATHS = "other"
"""Name in the metrics for all paths outside the API: pages, their files, and unknown paths."""
SHOWN_TO_PEOPLE = ("curl/", "Wget/", "Mozilla/")
"""Prefixes of user agents that get the status on several lines."""
_STREAM_HEADERS = HEADERS | {"Content-Type": paths.STREAM_TYPE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Headers of a stream. The last one is for nginx, which otherwise keeps an answer back until it has some kilobytes."""


class HttpApi:
    """Answers of one server to HTTP requests. `gatekeeper` checks each request; its connections are `HttpConnection`s.

    `read_only`: whether agents and operators' actions are refused. The paths are few and fixed, so a dict finds them:
    aiohttp's router and middlewares would take a tenth of a request's time.
    """

    def __init__(
        self, service: Service, gatekeeper: Gatekeeper, metrics: MetricsView, *, read_only: bool = False
    ) -> None:
        self._service = service
        self._gatekeeper = gatekeeper
        self._metrics = metrics
        self._measurements = service.measurements
        self._now = asyncio.get_running_loop().time
        self._is_closing = False
        self._refusals = RefusalLog()
        self._status = StatusView(service)
        self.watch = Watch(service)
        self._events = EventsView(service)
        self._pages: asyncio.Task[Pages] | None = None
        self._openapi: asyncio.Task[bytes] | None = None
        self._routes = {
            route.path: replace(route, handler=HttpApi.refuse) if read_only and route.method != "GET" else route
            for route in ROUTES
        }

    def serve(self, idle_s: float) -> AgentServer:
        """Return the maker of connections' protocols.

        `idle_s`: most seconds from an answer to the connection's next request.
        """
        others = Server(
            self.answer,
            request_factory=_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=idle_s,
            auto_decompress=False,
            lingering_time=LINGER_S,
        )
        agent_paths = [path for path, route in self._routes.items() if route.handler is HttpApi.take]
        return AgentServer(self.answer_agent, agent_paths, others, idle_s)

    def close(self) -> None:
        """Make each answer the last one of its connection, so that the next request goes to the next server."""
        self._is_closing = True
        self.watch.close()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request in any case, and measure it without the time for which it was held."""
        began_at = self._now()
        try:
            connection = connection_of(request)
        except ConnectionError:
            return web.Response(status=GONE)
        connection.held_s = 0.0
        answer = await self._answer(request, connection, began_at)
        if self._is_closing and not answer.prepared:
            answer.force_close()
        path = request.path if request.path in self._routes else paths.template_of(request.path)
        path = path if path in self._routes else OTHER_PATHS
        self._measurements.answered(path, answer.status, self._now() - began_at - connection.held_s)
        return answer

    async def answer_agent(self, request: AgentRequest, connection: HttpConnection) -> AgentAnswer:
        """Answer an agent's request in any case, and measure it as `answer` does."""
        began_at, caller = self._now(), caller_from(request.headers, request.peer, is_tls=request.is_tls)
        connection.held_s, status = 0.0, 200
        try:
            self._check(connection, "POST", request.path, caller, began_at)
            answer = await self._take(request.path, request.body, caller.host, connection)
            body = encode(answer)
        except ConnectionError:
            status, body = GONE, b""
        except Exception as error:
            status, body = self._refusal(error, caller, request.path)
        finally:
            connection.request_answered()
        self._measurements.answered(request.path, status, self._now() - began_at - connection.held_s)
        return AgentAnswer(status, body, is_last=self._is_closing or status == GONE)

    def _refusal(self, error: Exception, caller: Caller, path: str) -> tuple[int, bytes]:
        """Return status and body of the answer to an agent's message that failed with `error`."""
        if isinstance(error, ProtocolError):
            self._note(caller, error)
        refusal = as_refusal(error, "POST", path)
        return refusal.status, encode(reply_to(refusal))

    async def _answer(self, request: web.BaseRequest, connection: HttpConnection, now: float) -> web.StreamResponse:
        try:
            try:
                self._let_in(connection, request, now)
                handler = self._handler(request)
                if request.method in LOOKS and request.path not in PROBES:
                    await checkpoint(connection.peer)
                if "Expect" in request.headers:
                    await send_continue(request)
                return await handler(self, request)
            finally:
                connection.request_answered()
        except ConnectionError:
            return web.Response(status=GONE)
        except Exception as error:
            if request.writer.output_size:  # half an answer cannot be taken back, only cut off
                log.error(words.answer_failed(request.method, request.path), exc_info=error)
                raise ConnectionResetError from error
            if isinstance(error, ProtocolError):
                self._note(caller_of(request), error)
            return refusal_of(request, error)

    def _let_in(self, connection: HttpConnection, request: web.BaseRequest, now: float) -> None:
        """Check the request without its body. Raises the `ProtocolError` that refuses it."""
        if connection.lacks_tls:
            raise errors.TlsRequired(words.SPEAKS_TLS)
        check_framing(request)
        if not request.body_exists:
            connection.request_arrived()
        self._check(connection, request.method, request.path, caller_of(request), now)

    def _check(self, connection: HttpConnection, method: str, path: str, caller: Caller, now: float) -> None:
        """Check the sender of a request. Raises the `ProtocolError` that refuses it."""
        permit = self._gatekeeper.check(method, path, caller, connection.credential, now)
        if path.startswith((paths.API, paths.METRICS)):
            connection.let_in(permit, caller.credential)

    def _handler(self, request: web.BaseRequest) -> Handler:
        """Return the handler of the request; HEAD has that of GET. Raises `web.HTTPException`."""
        route = self._routes.get(request.path) or self._routes.get(paths.template_of(request.path))
        if route is None:
            return HttpApi.page
        if request.method != route.method and (request.method, route.method) != ("HEAD", "GET"):
            allowed = ["GET", "HEAD"] if route.method == "GET" else [route.method]
            raise web.HTTPMethodNotAllowed(request.method, allowed)
        return route.handler

    def _note(self, caller: Caller, error: ProtocolError) -> None:
        now = self._now()
        if isinstance(error, errors.Unauthorized | errors.Forbidden):
            self._gatekeeper.note_refusal(caller, now)
        if not self._service.state().unhealthy_reason:  # that is logged on its own
            self._refusals.note(peer_of(caller.peer), error, now)

    # Handlers.

    async def take(self, request: web.BaseRequest) -> web.Response:
        """Answer an agent's message that aiohttp has read."""
        connection = connection_of(request)
        return packed(await self._take(request.path, await read_body(request), request.host, connection))

    async def _take(self, path: str, body: bytes, host: str, connection: HttpConnection) -> Answer:
        """Return the answer to an agent's message. Raises the `ProtocolError` that refuses it."""
        message: AnyRequest = decode(self._routes[path].request, body)
        assign_to_run(connection, message)
        self._status.agent_came(host)
        if isinstance(message, messages.JoinRequest) and connection.permit.has_quota:
            connection.permit.check_quota(message.run_id, self._active_runs())
        return await self._service.ask(message, connection)

    async def refuse(self, request: web.BaseRequest) -> web.Response:
        """Refuse a message or an action on a server that only shows its run."""
        raise errors.Forbidden(words.READ_ONLY)

    async def act(self, request: web.BaseRequest) -> web.Response:
        """Carry out an operator's action, or ask an agent an operator's question."""
        route, connection = self._routes[request.path], connection_of(request)
        message = read_json(route.request, await read_body(request))
        by = f"{connection.permit.role} {address_of(request.remote or '')}".strip()
        wanted = OperatorRequest(message, by)
        assign_to_run(connection, wanted)
        return json_of(await self._service.ask(wanted, connection))

    async def status(self, request: web.BaseRequest) -> web.StreamResponse:
        query, permit = request.rel_url.query, connection_of(request).permit
        only = query.get("run_id")
        in_lines = query.get("pretty") not in ("0", "false") and (
            "pretty" in query or request.headers.get("User-Agent", "").startswith(SHOWN_TO_PEOPLE)
        )
        answer = web.StreamResponse(headers=HEADERS | {"Content-Type": "application/json; charset=utf-8"})
        await answer.prepare(request)
        if request.method != "HEAD":
            async for piece in self._status.pieces(permit.shows, only, in_lines=in_lines):
                await answer.write(piece)
        await answer.write_eof()
        return answer

    async def events(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer with a page of events, or with a stream if the client accepts one."""
        run_id, query = _run_of(request), request.rel_url.query
        after = number_of("after", query.get("after"), 0, 0, LAST_NUMBER)
        if paths.STREAM_TYPE in request.headers.get("Accept", "") and request.method != "HEAD":
            after = number_of("Last-Event-ID", request.headers.get("Last-Event-ID"), after, 0, LAST_NUMBER)
            return await self._stream(request, self._events.stream(run_id, after))
        limit = number_of("limit", query.get("limit"), DEFAULT_LIMIT, 1, MOST_EVENTS)
        return json_of(await self._events.page(run_id, after, limit))

    async def timeline(self, request: web.BaseRequest) -> web.Response:
        run_id = _run_of(request)

        async def latest(driver: Driver) -> Run:
            return driver.attempt_of(run_id)

        run, now = await self._service.with_driver(run_id, latest), self._service.now(run_id)
        return json_of(read(run, lambda: timeline_view.view(run, now), lambda _: timeline_view.unreadable(run, now)))

    async def find_nodes(self, request: web.BaseRequest) -> web.Response:
        """Answer with the runs that have matching nodes."""
        name, permit = request.rel_url.query.get("name", ""), connection_of(request).permit
        return json_of(await find_nodes(self._service, permit.shows, name))

    async def node_costs(self, request: web.BaseRequest) -> web.Response:
        """Answer with the costs of a node for runs."""
        node_id, permit = request.rel_url.query.get("node_id", ""), connection_of(request).permit
        return json_of(await costs_of_node(self._service, permit.shows, node_id))

    async def costs(self, request: web.BaseRequest) -> web.Response:
        """Answer with what an action would cost."""
        query, permit = request.rel_url.query, connection_of(request).permit
        low, high = (number_of(name, query.get(name), 0, 0, MOST_NODES) for name in ("min_nodes", "max_nodes"))
        asked = Question(query.get("node_id", ""), low, high)
        action, run_id = query.get("action", ""), query.get("run_id", "")
        return json_of(await costs_of(self._service, permit.shows, action, run_id, asked))

    async def metrics(self, request: web.BaseRequest) -> web.Response:
        connection_of(request).permit.check_every_run(words.METRICS_OF_ALL)
        body = await self._metrics.body()
        return web.Response(body=body, headers=HEADERS | {"Content-Type": CONTENT_TYPE})

    async def follow(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send the status, and then its changes."""
        connection, run_id = connection_of(request), request.rel_url.query.get("run_id")
        permit = connection.permit
        if run_id is not None:
            permit.check_run(run_id)
        last = request.headers.get("Last-Event-ID", "")
        return await self._stream(request, self.watch.follow(connection.peer, run_id, last, permit.shows))

    async def _stream(self, request: web.BaseRequest, events: AsyncGenerator[bytes, None]) -> web.StreamResponse:
        """Send server-sent events as they come, until there are no more or the caller has gone.

        When the server reads its tokens again, the stream ends as well: callers that still have access reconnect.
        """
        connection, began_at, access = connection_of(request), self._now(), self._gatekeeper.access
        answer = web.StreamResponse(headers=_STREAM_HEADERS)
        try:
            async with aclosing(events):
                async for event in events:
                    if self._gatekeeper.access is not access:
                        break
                    if not answer.prepared:
                        await answer.prepare(request)
                        if request.method == "HEAD":
                            break
                    await answer.write(event)
        finally:
            connection.held(self._now() - began_at)
        if not answer.prepared:
            await answer.prepare(request)
        await answer.write_eof()
        return answer

    async def page(self, request: web.BaseRequest) -> web.Response:
        """Answer with a page for people, or with a static file. Neither is part of the API."""
        if self._pages is None or _has_failed(self._pages):
            # Requests meanwhile wait for the same task.
            self._pages = asyncio.create_task(in_thread_or_here(self._load_pages))
        pages = await _made(self._pages, request)
        return await pages.answer(request)

    def _load_pages(self) -> "Pages":
        """Import jinja2 and compile the templates, for the first page, in a thread."""
        from rdzv_server.http import page

        page.load_templates()
        offered = [each for each in actions.ACTIONS if self._routes[each.path].handler is not HttpApi.refuse]
        return page.Pages(self._service, self._gatekeeper, self._note, offered)

    async def openapi(self, request: web.BaseRequest) -> web.Response:
        """Answer with the document, which is made once, in a thread beside agents' requests."""
        if self._openapi is None or _has_failed(self._openapi):
            self._openapi = asyncio.create_task(in_thread_or_here(_openapi))
        return json_answer(await _made(self._openapi, request))

    async def root(self, request: web.BaseRequest) -> web.Response:
        """Answer browsers with the page of all runs, and curl and programs with text."""
        is_for_people = "text/html" in request.headers.get("Accept", "")
        return await self.page(request) if is_for_people else plain_text(_welcome())

    async def healthz(self, request: web.BaseRequest) -> web.Response:
        state = self._service.state()
        parts = ["ok"]
        if state.set_apart:
            names = ", ".join(map(printable, state.set_apart)) if self._gatekeeper.access.is_open else ""
            parts.append(words.set_apart(names) if names else words.number_set_apart(len(state.set_apart)))
        if state.event_errors:
            parts.append(words.event_errors(len(state.event_errors)))
        return plain_text("; ".join(parts) + "\n")

    async def readyz(self, request: web.BaseRequest) -> web.Response:
        reason = self._service.state().unhealthy_reason
        return plain_text(f"{reason or 'ready'}\n", 503 if reason else 200)

    async def leaderz(self, request: web.BaseRequest) -> web.Response:
        state = self._service.state()
        leads = state.leads and not state.unhealthy_reason
        return plain_text("leads\n" if leads else "does not lead\n", 200 if leads else 503)

    def _active_runs(self) -> set[str]:
        """Return the ids of the runs that have not ended."""
        return {run.run_id for run in self._service.runs() if not run.stage.is_end}


def _run_of(request: web.BaseRequest) -> str:
    """Return the id of the run in the path, which the caller may see. Raises `web.HTTPNotFound` or `Forbidden`."""
    run_id = paths.run_id_of(request.path)
    if run_id is None:
        raise web.HTTPNotFound  # the path has `{run_id}` instead of an id
    connection_of(request).permit.check_run(run_id)
    return run_id


_OF_EVERY_MESSAGE = (MalformedMessage, LengthRequired, MessageTooLarge, UnsupportedMediaType)


def _agents(path: str, request: Any, answer: Any, summary: str, *refusals: type[ProtocolError]) -> Route:
    return Route(
        method="POST", path=path, handler=HttpApi.take, summary=summary, request=request, answer=answer,
        says=summary_of(answer), refusals=(*_OF_EVERY_MESSAGE, *refusals),
    )  # fmt: skip


def _action(action: actions.Action) -> Route:
    return _acts(action.path, action.request, *action.refusals, answer=actions.Done, says=summary_of(actions.Done))


def _acts(path: str, request: Any, *refusals: type[ProtocolError], answer: Any, says: str) -> Route:
    return Route(
        method="POST", path=path, handler=HttpApi.act, summary=summary_of(request),
        request=request, answer=answer, says=says, refusals=(*_OF_EVERY_MESSAGE, NotLeader, *refusals),
    )  # fmt: skip


def _question(path: str, handler: Handler, summary: str, **more: Any) -> Route:
    return Route(method="GET", path=path, handler=handler, summary=summary, **more)


ROUTES: tuple[Route, ...] = (
    _agents(
        paths.JOIN, messages.JoinRequest, messages.Reply,
        "Join the next round of a run. This is also the first long poll.",
        NotLeader, errors.AgentFenced, errors.SettingsConflict, errors.NodeRankTaken, errors.RunSucceeded,
        errors.RunFailed, errors.RunStopped, errors.OutcomeUnknown,
    ),
    _agents(
        paths.POLL, messages.PollRequest, messages.Reply, "Wait for the next directive: a long poll.",
        NotLeader, errors.AgentFenced,
    ),
    _agents(
        paths.REPORT, messages.ReportRequest, messages.Ack, "Report how the workers of a round ended.",
        NotLeader, errors.AgentFenced, errors.StaleRound,
    ),
    _agents(
        paths.SUSPECT, messages.SuspectRequest, messages.Ack, "Report which workers seem to hang, or no longer hang.",
        NotLeader, errors.AgentFenced, errors.StaleRound,
    ),
    _agents(paths.LEAVE, messages.LeaveRequest, messages.Ack, "Leave the run.", NotLeader, errors.AgentFenced),
    _agents(
        paths.ANSWER, messages.AnswerRequest, messages.Ack, "Answer a query of the server.",
        NotLeader, errors.AgentFenced,
    ),
    _agents(
        paths.LEADER, messages.LeaderRequest, messages.LeaderReply,
        "Ask one of several servers for the leader: a long poll.",
    ),
    _question(
        paths.STATUS, HttpApi.status, "The server and every run that it remembers.", answer=Status,
        says="Durations are seconds.",
        query=(
            ("run_id", str, "Only this run."),
            ("pretty", str, "1: in lines, for people; 0: not. Default: 1 for curl, wget and browsers, else 0."),
        ),
    ),
    _question(
        paths.WATCH, HttpApi.follow, "The status, then each change of it: server-sent events.",
        media=paths.STREAM_TYPE,
        says="An event `snapshot` with the document, then events `patch`, JSON merge patches (RFC 7386) of it, and "
        "`ping` while nothing changes. Times are seconds since 1970.",
        query=(("run_id", str, "Only this run, with its nodes. Default: all runs, each in a line."),),
    ),
    _question(
        paths.EVENTS, HttpApi.events, "The events of a run, in order; with `Accept: text/event-stream` as a stream.",
        answer=EventPage, says="A page of events, and the number to ask for the next page.",
        streams="For each event its number as `id`, its kind as `event`, and a RunEvent in JSON as `data`; a comment "
        "while nothing happens; `event: error` with an ErrorReply before the server ends the stream.",
        refusals=(MalformedMessage, NotLeader, errors.UnknownRun),
        query=(
            ("after", After, "Return only events after this number. Default: 0, from the beginning."),
            ("limit", Limit, f"Events of a page, 1 to {MOST_EVENTS} ({DEFAULT_LIMIT} by default); a stream sends all."),
        ),
    ),
    _question(
        paths.TIMELINE, HttpApi.timeline, "Rounds, progress and events of a run over time, for a picture of it.",
        answer=TimelineView, says="The last attempt of the run, in less than 100 kB, however long the run is.",
        refusals=(NotLeader, errors.UnknownRun),
    ),
    _question(
        paths.FIND_NODES, HttpApi.find_nodes, "The runs that have nodes with this name.", answer=FoundNodes,
        says="Their latest attempts, each with the first few of these nodes.",
        query=(("name", str, "Part of the nodes' names. Default: all nodes."),),
    ),
    _question(
        paths.NODE_COSTS, HttpApi.node_costs, "What a node has cost runs.", answer=NodeCosts,
        says="Blame that this server remembers, and the failures, losses and seconds of each run that has the node.",
        query=(("node_id", str, "The node's name."),),
    ),
    _question(
        paths.COSTS, HttpApi.costs, "The cost of an action, before it is carried out.", answer=Costs,
        says="A sentence; empty if the action costs nothing.", refusals=(MalformedMessage,),
        query=(
            ("action", Literal[ACTION_NAMES], "Name of the action, which is the end of its path."),
            ("run_id", str, "The run of an action on a run."),
            ("node_id", str, "The node of an action on a node."),
            ("min_nodes", NodeCount, "Minimum number of nodes, for a resize."),
            ("max_nodes", NodeCount, "Maximum number of nodes, for a resize."),
        ),
        required=("action",),
    ),
    _question(paths.METRICS, HttpApi.metrics, "Metrics of the server and its runs, in Prometheus' text format."),
    *map(_action, actions.ACTIONS),
    _acts(
        paths.LOGS, actions.LogsRequest, errors.UnknownRun, errors.UnknownRank, errors.RunEnded, errors.QueryRefused,
        errors.NoAnswer, errors.TooManyRequests, answer=actions.WorkerLog, says="The lines that the agent has read.",
    ),
    _acts(
        paths.STACKS, actions.StacksRequest, errors.UnknownRun, errors.UnknownRank, errors.RunEnded,
        errors.QueryRefused, errors.NoAnswer, errors.TooManyRequests, answer=actions.WorkerStacks,
        says="The stacks that the agents have found.",
    ),
    _acts(
        paths.DESCRIBE, actions.DescribeRequest, errors.UnknownRun, errors.UnknownNode, errors.RunEnded,
        errors.QueryRefused, errors.NoAnswer, errors.TooManyRequests, answer=actions.AgentDescription,
        says="The agent's description of itself.",
    ),
    _question(paths.ROOT, HttpApi.root, "A start page for people."),
    _question(paths.HEALTHZ, HttpApi.healthz, "Whether the process answers."),
    _question(paths.READYZ, HttpApi.readyz, "Whether the server can decide.", no="It cannot; the body says why."),
    _question(paths.LEADERZ, HttpApi.leaderz, "Whether this server leads.", no="Another server leads, or none."),
    _question(paths.OPENAPI, HttpApi.openapi, "The whole API, for programs: this document.", answer=dict),
)  # fmt: skip


def _with_query(route: Route) -> str:
    """Return the path of the route, with the names of its parameters."""
    names = "&".join(f"{name}=" for name, _, _ in route.query)
    return f"{route.path}[?{names}]" if names else route.path


def _has_failed(making: "asyncio.Task[Made]") -> bool:
    """Return whether a task has failed. Another one may succeed."""
    return making.done() and (making.cancelled() or making.exception() is not None)


async def _made(making: "asyncio.Task[Made]", request: web.BaseRequest) -> Made:
    """Return the result of a task that many requests may wait for. Each of them continues in its own turn."""
    if not making.done():
        await asyncio.shield(making)
        await checkpoint(connection_of(request).peer)
    return making.result()


def _openapi() -> bytes:
    from rdzv_server.http.openapi import document

    return msgspec.json.encode(document(ROUTES))


def _welcome() -> str:
    """Return the text for people and programs that get `/` without a browser: the other paths."""
    looks = [f"  GET {_with_query(route):43} {route.summary}" for route in ROUTES if route.method == "GET"]
    return words.welcome(looks) + "\n"


# aiohttp.


def _request(message: Any, body: Any, connection: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, body, connection, writer, task, loop, client_max_size=MAX_MESSAGE_BYTES)
