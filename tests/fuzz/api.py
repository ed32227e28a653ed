"""schemathesis with a running server: requests that its OpenAPI document describes, and requests that it excludes."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import msgpack
import requests
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from rdzv_protocol import paths
from rdzv_protocol.visible import is_visible
from schemathesis import Case, DeserializationContext, GenerationMode, Response, SerializationContext
from schemathesis.checks import CheckContext, not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.transport.serialization import quote_all

from rdzv_server.words import admission, failures, operations
from tests.support.message_search import pattern

NAMES = ("run", "../../etc/passwd", '{run="x"}')
"""Few names, so that requests are about the same runs and agents."""
OF_EACH_KIND = 12
"""Requests of each kind to each path, after those of random kinds, which may include few of one kind."""
LEASE_S = 2.0
"""Seconds that last until the next request. A poll is parked for half of them."""
LARGEST, SMALLEST = 2**64 - 1, -(2**63)
"""Limits of msgpack's integers."""

_BEYOND_SCHEMA = (
    pattern(admission.min_above_max),
    pattern(admission.fixed_below_min),
    pattern(admission.grace_too_long),
    pattern(admission.no_legal_size),
    pattern(admission.other_node),
    pattern(operations.min_above_max),
    pattern(operations.no_legal_size),
    pattern(failures.other_node),
    pattern(failures.foreign_rank),
    r"nests deeper than \d+ levels",
    r"must be an integer .*, not -?\d+\.0\b",
)
"""Refusals that a schema cannot describe: combinations of fields or requests, the depth of unknown fields, and 2.0,
which JSON Schema accepts as an integer."""

_names = st.sampled_from(NAMES) | st.text(min_size=1, max_size=20).filter(is_visible)
schemathesis.openapi.format("name", _names)


@schemathesis.serializer(paths.MEDIA_TYPE)
def pack(context: SerializationContext, value: Any) -> Any:
    return value if isinstance(value, bytes) else msgpack.packb(_fitting(value))


@schemathesis.deserializer(paths.MEDIA_TYPE)
def unpack(context: DeserializationContext, response: Response) -> Any:
    return msgpack.unpackb(response.content)


@schemathesis.check
def described_requests_are_taken(context: CheckContext, response: Response, case: Case) -> None:
    """Check that a described request is never called malformed."""
    if _is_described(case) and response.status_code == 400:
        is_packed = response.headers["content-type"][0].startswith(paths.MEDIA_TYPE)
        refusal = msgpack.unpackb(response.content) if is_packed else json.loads(response.content)
        assert any(re.search(each, refusal["message"]) for each in _BEYOND_SCHEMA), response.content


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    described_requests_are_taken,
]


