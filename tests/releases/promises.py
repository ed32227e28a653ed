"""Promises of this version, as plain data that is compared with later versions."""

import argparse
import inspect
import json
from collections.abc import Mapping
from typing import Any, get_args

from msgspec import Struct, structs
from msgspec import inspect as types
from rdzv_protocol import messages
from rdzv_protocol.events import EventKind, RunEvent
from rdzv_protocol.exit_codes import ExitCode

import node_agent
from node_agent.cli.arguments import FLAGS
from node_agent.cli.command_line import read
from node_agent.features.metrics import feature as agent_metrics
from rdzv_server.cli import make_parser as server_parser
from rdzv_server.http.metrics import METRICS
from rdzv_server.http.openapi import document
from rdzv_server.http.routes import ROUTES
from rdzvctl.cli import make_parser as rdzvctl_parser

Plain = Any
"""Maps, lists, texts, numbers and None."""


def promises(examples: Mapping[str, str]) -> dict[str, Plain]:
    """Return all promises. `examples`: a text that is accepted, for each flag of node-agent."""
    return {
        "flags of node-agent": {name: _flag(name, text) for name, text in examples.items()},
        "flags of rdzv-server": _options(server_parser()),
        "flags of rdzvctl": _options(rdzvctl_parser()),
        "exit codes": {code.name: code.value for code in ExitCode},
        "Python API": {name: _parameters(getattr(node_agent, name)) for name in node_agent.__all__},
        "HTTP API": _http(),
        "messages": {kind.__name__: _fields(kind) for kind in vars(messages).values() if _is_message(kind)},
        "events": {"kinds": sorted(get_args(EventKind)), "fields": _fields(RunEvent)},
        "metrics": {each.name: [each.kind, *each.labels] for each in (*METRICS, *agent_metrics.METRICS)},
    }


def broken(then: Plain, now: Plain, at: str = "") -> list[str]:
    """Return what `then` has and `now` lacks or has otherwise, and what `now` requires in addition.

    New keys and new members of a list break nothing otherwise.
    """
    if isinstance(then, dict) and isinstance(now, dict):
        added = [key for key, value in now.items() if key not in then and "required" in (value, *_members(value))]
        changed = [line for key, value in then.items() for line in broken(value, now.get(key), f"{at} > {key}")]
        return [*changed, *(f"{at} > {key} is required now" for key in added)]
    if isinstance(then, list) and isinstance(now, list):
        if any(isinstance(each, dict) for each in then) and len(then) == len(now):
            return [line for old, new in zip(then, now, strict=True) for line in broken(old, new, at)]
        return [f"{at}: {each!r} is gone" for each in then if each not in now]
    return [] if then == now else [f"{at}: {then!r} became {now!r}"]


def _members(value: Plain) -> list[Plain]:
    return value if isinstance(value, list) else []


def meaning(flag: str, text: str, argument: str) -> Plain:
    """Return what node-agent understands by a flag."""
    words = [flag] if not FLAGS[argument].metavar else [flag, text] if len(flag) == 2 else [f"{flag}={text}"]
    return _plain(read([*words, "train.py"], {}).value(argument))


def of_variable(variable: str, text: str, argument: str) -> Plain:
    """Return what node-agent understands by a variable."""
    return _plain(read(["train.py"], {variable: text}).value(argument))


def _flag(argument: str, text: str) -> Plain:
    flag = FLAGS[argument]
    spellings = sorted(flag.spellings)
    return {
        "spellings": spellings,
        "variable": f"PET_{argument.upper()}" if flag.has_variable else None,
        "example": text,
        "means": meaning(spellings[0], text, argument),
    }


def _plain(value: object) -> Plain:
    return json.loads(json.dumps(value, default=_fields_of))


def _fields_of(value: object) -> Plain:
    return structs.asdict(value) if isinstance(value, Struct) else repr(value)


def _options(parser: argparse.ArgumentParser) -> Plain:
    """Return the flags of a parser and of its subcommands."""
    found: dict[str, Plain] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {name: _options(each) for name, each in action.choices.items()}
        for spelling in action.option_strings:
            found[spelling] = "a switch" if action.nargs == 0 else "takes a value"
        if isinstance(action.choices, (list, tuple)) and action.option_strings:
            found[f"choices of {action.option_strings[-1]}"] = [str(choice) for choice in action.choices]
    return found


def _parameters(value: object) -> Plain:
    """Return the parameters of a function or a class: the kind of each, and whether it may be left out."""
    try:
        parameters = inspect.signature(value).parameters if callable(value) else {}
    except ValueError:  # written in C
        parameters = {}
    return {
        name: [each.kind.name, "required" if each.default is inspect.Parameter.empty else "optional"]
        for name, each in parameters.items()
    }


def _http() -> Plain:
    """Return the operations of the HTTP API, with the names of their parameters, statuses and schemas' fields."""
    found = document(ROUTES)
    paths = {
        f"{method.upper()} {path}": {
            "parameters": [each["name"] for each in operation.get("parameters", ())],
            "statuses": list(operation["responses"]),
        }
        for path, operations in found["paths"].items()
        for method, operation in operations.items()
    }
    schemas = found["components"]["schemas"].items()
    fields = {name: sorted(schema["properties"]) for name, schema in schemas if "properties" in schema}
    return {"operations": paths, "fields": fields}


def _is_message(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Struct) and value is not Struct


def _fields(kind: type[Struct]) -> Plain:
    """Return the fields of a message, and whether each may be left out."""
    found = types.type_info(kind)
    assert isinstance(found, types.StructType)
    return {each.encode_name: "required" if each.required else "optional" for each in found.fields}
