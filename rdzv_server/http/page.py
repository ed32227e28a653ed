"""Pages for people, as HTML: all runs, one run, one node, and the login. Pages of runs stay current by `/v1/watch`.

A page loads nothing from other hosts, and executes only the scripts that this server serves: the headers tell the
browser so. Everything that a script or an agent has written is shown as text: the templates escape it, and `page.js`
never turns text into markup.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote

import rdzv_protocol
from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from msgspec import structs
from rdzv_protocol import errors, paths
from rdzv_protocol.actions import Action
from rdzv_protocol.states import HEALTH, PHASES, TONE_OF, TONES, Phase

from rdzv_server.auth import session
from rdzv_server.auth.authorization import Caller, Permit
from rdzv_server.core.kernel.run import Run
from rdzv_server.core.views import run_view, status_view, watch_view
from rdzv_server.core.views.status_view import NodeStatus
from rdzv_server.http import responses
from rdzv_server.http.costs_endpoint import costs_of_node
from rdzv_server.http.events_endpoint import number_of
from rdzv_server.http.peer_limits import Gatekeeper
from rdzv_server.http.requests import caller_of, connection_of, read_body, summary_of
from rdzv_server.service.interface import ServerState, Service, latest_runs, state_for
from rdzv_server.service.operator_scheduler import checkpoint
from rdzv_server.service.reading import read
from rdzv_server.words import http as words
from rdzv_server.words import page as page_words

WEB = Path(__file__).parents[1] / "web"
SCRIPT = "text/javascript"
STATIC = {
    "page.css": "text/css", "page.js": SCRIPT, "runs.js": SCRIPT, "timeline.js": SCRIPT, "nodes.js": SCRIPT,
    "events.js": SCRIPT, "actions.js": SCRIPT, "icon.svg": "image/svg+xml", "icon-trouble.svg": "image/svg+xml",
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = responses.HEADERS | {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # not no-referrer: then forms would not name an origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NoteRefusal = Callable[[Caller, errors.ProtocolError], None]
Shown = dict[str, Any]
"""Variables of a template."""
Show = Callable[[Caller, Permit], Awaitable[web.Response]]
Thing = TypeVar("Thing")
MOST_LOGIN_BYTES = 4_096
"""Most bytes of the login form: a token, and a path."""
MOST_QUERY = 1_000
"""Longest query that a page still has after a login: the form's fields contain it, up to three times as long."""
PHASES_BY_NEED: tuple[Phase, ...] = (
    "unhealthy", "failed", "restarting", "forming", "finishing", "running", "succeeded",
)  # fmt: skip
"""Phases of runs that are not in trouble: those of runs that need a person come first."""
ROWS, ATTEMPTS, LAST_ROW = 256, 16, 10**6
"""Rows of a plain table; attempts of a run that are shown; highest row that may be requested."""
FOR_A_DAY = "max-age=86400, immutable"
"""Cache-Control of static files: their addresses change with their contents."""


class Button:
    """Button of a page for an action."""

    def __init__(self, action: Action) -> None:
        self.path, self.label, self.is_destructive = action.path, action.label, action.is_destructive
        self.means = summary_of(action.request).replace("`", "")
        self.of_node, self.of_absent = action.of_node, action.of_absent
        self.of_ended = action.of_ended
        """Whether the button is for a run that has ended, rather than an active one."""
        self.asks = ["reason", *action.fields]
        """Fields of the dialog, by their names in the request, and `round`, which the page itself fills in."""
        self.inputs = action.inputs