class Fuzzer:
    """Sends requests that the server's document describes or excludes, in any order, and checks every answer."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._document = requests.get(f"{url}{paths.OPENAPI}").json()
        published = schemathesis.openapi.from_dict(_with_few_names(self._document))
        published.config.update(base_url=url)
        operations = (found.ok() for found in published.get_all_operations())
        self.operations: list[APIOperation] = [each for each in operations if not _is_endless(each)]
        self.statuses = {operation.path: Counter[int]() for operation in self.operations}
        """Number of answers of each path by status."""
        self._seated = {"run_id": "", "agent_id": ""}
        """The agent that was let in last."""
        self._node_id = ""
        self._seats = 0

    def run(self, examples: int) -> None:
        cases = [cases for operation in self.operations for cases in self._cases(operation)]
        (status,) = (operation for operation in self.operations if operation.path == paths.STATUS)

        def is_answered(case: Case) -> None:
            if case.path_parameters and _is_described(case):
                case.path_parameters |= quote_all(self._steer(case.operation.path, case.path_parameters))
            if isinstance(case.body, dict) and _is_described(case):
                case.body |= self._steer(case.operation.path, case.body)
            response = case.call(session=session, timeout=30)
            case.validate_response(response, checks=CHECKS)
            self.statuses[case.operation.path][response.status_code] += 1
            if case.operation.path == paths.JOIN and response.status_code == 200:
                self._seated = {name: case.body[name] for name in self._seated}
                self._node_id = case.body["node_id"]
                status.validate_response(session.get(f"{self._url}{paths.STATUS}"))

        with requests.Session() as session:
            session.trust_env = False
            for strategy, number in ((st.one_of(cases), examples), *((each, OF_EACH_KIND) for each in cases)):
                self._seat(session)
                sent = hypothesis.settings(max_examples=number, suppress_health_check=list(HealthCheck))
                sent(given(strategy)(is_answered))()

    def _cases(self, operation: APIOperation) -> Iterator[st.SearchStrategy[Case]]:
        if operation.body:
            is_described = Draft202012Validator(self._body(operation)).is_valid
            # A text that is not one of our names may be one in the document.
            yield operation.as_strategy(generation_mode=GenerationMode.NEGATIVE).filter(
                lambda case: not isinstance(case.body, dict) or not is_described(_fitting(case.body))
            )
        yield operation.as_strategy(generation_mode=GenerationMode.POSITIVE)

    def _body(self, operation: APIOperation) -> dict[str, Any]:
        """Return the schema of the operation's body in the server's document."""
        (described,) = self._document["paths"][operation.path][operation.method]["requestBody"]["content"].values()
        return {"components": self._document["components"], **described["schema"]}

    def _seat(self, session: requests.Session) -> None:
        """Let an agent into a separate run, so that there is a continuing run, even if others were ended before."""
        self._seats += 1
        name = f"seated-{self._seats}"
        self._node_id, self._seated = name, {"run_id": name, "agent_id": name}
        place = {"node_id": name, "after_round": 0, "addr": "127.0.0.1", "port": 29_500, "local_world_size": 1}
        join = self._seated | place | {"settings": {"lease_s": LEASE_S}}
        answer = session.post(
            f"{self._url}{paths.JOIN}", msgpack.packb(join), headers={"Content-Type": paths.MEDIA_TYPE}
        )
        assert answer.status_code == 200, answer.content

    def _steer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return changes to a body, or to the parameters of a path, that lead to effects. They lead to runs that let
        newcomers in, to existing agents and rounds, and past long polls.
        """
        agent = self._seated if body.get("agent_id") in NAMES else {}
        if "agent_id" not in body and path != paths.LEADER:  # an operator's request
            run_id = self._seated["run_id"]
            seated = {"run_id": run_id} if run_id and ("run_id" in body or "node_id" not in body) else {}
            seated |= {"node_id": self._node_id} if "node_id" in body else {}
            return seated if self._node_id and sum(self.statuses[path].values()) % 2 else {}
        match path:
            case paths.JOIN:
                count = sum(self.statuses[path].values())
                asked = body.get("settings", {}) if count % 4 == 0 else {}
                names = {"agent_id": f"agent-{count}"} if agent else {}
                return names | {"after_round": body["after_round"] % 2, "settings": asked | {"lease_s": LEASE_S}}
            case paths.POLL:
                return agent | {"hold": body["revision"] % 4 == 1}
            case paths.REPORT:
                return agent | {"round": body["round"] % 2}
        return agent


def _with_few_names(schema: Any) -> Any:
    """Return the same schema, with our names for texts of one line."""
    if isinstance(schema, list):
        return [_with_few_names(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    named = {"format": "name"} if isinstance(schema.get("pattern"), str) else {}
    return {name: _with_few_names(each) for name, each in schema.items() if not (named and name == "pattern")} | named


def _is_endless(operation: APIOperation) -> bool:
    """Return whether the answer is a stream of events, which never ends."""
    return "text/event-stream" in operation.definition.raw["responses"]["200"]["content"]


def _is_described(case: Case) -> bool:
    return case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE


def _fitting(value: Any) -> Any:
    """Return the value with equally wrong numbers that msgpack can represent."""
    if isinstance(value, dict):
        return {key: _fitting(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_fitting(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return max(SMALLEST, min(LARGEST, value))
    return value
