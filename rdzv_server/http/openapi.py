"""The HTTP API as an OpenAPI 3.1 document, made of the messages, their limits, the refusals and who may do what."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any

import rdzv_protocol
from msgspec import json
from rdzv_protocol import paths
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
    ServerUnavailable,
    SettingsConflict,
    StaleRound,
    TlsRequired,
    TooManyRequests,
    Unauthorized,
    UnknownRun,
    UnsupportedMediaType,
)
from rdzv_protocol.messages import (
    Ack,
    AdmitRequest,
    ErrorReply,
    JoinRequest,
    LeaderReply,
    LeaderRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    StopRequest,
)

from rdzv_server.auth.authorization import Role, roles_for
from rdzv_server.http.status_endpoint import Status

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
        "once it is unpacked. Ids travel in the body, never in a path. Operators are answered in JSON or plain text. "
        "A server that was started without tokens asks for none."
    ),
}

_TAGS = {
    "agents": "What an agent asks. Any of it may be repeated: a copy changes nothing.",
    "operators": "What people and their tools ask.",
}
_TOKENS = {
    Role.AGENT: "Lets its bearer take part in runs, and look at them.",
    Role.READ: "Lets its bearer look at runs.",
    Role.ADMIN: "Lets its bearer do everything.",
}

_OF_EVERY_REQUEST: Refusals = (TlsRequired, TooManyRequests, ServerUnavailable)
_OF_EVERY_MESSAGE: Refusals = (MalformedMessage, MessageTooLarge, UnsupportedMediaType)
_OF_EVERY_RUN: Refusals = (*_OF_EVERY_MESSAGE, NotLeader, AgentFenced)


def reference(kind: Any) -> Schema:
    """Schema of a type by its name."""
    return {"$ref": REFERENCE.format(name=kind.__name__)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. `answers`: by status, what it says, its media type and its schema."""

    method: str
    path: str
    summary: str
    media: str = JSON
    """Of the request and of refusals."""
    request: Any = None
    answers: dict[int, tuple[str, str, Schema]]
    refusals: Refusals = ()


def _exchange(path: str, request: Any, answer: Any, summary: str, *refusals: type[ProtocolError]) -> Operation:
    """An agent's message and its answer."""
    answers = {200: (_sentence(answer), paths.MEDIA_TYPE, reference(answer))}
    return Operation(
        method="post",
        path=path,
        summary=summary,
        media=paths.MEDIA_TYPE,
        request=request,
        answers=answers,
        refusals=refusals,
    )


def _action(path: str, request: Any, summary: str, *refusals: type[ProtocolError]) -> Operation:
    """What an operator has done to a run."""
    answers = {200: ("It is done, or was before.", JSON, reference(Ack))}
    refused = (*_OF_EVERY_MESSAGE, NotLeader, UnknownRun, *refusals)
    return Operation(method="post", path=path, summary=summary, request=request, answers=answers, refusals=refused)


def _question(path: str, summary: str, media: str, schema: Schema, *, no: str = "") -> Operation:
    """What anybody may ask at any time; `no`: what 503 says."""
    answers = {200: ("Yes." if no else summary, media, schema)} | ({503: (no, media, schema)} if no else {})
    return Operation(method="get", path=path, summary=summary, answers=answers)


def _sentence(kind: Any) -> str:
    return " ".join((kind.__doc__ or kind.__name__).split())


_WORD: Schema = {"type": "string"}
_ANY_OBJECT: Schema = {"type": "object"}

