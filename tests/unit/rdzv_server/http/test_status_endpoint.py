"""The status as it is sent: one document, whoever else has a turn while it is made."""

import asyncio
import json

import pytest
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.http.status_endpoint import AT_ONCE, NO_NODES, StatusView
from rdzv_server.server import RendezvousServer
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


async def test_a_server_without_runs(server):
    text = b"".join([piece async for piece in StatusView(server.service).pieces()]).decode()
    assert text.endswith('  },\n  "runs": []\n}\n')
    assert json.loads(text)["runs"] == []


async def test_the_pieces_are_one_document_that_a_person_can_read(server):
    await found(server)
    text = b"".join([piece async for piece in StatusView(server.service).pieces()]).decode()
    assert [run["run_id"] for run in json.loads(text)["runs"]] == [f"run-{number}" for number in range(RUNS)]
    assert text == json.dumps(json.loads(text), indent=2) + "\n"


async def test_others_have_a_turn_after_each_run_however_many_look(server):
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


async def test_others_have_turns_while_the_many_nodes_of_one_run_are_written(server):
    nodes = 3 * AT_ONCE + 1
    settings = RequestedSettings(min_nodes=nodes, max_nodes=nodes, max_restarts=1)
    joins = [a_join(f"agent-{number}", settings=settings) for number in range(nodes)]
    joins[7] = a_join("agent-7", node=NO_NODES, settings=settings)
    await asyncio.gather(*(server.rendezvous.ask(join, Connection(join.agent_id)) for join in joins))
    looking, turns = asyncio.create_task(text_of(server)), 0
    while not looking.done():
        turns += 1
        await asyncio.sleep(0)
    document = json.loads(looking.result())
    assert looking.result() == json.dumps(document, indent=2) + "\n"
    (run,) = document["runs"]
    assert [node["agent_id"] for node in run["nodes"]] == [join.agent_id for join in joins]
    assert run["nodes"][7]["node_id"] == NO_NODES
    assert turns > nodes / AT_ONCE


async def text_of(server: RendezvousServer) -> str:
    return b"".join([piece async for piece in StatusView(server.service).pieces()]).decode()


async def test_one_who_goes_away_in_the_middle_holds_nobody_up(server):
    await found(server)
    view = StatusView(server.service)

    async def look() -> int:
        return len([piece async for piece in view.pieces()])

    impatient = asyncio.create_task(look())
    await asyncio.sleep(0)
    impatient.cancel()
    assert await asyncio.wait_for(look(), 5) == RUNS + 2
