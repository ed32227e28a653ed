"""The published document is valid and complete, and describes every message as the codec and the server treat it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from rdzv_protocol import paths
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Failure, JoinRequest, LeaderRequest, LeaveRequest, PollRequest, ReportRequest
from rdzv_protocol.settings import RequestedSettings
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from rdzv_server.http import openapi
from rdzv_server.http.routes import ROUTES
from tests.support.messages import KINDS, values
from tests.support.programs import Server

DOCUMENT = "urn:document"


def document() -> dict[str, Any]:
    return openapi.document(ROUTES)


def closed(schema: Any) -> Any:
    """Return the same schema without undescribed fields."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    shut = {"additionalProperties": False} if schema.get("type") == "object" and "properties" in schema else {}
    return {name: closed(each) for name, each in schema.items()} | shut


def validator(pointer: str, *, strict: bool = False) -> Draft202012Validator:
    """Return a validator of this part of the document. `strict`: whether the value may have no other fields."""
    content = closed(document()) if strict else document()
    registry: Registry[Any] = Registry().with_resource(DOCUMENT, Resource(content, DRAFT202012))
    return Draft202012Validator({"$ref": f"{DOCUMENT}#{pointer}"}, registry=registry)


def of_answer(path: str, method: str, status: int, media: str) -> Draft202012Validator:
    answer = f"/paths/{path.replace('/', '~1')}/{method}/responses/{status}/content/{media.replace('/', '~1')}/schema"
    return validator(answer, strict=status == 200)


def test_the_document_is_valid() -> None:
    # here, because otherwise each process that collects tests would take long
    from openapi_spec_validator import validate

    validate(document())


def test_the_document_explains_the_fields_of_messages() -> None:
    schemas = document()["components"]["schemas"]
    for name, field, meaning in (
        ("StopRequest", "reason", "Reason, for the people who own the run."),
        ("RequestedSettings", "last_call_timeout_s", "null: until no node has joined for 5 s, and at most 30 s."),
    ):
        assert schemas[name]["properties"][field]["description"].endswith(meaning)


def test_without_the_packages_source_the_document_lacks_only_descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_source(module: object) -> str:
        raise OSError("could not get source code")

    openapi._definitions.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr("inspect.getsource", no_source)
        assert openapi.meanings(JoinRequest) == {}
    openapi._definitions.cache_clear()
    assert openapi.meanings(JoinRequest)


