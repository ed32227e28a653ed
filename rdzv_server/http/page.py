"""Pages for people: all runs, one run, and the login, as HTML. What they show comes by `/v1/watch`, and stays current.

Nothing on a page is taken from elsewhere, and nothing in it is executed but the one file that is served beside it: the
headers say so to the browser. All that a script or an agent has written is text, by the templates' escaping and by the
care of `page.js`, which never makes markup of text.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import rdzv_protocol
from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rdzv_protocol import paths

from rdzv_server.auth import session
from rdzv_server.auth.authorization import Access, Caller
from rdzv_server.http import answers

WEB = Path(__file__).parents[1] / "web"
STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = answers.HEADERS | {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # not no-referrer: forms would then name no origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FOR_A_DAY = "max-age=86400, immutable"
"""Of files: a page asks for each by what is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """An action as a page offers it. `asks`: fields of the dialog, by their names in the request."""

    path: str
    label: str
    means: str
    of_node: bool = False
    of_ended: bool = False
    """Whether it is for a run that has ended; else it is for one that goes on."""
    asks: tuple[str, ...] = ("reason",)
    is_grave: bool = False


BUTTONS = (
    Button(
        path=paths.ADMIT, label="Admit",
        means="The running round ends, and nodes that stand by get its free seats.",
    ),
    Button(
        path=paths.RESTART, label="Restart",
        means="The workers of every node are stopped and started in a new round, which is not charged.",
    ),
    Button(
        path=paths.RESIZE, label="Resize", asks=("min_nodes", "max_nodes", "reason"),
        means="The run gets other limits of its number of nodes. Below what it has, it goes on at once with fewer.",
    ),
    Button(
        path=paths.STOP, label="Stop run", is_grave=True,
        means="The run ends: its workers are stopped, and its agents exit with 1.",
    ),
    Button(
        path=paths.FORGET, label="Forget", of_ended=True, is_grave=True,
        means="The ended run is forgotten, with all its attempts and events, as if it had never been.",
    ),
    Button(
        path=paths.DRAIN, label="Drain", of_node=True, asks=("deadline_s", "for_s", "reason"), is_grave=True,
        means="The node's workers get SIGTERM and time for a checkpoint, its agents leave, and the others go on "
        "without it. It gets no seat until it is uncordoned. This goes for all runs of this server.",
    ),
    Button(
        path=paths.CORDON, label="Cordon", of_node=True, asks=("for_s", "reason"),
        means="The node gets no seat in a new round of any run of this server. A round that it takes part in goes on.",
    ),
    Button(
        path=paths.UNCORDON, label="Uncordon", of_node=True,
        means="The node may take part in new rounds again.",
    ),
)  # fmt: skip
"""Buttons of a page; those whose path the server has not are left out."""


def run_id_of(request: web.BaseRequest) -> str:
    """Id of the run that the path names, or, where no path can (`.` and `..`), the query; empty for none."""
    url = request.rel_url
    return unquote(url.raw_path.removeprefix(paths.RUN_PAGE)) or url.query.get("run_id", "")


def path_of(run_id: str) -> str:
    """Path of a run's page. Browsers take `.` and `..` for folders, however they are written."""
    return paths.RUN_PAGE + (f"?run_id={run_id}" if run_id in (".", "..") else quote(run_id, safe=""))


def show(
    name: str, caller: Caller, access: Access, *, run_id: str = "", has: frozenset[str] = frozenset(),
    status: int = 200, **more: Any,
) -> web.Response:  # fmt: skip
    """A page. `has`: paths on which the caller finds actions."""
    offered = [button for button in BUTTONS if button.path in has] if access.may_act(caller) else []
    html = _environment().get_template(f"{name}.html").render(
        run_id=run_id, version=rdzv_protocol.VERSION, buttons=offered, csrf=access.csrf(caller), **more
    )  # fmt: skip
    return web.Response(text=html, status=status, headers=HEADERS, content_type="text/html")


def file(name: str) -> web.Response:
    """A file of the pages. Raises `web.HTTPNotFound`."""
    if name not in STATIC:
        raise web.HTTPNotFound
    headers = HEADERS | {"Cache-Control": FOR_A_DAY}
    return web.Response(body=_read(name), headers=headers, content_type=STATIC[name], charset="utf-8")


def redirected(to: str, caller: Caller | None = None, of: str | None = None) -> web.Response:
    """The way to another page, for this caller with the session `of`; empty: with none any more."""
    answer = web.Response(status=303, headers=HEADERS | {"Location": to})
    if caller is not None and of is not None:
        answer.set_cookie(
            session.cookie_name(caller.host), of, max_age=session.LASTS_S if of else 0, path="/", httponly=True,
            samesite="Strict", secure=caller.is_tls,
        )  # fmt: skip
    return answer


def login_path(to: str) -> str:
    """Path of the login that leads on to a page."""
    return f"{paths.LOGIN}?to={quote(to, safe='')}"


def local(to: str) -> str:
    """The path, if it is one of a page here; else that of all runs."""
    return to if to.startswith(paths.RUN_PAGE) and to.isascii() and to.isprintable() else paths.ROOT


def form(body: bytes) -> dict[str, str]:
    """Fields of a form that a page has sent. Whatever is none has none."""
    return dict(parse_qsl(body.decode(errors="replace"), max_num_fields=8)) if body.count(b"&") < 8 else {}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(WEB / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {"static": _static, "path_of": path_of, "paths": paths}
    return environment


@cache
def _read(name: str) -> bytes:
    return (WEB / "static" / name).read_bytes()


@cache
def _static(name: str) -> str:
    """Address of a file, which changes with what is in it."""
    return f"/static/{name}?{hashlib.sha256(_read(name)).hexdigest()[:12]}"
