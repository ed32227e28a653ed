"""OpenAPI 3.1 document, derived from the routes, the messages with their limits, the refusals, and the roles."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from types import ModuleType
from typing import Any

import rdzv_protocol
from msgspec import Struct, json
from rdzv_protocol import paths
from rdzv_protocol.errors import Forbidden, ProtocolError, ServerUnavailable, TlsRequired, TooManyRequests, Unauthorized
from rdzv_protocol.events import SIGNATURE, EventDelivery, RunEvent
from rdzv_protocol.messages import ErrorReply
from rdzv_protocol.settings import RequestedSettings, RunSettings
from rdzv_protocol.visible import NAME, PRINTABLE

from rdzv_server.auth.authorization import Role, roles_for
from rdzv_server.http.route import Route

Schema = dict[str, Any]
Refusals = tuple[type[ProtocolError], ...]

REFERENCE = "#/components/schemas/{name}"
JSON, TEXT = "application/json", "text/plain"

INFO = {
    "title": "rdzv-server",
    "version": rdzv_protocol.VERSION,
    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    "description": (
        "Rendezvous for elastic PyTorch runs. Agents speak msgpack: a body is one map, and the schemas describe it "
        "once it is unpacked. Ids travel in the body; one in a path is percent-encoded. "
        "Operators get JSON or plain text. "
        "A server without tokens asks for none."
    ),
}

_TAGS = {
    "agents": "Requests of agents. An agent may repeat each of them: a copy changes nothing.",
    "operators": "Requests of people and their tools.",
}
_TOKENS = {
    Role.AGENT: "Lets its holder take part in runs, and read their status.",
    Role.READ: "Lets its holder read the status of runs.",
    Role.ADMIN: "Lets its holder do everything.",
}

_TEXT: Schema = {"schema": {"type": "string"}}

_NAME, _SEEN = json.encode(NAME), json.encode(PRINTABLE)
"""Pattern of a name, and the part of it that is published: the rest lists 2,000 combining marks."""
_OF_EVERY_REQUEST: Refusals = (TlsRequired, TooManyRequests, ServerUnavailable)


@cache
def document(routes: tuple[Route, ...]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes, ready for JSON."""
    by_path: dict[str, dict[str, Schema]] = {}
    ids = set[str]()
    for route in routes:
        by_path.setdefault(route.path, {})[route.method.lower()] = operation = _operation(route)
        if operation["operationId"] in ids:  # as of /v1/costs and /v1/nodes/costs
            operation["operationId"] = "_".join(route.path.split("/")[-2:])
        ids.add(operation["operationId"])
    kinds = {kind for route in routes for kind in (route.request, route.answer) if kind not in (None, str, dict)}
    _, schemas = json.schema_components([*kinds, ErrorReply, EventDelivery, RunEvent], ref_template=REFERENCE)
    for kind in _subclasses(Struct):
        for name, text in meanings(kind).items() if kind.__name__ in schemas else ():
            schemas[kind.__name__]["properties"][name].setdefault("description", text)
    return {
        "openapi": "3.1.0",
        "info": INFO,
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": by_path,
        "webhooks": {"events": {"post": _WEBHOOK}},
        "components": {
            "schemas": json.decode(json.encode(schemas, order="sorted").replace(_NAME, _SEEN)),  # no tuples
            "securitySchemes": {
                _scheme(role): {"type": "http", "scheme": "bearer", "description": text}
                for role, text in _TOKENS.items()
            },
        },
    }


