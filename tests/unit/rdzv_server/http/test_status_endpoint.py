"""The status as it is sent: one document, whoever else has a turn while it is made."""

import asyncio
import json
from typing import Any

import pytest
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.http.status_endpoint import StatusView
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


async def text_of(server: RendezvousServer, **asked: Any) -> str:
    return b"".join([piece async for piece in StatusView(server.service).pieces(**asked)]).decode()


@pytest.mark.parametrize("runs", [0, 1, RUNS])
async def test_the_pieces_are_one_document_for_programs_or_for_people(server, runs):
    await found(server, runs)
    compact, in_lines = await text_of(server), await text_of(server, in_lines=True)
    assert [run["run_id"] for run in json.loads(compact)["runs"]] == [f"run-{number}" for number in range(runs)]
    assert compact == json.dumps(json.loads(compact), separators=(",", ":")) + "\n"
    assert in_lines == json.dumps(json.loads(in_lines), indent=2) + "\n"


async def test_some_runs_alone_may_be_asked_for(server):
    await found(server)
    (run,) = json.loads(await text_of(server, shows=lambda run_id: run_id == "run-7"))["runs"]
    assert run["run_id"] == "run-7"


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


async def test_one_who_goes_away_in_the_middle_holds_nobody_up(server):
    await found(server)
    view = StatusView(server.service)

    async def look() -> int:
        return len([piece async for piece in view.pieces()])

    impatient = asyncio.create_task(look())
    await asyncio.sleep(0)
    impatient.cancel()
    assert await asyncio.wait_for(look(), 5) == RUNS + 2