class Pages:
    """Pages of one server.

    `note` is called with each refused login. `actions`: the actions that have buttons.
    """

    def __init__(self, service: Service, gatekeeper: Gatekeeper, note: NoteRefusal, actions: Iterable[Action]) -> None:
        self._service = service
        self._gatekeeper = gatekeeper
        self._note = note
        self._buttons = [Button(action) for action in sorted(actions, key=lambda action: action.place)]

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer with a page or a file. Raises `web.HTTPException` if there is none, or a `ProtocolError`."""
        method, path = "GET" if request.method == "HEAD" else request.method, request.path
        folder = path[: path.find("/", 1) + 1]
        handlers = _HANDLERS.get(folder or path, {})
        if not handlers:
            raise web.HTTPNotFound
        if method not in handlers:
            raise web.HTTPMethodNotAllowed(request.method, handlers)
        return await handlers[method](self, request)

    async def _file(self, request: web.BaseRequest) -> web.Response:
        name = request.path.removeprefix(paths.STATIC)
        if name not in STATIC:
            raise web.HTTPNotFound
        headers = HEADERS | {"Cache-Control": FOR_A_DAY}
        return web.Response(body=_read(name), headers=headers, content_type=STATIC[name], charset="utf-8")

    async def _runs(self, request: web.BaseRequest) -> web.Response:
        """Answer with the page of all runs."""
        return await self._looked_at(request, paths.ROOT, partial(self._live_or_plain, request, "runs", paths.ROOT, ""))

    async def _run(self, request: web.BaseRequest) -> web.Response:
        """Answer with the page of one run."""
        run_id = _id_of(request, paths.RUN_PAGE, "run_id")
        if not run_id:
            return _redirected(paths.ROOT)
        path = path_of(run_id)
        return await self._looked_at(request, path, partial(self._live_or_plain, request, "run", path, run_id))

    async def _node(self, request: web.BaseRequest) -> web.Response:
        """Answer with the page of one node and its costs for runs. The page needs no script."""
        node_id = _id_of(request, paths.NODE_PAGE, "node_id")
        if not node_id:
            return _redirected(paths.ROOT)

        async def show(caller: Caller, permit: Permit) -> web.Response:
            costs = await costs_of_node(self._service, permit.shows, node_id)
            return await self._show("node", caller, costs=costs, **self._of_server(caller, permit))

        return await self._looked_at(request, node_path_of(node_id), show)

    async def _looked_at(self, request: web.BaseRequest, path: str, show: Show) -> web.Response:
        """Answer with a page, a refusal, or a redirection to the login, which leads back to `path`."""
        caller = caller_of(request)
        try:
            return await show(caller, self._check_look(request, caller))
        except errors.Unauthorized:
            if caller.authorization:
                raise
            return _redirected(f"{paths.LOGIN}?to={quote(_with_query(path, request), safe='')}")
        except errors.Forbidden as error:
            return await self._show("refused", caller, status=403, refusal=str(error))

    async def _live_or_plain(
        self, request: web.BaseRequest, name: str, path: str, run_id: str, caller: Caller, permit: Permit
    ) -> web.Response:
        """Answer with the page that stays current; with `?plain=FIRST` as tables, which need no script."""
        if run_id:
            permit.check_run(run_id)
        if (first := request.rel_url.query.get("plain")) is None:
            return await self._show(name, caller, run_id=run_id)
        row = number_of("plain", first, 0, 0, LAST_ROW)
        shown = await (self._plain_run(run_id, row) if run_id else self._plain_runs(permit, row))
        return await self._show(
            f"plain_{name}", caller, run_id=run_id, path=path, **self._of_server(caller, permit), **shown
        )

    def _of_server(self, caller: Caller, permit: Permit) -> Shown:
        """Return what each plain page shows of the server, its leaders, and the time."""
        server, scheme = state_for(self._service, permit.shows), "https" if caller.is_tls else "http"
        return {"at": _utc(time.time()), "server": server, "leaders": _leaders(server), "scheme": scheme}

    async def _plain_runs(self, permit: Permit, first: int) -> Shown:
        latest = latest_runs(self._service, permit.shows).values()
        shown = [self._with_ages(run, watch_view.summary) async for run in _in_slices(latest)]
        return {"runs": sorted(shown, key=_by_need)[first : first + ROWS], "first": first, "count": len(shown)}

    async def _plain_run(self, run_id: str, first: int) -> Shown:
        attempts = [run for run in self._service.runs() if run.run_id == run_id]
        shown = [self._with_ages(run, watch_view.view) for run in reversed(attempts[-ATTEMPTS:])]
        rows = [node async for node in _in_slices(self._rows(attempts[-1], first))] if attempts else []
        return {"attempts": shown, "nodes": rows, "first": first, "count": len(attempts[-1].agents) if attempts else 0}

    def _rows(self, run: Run, first: int) -> Iterator[tuple[NodeStatus, str]]:
        """Yield the status and the `quiet_word` of at most `ROWS` agents, without those that cannot be read."""
        now = self._service.now(run.run_id)
        for agent in read(run, lambda: run_view.agents(run), lambda _: [])[first : first + ROWS]:
            if shown := read(run, partial(status_view.node, run, agent, now), lambda _: None):
                yield shown, watch_view.quiet_word(run, agent.agent_id, now)

    def _with_ages(self, run: Run, view: Callable[[Run, float, watch_view.Clock], Shown]) -> Shown:
        """Return the view of a run, as watchers get it, with ages in seconds instead of times."""
        now = self._service.now(run.run_id)

        def age(at: float) -> float:
            return now - at

        return read(run, lambda: view(run, now, age), lambda why: watch_view.unreadable(run, age, why))

    async def _login(self, request: web.BaseRequest) -> web.Response:
        """Answer with the login form."""
        return await self._show_login(caller_of(request), request.rel_url.query.get("to", paths.ROOT))

    async def _log_in(self, request: web.BaseRequest) -> web.Response:
        """Make a session from the token that the form has sent."""
        caller = caller_of(request)
        if not caller.is_own_page:
            raise errors.Forbidden(words.foreign_login(caller.origin))
        self._gatekeeper.check_guess(caller, asyncio.get_running_loop().time())
        form = _form(await read_body(request, MOST_LOGIN_BYTES))
        token, to = form.get("token", ""), form.get("to", "")
        try:
            self._check_look(request, structs.replace(caller, authorization=f"Bearer {token}", session=""))
        except errors.Unauthorized as error:
            self._note(caller, error)
            return await self._show_login(caller, to, status=401, refusal=words.UNKNOWN_TOKEN)
        return _redirected(_local(to), caller, self._gatekeeper.access.log_in(token, time.time()))

    async def _log_out(self, request: web.BaseRequest) -> web.Response:
        caller = caller_of(request)
        if not caller.is_own_page:
            raise errors.Forbidden(words.foreign_logout(caller.origin))
        return _redirected(paths.ROOT, caller, "")

    def _check_look(self, request: web.BaseRequest, caller: Caller) -> Permit:
        """Return the permit to view pages. Raises the `ProtocolError` that refuses it."""
        now, credential = asyncio.get_running_loop().time(), connection_of(request).credential
        return self._gatekeeper.check("GET", paths.WATCH, caller, credential, now)

    async def _show_login(self, caller: Caller, to: str, *, status: int = 200, refusal: str = "") -> web.Response:
        return await self._show(
            "login", structs.replace(caller, session=""), status=status, to=_local(to), refusal=refusal
        )

    async def _show(
        self, name: str, caller: Caller, *, run_id: str = "", status: int = 200, **more: Any
    ) -> web.Response:
        access = self._gatekeeper.access
        offered = self._buttons if access.may_act(caller) else []
        pieces = _environment().get_template(f"{name}.html").generate(
            run_id=run_id, version=rdzv_protocol.VERSION, buttons=offered, csrf=access.csrf(caller), **more
        )  # fmt: skip
        html = "".join([piece async for piece in _in_slices(pieces)])
        return web.Response(text=html, status=status, headers=HEADERS, content_type="text/html")


Handler = Callable[[Pages, web.BaseRequest], Awaitable[web.Response]]

_HANDLERS: dict[str, dict[str, Handler]] = {
    paths.ROOT: {"GET": Pages._runs},
    paths.RUN_PAGE: {"GET": Pages._run},
    paths.NODE_PAGE: {"GET": Pages._node},
    paths.STATIC: {"GET": Pages._file},
    paths.LOGIN: {"GET": Pages._login, "POST": Pages._log_in},
    paths.LOGOUT: {"POST": Pages._log_out},
}
"""Handlers by path, or by its folder, and by method."""


def _by_need(run: Shown) -> tuple[bool, int, float, str]:
    """Return the place of a run in the list, from its view with ages: runs that need a person come first."""
    health = run.get("health", {})
    is_troubled = health.get("is_trouble", False)
    severity = HEALTH.index(health["state"]) if is_troubled else PHASES_BY_NEED.index(run["phase"])
    return not is_troubled, severity, run["since"], run["run_id"]


def _leaders(server: ServerState) -> dict[str | None, list[int]]:
    """Return the shards of each leader of several servers; None for a leader that is unknown."""
    shards: dict[str | None, list[int]] = {}
    for shard in server.shards:
        shards.setdefault(shard.leader, []).append(shard.shard)
    return shards


async def _in_slices(things: Iterable[Thing]) -> AsyncIterator[Thing]:
    """Yield the things in slices, as agents leave time."""
    for thing in things:
        yield thing
        await checkpoint()


def _id_of(request: web.BaseRequest, folder: str, name: str) -> str:
    """Return the id in the path, or in the query if a path cannot contain it (`.` and `..`); empty for none."""
    url = request.rel_url
    return unquote(url.raw_path.removeprefix(folder)) or url.query.get(name, "")


def path_of(run_id: str) -> str:
    """Return the path of a run's page."""
    return _path_of(paths.RUN_PAGE, "run_id", run_id)