# The schemas and the codec.


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_schema_lets_in_what_the_codec_lets_in(kind: Any) -> None:
    fits = validator(f"/components/schemas/{kind.__name__}").is_valid
    seen: set[bool] = set()
    anything = (
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3) | st.just([]) | st.just({})
        | st.floats(allow_nan=False).filter(lambda number: not number.is_integer())
        | st.sampled_from([[1, 2], [""] * 50, "x" * 9_000, "two\nlines", {"tag": "wait"}, {"tag": "stop", "round": 1}])
    )  # fmt: skip

    @settings(max_examples=max(30, settings().max_examples // 3))
    @given(values(kind), st.data())
    def agree(message: Any, data: st.DataObject) -> None:
        body = msgpack.unpackb(encode(message))
        assert fits(body)
        name = data.draw(st.sampled_from(sorted(kind.__struct_fields__)))
        body[name] = data.draw(anything | st.just(body[name]) if name in body else anything)
        try:
            decode(kind, msgpack.packb(body))
            is_taken = True
        except ProtocolError:
            is_taken = False
        assert fits(body) == is_taken
        seen.add(is_taken)

    agree()
    assert False in seen


# The document and a real server.


class CheckedClient:
    """Asks a server, and checks every answer against the document's description."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.seen: set[tuple[str, int]] = set()

    async def tell(self, path: str, message: Any) -> Any:
        body = message if isinstance(message, bytes) else encode(message)
        headers = {"Content-Type": paths.MEDIA_TYPE}
        async with self._session.post(path, data=body, headers=headers) as answer:
            said = msgpack.unpackb(await answer.read())
            self._check(path, "post", answer, said)
        return said

    async def look(self, path: str) -> Any:
        async with self._session.get(path) as answer:
            is_json = answer.content_type == "application/json"
            said = json.loads(await answer.read()) if is_json else await answer.text()
            self._check(path, "get", answer, said)
        return said

    def _check(self, path: str, method: str, answer: aiohttp.ClientResponse, said: Any) -> None:
        of_answer(path, method, answer.status, answer.content_type).validate(said)
        self.seen.add((path, answer.status))


@pytest.fixture
async def client() -> AsyncIterator[CheckedClient]:
    server = await Server.listen("--store", "memory")
    async with aiohttp.ClientSession(f"http://{server.endpoint}") as session:
        yield CheckedClient(session)
    await server.end()


def join(name: str, **others: Any) -> JoinRequest:
    settings = RequestedSettings(min_nodes=2, max_nodes=2, max_restarts=1, lease_s=60.0, disconnect_grace_s=60.0)
    fields: dict[str, Any] = {"settings": settings, "run_id": "run", "after_round": 0, **others}
    return JoinRequest(agent_id=name, node_id=f"node-{name}", addr="h", port=1, local_world_size=2, **fields)


def failure(name: str, rank: int = 0) -> Failure:
    return Failure(
        node_id=f"node-{name}", rank=rank, local_rank=0, pid=7, exit_code=3, cause="exit code 3",
        error="ValueError: boom", traceback=("Traceback", "ValueError: boom"), stderr_tail=("boom",), hint="look",
        failed_at=1.5,
    )  # fmt: skip


async def test_the_document_is_served(client: CheckedClient) -> None:
    assert await client.look(paths.OPENAPI) == json.loads(json.dumps(document()))


async def test_every_answer_of_a_runs_life_is_as_documented(client: CheckedClient) -> None:
    phases: list[str] = []

    async def look() -> None:
        (run,) = (await client.look(paths.STATUS))["runs"]
        phases.append(run["phase"])

    async def poll(name: str, revision: int = 0, run_id: str = "run") -> Any:
        return await client.tell(paths.POLL, PollRequest(run_id=run_id, agent_id=name, revision=revision, hold=False))

    async def report(name: str, round_: int, end: Failure | None) -> Any:
        return await client.tell(paths.REPORT, ReportRequest(run_id="run", agent_id=name, round=round_, failure=end))

    assert (await client.tell(paths.JOIN, join("a")))["directive"]["tag"] == "wait"
    await look()
    assert (await client.tell(paths.JOIN, join("b")))["directive"]["tag"] == "start"
    await look()
    assert (await client.tell(paths.JOIN, join("c", settings=RequestedSettings(min_nodes=1))))["code"]
    assert (await client.tell(paths.JOIN, join("d", settings=RequestedSettings())))["directive"]["tag"] == "wait"
    await report("a", 1, failure("a"))
    assert (await poll("b"))["directive"]["tag"] == "stop"
    await look()
    for name in ("a", "b"):
        await client.tell(paths.JOIN, join(name, after_round=1))
    await report("a", 2, None)
    await look()
    assert (await report("b", 1, None))["code"] == "stale_round"
    await report("b", 2, failure("b", rank=2))
    assert (await poll("a"))["directive"]["tag"] == "finish"
    await look()
    assert (await poll("nobody"))["code"] == "agent_fenced"
    await client.tell(paths.LEAVE, LeaveRequest(run_id="run", agent_id="d", reason="SIGTERM"))
    await client.tell(paths.LEADER, LeaderRequest(after=0))
    for path in (paths.JOIN, paths.POLL, paths.REPORT, paths.LEAVE, paths.LEADER):
        assert (await client.tell(path, b"garbage"))["code"] == "malformed_message"
        assert (await client.tell(path, b"x" * 300_000))["code"] == "message_too_large"
    assert phases == ["forming", "running", "restarting", "finishing", "failed"]


async def test_public_paths_answer_as_documented(client: CheckedClient) -> None:
    for path in (paths.HEALTHZ, paths.READYZ, paths.LEADERZ):
        assert (await client.look(path)).endswith("\n")
    assert {status for _, status in client.seen} == {200}
