"""The status as it is sent: one document, even if others have a turn while it is made."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from rdzv_protocol.messages import LeaveRequest
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.core.views import run_view, status_view
from rdzv_server.http.status_endpoint import NODES_AT_ONCE, StatusView
from rdzv_server.server import RendezvousServer
from rdzv_server.service import operator_scheduler
from rdzv_server.words import service as service_words
from rdzv_server.words import set_apart as words
from tests.support.message_search import message_fields
from tests.support.scenario import Connection, a_join

RUNS = 20


@pytest.fixture
async def server():
    async with RendezvousServer() as server:
        yield server


async def found(server: RendezvousServer, runs: int = RUNS) -> None:
    settings = RequestedSettings(min_nodes=1, max_nodes=1)
    for number in range(runs):
        join = a_join(f"agent-{number}", run_id=f"run-{number}", settings=settings)
        await server.rendezvous.ask(join, Connection(number))


async def text_of(server: RendezvousServer, **asked: Any) -> str:
    return b"".join([piece async for piece in StatusView(server.service).pieces(**asked)]).decode()


@pytest.mark.parametrize("runs", [0, 1, RUNS])
async def test_a_streamed_status_is_one_complete_document(server, runs):
    await found(server, runs)
    compact, in_lines = await text_of(server), await text_of(server, in_lines=True)
    assert [run["run_id"] for run in json.loads(compact)["runs"]] == [f"run-{number}" for number in range(runs)]
    assert compact == json.dumps(json.loads(compact), separators=(",", ":")) + "\n"
    assert in_lines == json.dumps(json.loads(in_lines), indent=2) + "\n"


async def test_the_status_can_be_limited_to_some_runs(server):
    await found(server)
    (run,) = json.loads(await text_of(server, shows=lambda run_id: run_id == "run-7"))["runs"]
    assert run["run_id"] == "run-7"


@pytest.fixture
async def large(server):
    """A run with more nodes than one write takes: three rounds of them have seats, and one is a spare."""
    nodes = 3 * NODES_AT_ONCE
    settings = RequestedSettings(min_nodes=nodes, max_nodes=nodes)
    joins = [a_join(f"agent-{number:03}", run_id="large", settings=settings) for number in range(nodes + 1)]
    await asyncio.gather(*(server.rendezvous.ask(join, Connection(join.agent_id)) for join in joins))
    return server


async def test_a_large_run_is_the_same_document_in_more_pieces(large):
    (run,) = large.service.runs()
    now = large.service.now("large")
    compact, in_lines = await text_of(large), await text_of(large, in_lines=True)
    for text in (compact, in_lines):
        (shown,) = json.loads(text)["runs"]
        whole = json.loads(msgspec.json.encode(status_view.view(run, now)))
        assert [without_times(node) for node in shown.pop("nodes")] == [
            without_times(node) for node in whole.pop("nodes")
        ]
        assert without_times(shown) == without_times(whole)
    assert compact == json.dumps(json.loads(compact), separators=(",", ":")) + "\n"
    assert in_lines == json.dumps(json.loads(in_lines), indent=2) + "\n"


def without_times(shown: dict[str, Any]) -> dict[str, Any]:
    shown = {name: without_times(value) if isinstance(value, dict) else value for name, value in shown.items()}
    return {name: value for name, value in shown.items() if not name.endswith("_s")}


async def test_nodes_that_leave_while_a_large_run_is_written_are_left_out(large):
    document = StatusView(large.service).pieces()
    text = b"".join([await anext(document) for _ in range(2)])
    for number in (0, 3 * NODES_AT_ONCE - 1):
        leave = LeaveRequest(run_id="large", agent_id=f"agent-{number:03}", reason="SIGTERM")
        await large.rendezvous.ask(leave, Connection(leave.agent_id))
    text += b"".join([piece async for piece in document])
    (run,) = json.loads(text)["runs"]
    shown = [node["node_id"] for node in run["nodes"]]
    assert len(set(shown)) == len(shown) and f"agent-{3 * NODES_AT_ONCE - 1}" not in shown


async def test_rendering_a_large_run_yields_to_other_requests(large, monkeypatch):
    monkeypatch.setattr(operator_scheduler, "SLICE_S", 0.0)
    looking, turns = asyncio.create_task(text_of(large)), 0
    while not looking.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 4


async def test_rendering_yields_after_each_run_for_any_number_of_readers(server):
    await found(server)
    view, turns = StatusView(server.service), 0

    async def look() -> None:
        async for _ in view.pieces():
            pass

    looking = asyncio.gather(*(look() for _ in range(5)))
    while not looking.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 5 * RUNS


# Unreadable runs.


def raises_over(monkeypatch: pytest.MonkeyPatch, name: str, is_odd: Any) -> None:
    """Make a function of the view model raise an exception for arguments that `is_odd` selects."""
    whole = getattr(run_view, name)
    monkeypatch.setattr(run_view, name, lambda *given: 1 / 0 if is_odd(*given) else whole(*given))


async def test_an_unreadable_run_is_shown_without_details_and_others_as_usual(server, monkeypatch):
    await found(server)
    raises_over(monkeypatch, "reason", lambda run, now: run.run_id == "run-7")
    for text in (await text_of(server), await text_of(server, in_lines=True)):
        runs = json.loads(text)["runs"]
        odd = runs.pop(7)
        assert (odd["run_id"], odd["phase"], odd["nodes"]) == ("run-7", "running", [])
        error = message_fields(odd["reason"], service_words.run_cannot_be_shown)["error"]
        assert error.startswith(words.own_error("", "test_status_endpoint.py").partition(", line")[0])
        assert len(runs) == RUNS - 1 and {run["reason"] for run in runs} == {"round 1 runs on 1 node"}


async def test_nodes_of_a_large_run_that_cannot_be_read_are_left_out(large, monkeypatch):
    raises_over(monkeypatch, "state", lambda run, agent: agent.agent_id == "agent-150")
    for text in (await text_of(large), await text_of(large, in_lines=True)):
        (run,) = json.loads(text)["runs"]
        assert len(run["nodes"]) == 2 * NODES_AT_ONCE + 1


@pytest.mark.parametrize(
    ("hosts", "endpoint"),
    [
        ([], None),
        (["localhost:29400"], "localhost:29400"),
        (["localhost:29400", "head:29400", "127.0.0.1:29400"], "head:29400"),
        (["[fd00::7]:29400"], "[fd00::7]:29400"),
        (["head", "$(reboot):1", "a b:1", "head:29400;reboot", "head:29400\n", "\u0661:1"], None),
    ],
    ids=["no agent", "on this machine", "from elsewhere", "IPv6", "nothing that a person should copy"],
)
async def test_the_status_has_the_endpoint_that_agents_use(
    server: RendezvousServer, hosts: list[str], endpoint: str | None
) -> None:
    status = StatusView(server.service)
    for host in hosts:
        status.agent_came(host)
    shown = json.loads(b"".join([piece async for piece in status.pieces()]))
    assert shown["server"]["agents_endpoint"] == endpoint