OPERATIONS: tuple[Operation, ...] = (
    _exchange(
        paths.JOIN, JoinRequest, Reply, "Join the next round of a run; itself the first long poll.",
        *_OF_EVERY_RUN, SettingsConflict, NodeRankTaken, RunSucceeded, RunFailed,
    ),
    _exchange(paths.POLL, PollRequest, Reply, "Wait for the next directive: a long poll.", *_OF_EVERY_RUN),
    _exchange(paths.REPORT, ReportRequest, Ack, "Say how a round's workers ended.", *_OF_EVERY_RUN, StaleRound),
    _exchange(paths.LEAVE, LeaveRequest, Ack, "Leave the run.", *_OF_EVERY_RUN),
    _exchange(
        paths.LEADER, LeaderRequest, LeaderReply, "Ask one of several servers who leads: a long poll.",
        *_OF_EVERY_MESSAGE,
    ),
    Operation(
        method="get", path=paths.STATUS, summary="The server and every run that it remembers.",
        answers={200: ("Durations are seconds.", JSON, reference(Status))},
    ),
    _action(paths.STOP, StopRequest, "End a run, whatever it does."),
    _action(paths.ADMIT, AdmitRequest, "Give the free seats of a running round to nodes that stand by.", NobodyWaits),
    _question(paths.ROOT, "Where to look, for people.", TEXT, _WORD),
    _question(paths.HEALTHZ, "Whether the process answers.", TEXT, _WORD),
    _question(paths.READYZ, "Whether the server can decide.", TEXT, _WORD, no="It cannot; the body says why."),
    _question(paths.LEADERZ, "Whether this server leads.", TEXT, _WORD, no="Another one leads, or none."),
    _question(paths.OPENAPI, "This document.", JSON, _ANY_OBJECT),
)  # fmt: skip


@cache
def document() -> dict[str, Any]:
    """The whole document, ready for JSON."""
    by_path: dict[str, dict[str, Schema]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = _operation(operation)
    messages = [operation.request for operation in OPERATIONS if operation.request]
    return {
        "openapi": "3.1.0",
        "info": INFO,
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": by_path,
        "components": {
            "schemas": _components([*messages, Reply, Ack, LeaderReply, ErrorReply, Status]),
            "securitySchemes": {
                _scheme(role): {"type": "http", "scheme": "bearer", "description": text}
                for role, text in _TOKENS.items()
            },
        },
    }


def _components(kinds: Sequence[Any]) -> Schema:
    """Schemas of these types and of everything that they are made of, by name."""
    schemas: Schema = json.decode(json.encode(json.schema_components(kinds, ref_template=REFERENCE)[1]))  # no tuples
    return dict(sorted(schemas.items()))


def _operation(operation: Operation) -> Schema:
    roles = roles_for(operation.method.upper(), operation.path)
    described: Schema = {
        "operationId": operation.path.rpartition("/")[2].partition(".")[0] or "root",
        "tags": ["agents" if operation.path.startswith(paths.AGENT) else "operators"],
        "summary": operation.summary,
        "security": [{_scheme(role): []} for role in Role if role in roles] + [{}] if roles else [],
        "responses": _responses(operation, operation.refusals + _of_access(roles) + _OF_EVERY_REQUEST),
    }
    if operation.request:
        content = {operation.media: {"schema": reference(operation.request)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _responses(operation: Operation, refusals: Refusals) -> dict[str, Schema]:
    answers = {
        status: {"description": text, "content": {media: {"schema": schema}}}
        for status, (text, media, schema) in operation.answers.items()
    }
    for status in {refusal.status for refusal in refusals}:
        refusal = _refusal(status, operation.media, [each.code for each in refusals if each.status == status])
        answers[status] = _either(answers[status], refusal) if status in answers else refusal
    return {str(status): answers[status] for status in sorted(answers)}


def _refusal(status: int, media: str, codes: list[str]) -> Schema:
    schema = {"allOf": [reference(ErrorReply), {"properties": {"code": {"enum": codes}}}]}
    return {"description": f"{HTTPStatus(status).phrase}: {', '.join(codes)}", "content": {media: {"schema": schema}}}


def _either(one: Schema, other: Schema) -> Schema:
    """Answers of one status that are told apart by their media type."""
    return {
        "description": f"{one['description']} Or {other['description']}.",
        "content": one["content"] | other["content"],
    }


def _of_access(roles: frozenset[Role]) -> Refusals:
    """The refusals that come of asking for a token with one of these roles."""
    return (Unauthorized, Forbidden) if roles else ()


def _scheme(role: Role) -> str:
    return f"{role.value}Token"