def node_path_of(node_id: str) -> str:
    """Return the path of a node's page."""
    return _path_of(paths.NODE_PAGE, "node_id", node_id)


def _path_of(folder: str, name: str, id_: str) -> str:
    """Return the path of the page with this id. Browsers take `.` and `..` for folders, even percent-encoded."""
    return folder + (f"?{name}={id_}" if id_ in (".", "..") else quote(id_, safe=""))


def _with_query(path: str, request: web.BaseRequest) -> str:
    """Return the path of a page with the request's query, such as a filter of runs, unless the query is too long."""
    query = request.rel_url.raw_query_string
    return f"{path.partition('?')[0]}?{query}" if 0 < len(query) <= MOST_QUERY else path


def _redirected(to: str, caller: Caller | None = None, of: str | None = None) -> web.Response:
    """Redirect to another page. `of`: session to set for this caller; "" deletes it, and None leaves it as it is."""
    answer = web.Response(status=303, headers=HEADERS | {"Location": to})
    if caller is not None and of is not None:
        answer.set_cookie(
            session.cookie_name(caller.host), of, max_age=session.LASTS_S if of else 0, path="/", httponly=True,
            samesite="Strict", secure=caller.is_tls,
        )  # fmt: skip
    return answer


def _local(to: str) -> str:
    """Return the path if it is one of this server's pages, with any query; else that of all runs."""
    is_page = to.startswith((paths.RUN_PAGE, paths.NODE_PAGE, f"{paths.ROOT}?"))
    return to if is_page and to.isascii() and to.isprintable() else paths.ROOT