def meanings(kind: type) -> dict[str, str]:
    """Return the meanings of a message's fields, from the docstrings below the fields in its source."""
    extended = [RunSettings] if kind is RequestedSettings else []  # its fields mean the same
    found: dict[str, str] = {}
    for each in [*extended, *reversed(kind.__mro__)]:
        if each.__module__.startswith("rdzv_protocol."):
            module = sys.modules[each.__module__]
            for field, text in pairwise(_definitions(module).get(each.__name__, _NOTHING).body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    found[ast.unparse(field.target)] = _on_the_wire(ast.literal_eval(text.value), vars(module))
    return found


def _on_the_wire(text: str, constants: dict[str, Any]) -> str:
    """Return the docstring on one line, with JSON's null, and with values instead of the names of constants."""
    meaning = re.sub("`([A-Z][A-Z_]+)`", lambda name: f"{constants[name[1]]:g}", text.replace("None", "null"))
    return " ".join(meaning.split())


_NOTHING = ast.Module([], [])


@cache
def _definitions(module: ModuleType) -> dict[str, ast.ClassDef]:
    """Return the definitions of the module's classes; empty if its source is not installed."""
    try:
        source = inspect.getsource(module)
    except OSError:
        return {}
    return {each.name: each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)}


def _subclasses(kind: type[Struct]) -> Iterable[type[Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _operation(route: Route) -> Schema:
    roles = roles_for(route.method, route.path)
    is_agents = route.path.startswith(paths.AGENT)
    media = paths.MEDIA_TYPE if is_agents else JSON
    refusals = route.refusals + ((Unauthorized, Forbidden) if roles else ()) + _OF_EVERY_REQUEST
    described: Schema = {
        "operationId": route.path.rpartition("/")[2].partition(".")[0] or "root",
        "tags": ["agents" if is_agents else "operators"],
        "summary": route.summary,
        "security": [{_scheme(role): []} for role in Role if role in roles] + [{}] if roles else [],
        "responses": _responses(route, media, refusals),
    }
    names = re.findall(r"{(\w+)}", route.path)
    parameters: list[Schema] = [{"name": name, "in": "path", "required": True, **_TEXT} for name in names]
    parameters += [
        {
            "name": name,
            "in": "query",
            "description": text,
            "schema": json.schema(kind),
            **({"required": True} if name in route.required else {}),
        }
        for name, kind, text in route.query
    ]
    if parameters:
        described["parameters"] = parameters
    if route.request:
        content = {media: {"schema": _reference(route.request)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _responses(route: Route, media: str, refusals: Refusals) -> dict[str, Schema]:
    answer_media = route.media or (TEXT if route.answer is str else media)
    schema = {str: {"type": "string"}, dict: {"type": "object"}}.get(route.answer) or _reference(route.answer)
    answers: dict[int, Schema] = {
        200: _content("Yes." if route.no else route.says or route.summary, answer_media, schema)
    }
    if route.streams:
        answers[200]["content"][paths.STREAM_TYPE] = {"schema": {"type": "string", "description": route.streams}}
    if route.no:
        answers[503] = _content(route.no, answer_media, schema)
    for status in {refusal.status for refusal in refusals}:
        codes = [each.code for each in refusals if each.status == status]
        text = f"{HTTPStatus(status).phrase}: {', '.join(codes)}"
        schema = {"allOf": [_reference(ErrorReply), {"properties": {"code": {"enum": codes}}}]}
        refusal, other = _content(text, media, schema), answers.get(status)
        if other:  # their media types distinguish them
            refusal["description"] = f"{other['description']} Or {text}."
            refusal["content"] |= other["content"]
        answers[status] = refusal
    return {str(status): answers[status] for status in sorted(answers)}


def _reference(kind: Any) -> Schema:
    return {"$ref": REFERENCE.format(name=kind.__name__)}


def _content(text: str, media: str, schema: Schema) -> Schema:
    return {"description": text, "content": {media: {"schema": schema}}}


_WEBHOOK: Schema = {
    "operationId": "webhook",
    "summary": "The request of `rdzv-server --webhook URL`: the next events of a run, until the receiver accepts them.",
    "parameters": [
        {
            "name": SIGNATURE, "in": "header", "required": True, **_TEXT,
            "description": "t=TIME,v1=HEX: seconds since 1970; HMAC-SHA256 of TIME, a dot and the body.",
        }
    ],
    "requestBody": {"required": True, "content": {JSON: {"schema": _reference(EventDelivery)}}},
    "responses": {
        "2XX": {"description": "The receiver has accepted the events."},
        "default": {"description": "The server sends the events again."},
    },
}  # fmt: skip


def _scheme(role: Role) -> str:
    return f"{role.value}Token"
