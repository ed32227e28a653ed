"""Operators who read the status of many runs slowly, or not at all, do not delay agents."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import aiohttp
import pytest
from rdzv_protocol import paths
from rdzv_protocol.messages import Failure, JoinRequest, PollRequest, Reply, ReportRequest, Start
from rdzv_protocol.settings import RequestedSettings

from node_agent.kernel.transport.http import HttpTransport
from tests.support.process_info import Footprint
from tests.support.programs import Server

RUNS = 200
DEAF = 50
READERS = 5
POLLS = 200
LONGEST_S = 2.0
"""Limit of a poll in seconds, below its timeout. The whole status takes the server half a second, all of these 25 s."""
EACH_MB = 1.0
"""Most MB for one run's view and its buffers in the kernel and the server. The whole status has 17 MB."""
WRITTEN = ("what the script wrote last " * 20)[:500]
ROUNDS = 4


@pytest.fixture
async def server(programs: None) -> AsyncIterator[Server]:
    server = await Server.listen("--store", "memory", is_forked=False)
    yield server
    assert not any("Traceback" in line for line in server.err)


class Crowd:
    """Runs of one node each that have failed a few times and left their evidence."""

    def __init__(self, server: Server) -> None:
        self._transport = HttpTransport("127.0.0.1", server.port, None)
        self._addr = ""

    async def __aenter__(self) -> "Crowd":
        self._addr = await self._transport.connect()
        for number in range(RUNS):
            await self._start(f"run-{number}")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._transport.close()

    async def _start(self, run_id: str) -> None:
        for round_ in range(ROUNDS):
            await self._transport.exchange(self._join(run_id, round_))
            failure = Failure(
                node_id="node", rank=0, local_rank=0, pid=7, exit_code=3, cause="exit code 3",
                stderr_tail=(WRITTEN,) * 32,
            )  # fmt: skip
            await self._transport.exchange(
                ReportRequest(run_id=run_id, agent_id="agent", round=round_ + 1, failure=failure)
            )
        await self._transport.exchange(self._join(run_id, ROUNDS))

    def _join(self, run_id: str, after_round: int) -> JoinRequest:
        settings = RequestedSettings(max_restarts=100, lease_s=600.0, disconnect_grace_s=600.0)
        return JoinRequest(
            run_id=run_id, agent_id="agent", node_id="node", after_round=after_round, addr=self._addr, port=29_500,
            local_world_size=1, settings=settings,
        )  # fmt: skip

    async def poll(self, number: int) -> float:
        """Return the seconds that a poll takes."""
        began = time.perf_counter()
        poll = PollRequest(run_id=f"run-{number % RUNS}", agent_id="agent", revision=0, hold=False)
        reply = await self._transport.exchange(poll)
        assert isinstance(reply, Reply) and isinstance(reply.directive, Start)
        return time.perf_counter() - began


@contextmanager
def deaf_readers(port: int) -> Iterator[None]:
    """Clients that ask for the status and read nothing of it."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(DEAF)]
    try:
        for client in clients:
            client.sendall(f"GET {paths.STATUS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        yield
    finally:
        for client in clients:
            client.close()


async def test_no_agent_waits_for_slow_status_readers(server: Server) -> None:
    async with Crowd(server) as crowd:
        before = Footprint.of(server.pid)
        with deaf_readers(server.port):
            beside = [await crowd.poll(number) for number in range(POLLS)]
            during = Footprint.of(server.pid)
    show(beside)
    assert max(beside) < LONGEST_S
    assert during.rss_mb - before.rss_mb < DEAF * EACH_MB


async def test_agents_have_their_turn_while_others_read(server: Server) -> None:
    """Agents are served between any two runs of a status, so they are served many times while it is made."""
    async with Crowd(server) as crowd, aiohttp.ClientSession(f"http://{server.endpoint}") as session:
        reading = asyncio.gather(*(read_status(session) for _ in range(READERS)))
        beside: list[float] = []
        while not reading.done():
            beside.append(await crowd.poll(len(beside)))
        for body in await reading:
            assert len(json.loads(body)["runs"]) == RUNS, "every run must be in it"
    show(beside)
    assert len(beside) > READERS * RUNS / 20 and max(beside) < LONGEST_S


def show(polls: Sequence[float]) -> None:
    """Print the figures for docs/reference/http-api.md: `pytest -rP`."""
    print(f"{len(polls)} polls: {1e3 * median(polls):.1f} ms, at the longest {1e3 * max(polls):.0f} ms")


async def read_status(session: aiohttp.ClientSession) -> bytes:
    """Return the whole status, unparsed: parsing would take the time of the agent's requests."""
    async with session.get(paths.STATUS) as answer:
        return await answer.read()