def _form(body: bytes) -> dict[str, str]:
    """Return the fields of a form that a page has sent; empty for any other body."""
    return dict(parse_qsl(body.decode(errors="replace"), max_num_fields=8)) if body.count(b"&") < 8 else {}


def _duration(seconds: float) -> str:
    """Return the duration as text, in the format of `page.js`."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    if whole < 6_000:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 172_800:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def load_templates() -> None:
    """Compile all templates, which takes a tenth of a second, and read all static files.

    Later no page looks at the disk, which may hang, or have another version of the program.
    """
    for name in _environment().list_templates():
        _environment().get_template(name)
    for name in STATIC:
        _read(name)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(WEB / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    environment.globals |= {"static": _static, "path_of": path_of, "node_path_of": node_path_of}
    environment.globals |= {"paths": paths, "ROWS": ROWS, "words": page_words}
    environment.globals |= {"phases": PHASES, "phases_by_need": PHASES_BY_NEED, "states_of_health": HEALTH}
    environment.globals |= {"tones": TONES, "tone_of": TONE_OF}
    environment.filters |= {"duration": _duration, "utc": _utc}
    return environment


@cache
def _read(name: str) -> bytes:
    return (WEB / "static" / name).read_bytes()


@cache
def _static(name: str) -> str:
    """Return the address of a static file, which changes with its contents."""
    return f"/static/{name}?{hashlib.sha256(_read(name)).hexdigest()[:12]}"
