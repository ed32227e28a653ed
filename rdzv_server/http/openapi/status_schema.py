"""What `/v1/status` answers, as JSON Schema; `operators` and `core.status.view` make it."""

from typing import Any

from rdzv_protocol.constraints import Count, Id, NodeCount, Rank, Revision, Round, WorkerCount
from rdzv_protocol.messages import Failure, JoinRequest
from rdzv_protocol.settings import RunSettings

from rdzv_server.core.run import AgentState, Cause, Stage
from rdzv_server.http.openapi.json_schema import Schema, nullable, record, schema_of

PHASES = (*Stage, "restarting", "finishing")
STATES = (*AgentState, "standby", Stage.FAILED)

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_SECONDS: Schema = {"type": "number", "description": "seconds"}


def components() -> dict[str, Schema]:
    """The status document, and what it is made of, by name."""
    return {
        "Status": _object(server=_ref("StatusOfServer"), runs=_list(_ref("StatusOfRun"))),
        "StatusOfServer": _server(),
        "StatusOfRun": _run(),
        "StatusOfNode": _node(),
        "StatusOfFailure": _failure(),
        "StatusOfSettings": _settings(),
    }


def _server() -> Schema:
    return _object(
        version=_TEXT,
        epoch=schema_of(Id) | {"description": "one life of the server process"},
        ready=_FLAG,
        trouble=nullable(_TEXT) | {"description": "why nothing can be decided at present"},
        leads=_FLAG,
        leader=nullable(_TEXT) | {"description": "of several servers, the one that leads, if it is known"},
        leadership=schema_of(Revision),
        shards=_list(_object(shard=schema_of(Count), leader=nullable(_TEXT), leadership=schema_of(Revision)))
        | {"description": "who leads each shard; empty without shards"},
        uptime_s=_SECONDS,
    )


def _run() -> Schema:
    causes = [cause.value for cause in Cause]
    return _object(
        run_id=schema_of(Id),
        attempt=schema_of(Count),
        phase={"type": "string", "enum": list(map(str, PHASES))},
        reason=_TEXT,
        round=schema_of(Round),
        world_size={"type": "integer", "minimum": 0},
        min_nodes=schema_of(NodeCount),
        max_nodes=schema_of(NodeCount),
        restart_count=schema_of(Count),
        max_restarts=schema_of(Count),
        restarts=_object(**{cause: schema_of(Count) for cause in causes if cause != Cause.FIRST}),
        age_s=_SECONDS,
        deadline_s=nullable(_SECONDS),
        missing=nullable(_object(more_nodes=schema_of(Count), stopping=_list(_TEXT), gone=_list(_TEXT))),
        nodes=_list(_ref("StatusOfNode")),
        first_failure=nullable(_ref("StatusOfFailure")),
        end_failure=nullable(_ref("StatusOfFailure")),
        failures=_list(_ref("StatusOfFailure")),
        departures=_list(_departure()),
        history=_list(
            _object(
                round=schema_of(Round),
                cause={"type": "string", "enum": causes},
                charged=_FLAG,
                reason=_TEXT,
                age_s=_SECONDS,
            )
        ),
        settings=_ref("StatusOfSettings"),
    )


def _node() -> Schema:
    join = record(JoinRequest)["properties"]
    return _object(
        **{name: join[name] for name in ("node_id", "agent_id", "addr", "port", "role", "node_rank")},
        local_world_size=schema_of(WorkerCount),
        state={"type": "string", "enum": list(map(str, STATES))},
        connected=_FLAG,
        group_rank=nullable(schema_of(Rank)),
        ranks=_list({"type": "integer"}) | {"description": "first and last rank; empty without a seat"},
        lease_age_s=nullable(_SECONDS),
        lease_left_s=nullable(_SECONDS),
        failures=schema_of(Count),
    )


def _failure() -> Schema:
    return _object(round=schema_of(Round), age_s=_SECONDS, **record(Failure)["properties"])


def _departure() -> Schema:
    return _object(
        node_id=schema_of(Id),
        agent_id=schema_of(Id),
        round=schema_of(Round),
        group_rank=nullable(schema_of(Rank)),
        left={"type": "boolean", "description": "it said so"},
        cause=_TEXT,
        age_s=_SECONDS,
    )


def _settings() -> Schema:
    return _object(**record(RunSettings)["properties"])


def _object(**properties: Any) -> Schema:
    """A map in which all of this is there; a later server may say more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
