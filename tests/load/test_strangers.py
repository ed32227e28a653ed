"""Strangers at the open port: the most that each way in costs an agent that continues and one that has stopped.

The server and the strangers are separate programs. The strangers continue until the silent agent is lost. No test
measures time: an agent's wait is the processor time that the server uses meanwhile, relative to plain Python.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.messages import PollRequest, Reply
from rdzv_protocol.settings import RequestedSettings

from benchmarks.machine import cpu_s, rss_kb
from benchmarks.swarm import Swarm
from node_agent.kernel.transport.http import HttpTransport
from rdzv_server.words import losses
from tests.support.certificates import Authority
from tests.support.message_search import pattern
from tests.support.programs import Program, Server
from tests.support.scenario import a_join

pytestmark = pytest.mark.usefixtures("programs")

TOKEN = "0123456789abcdef0123456789abcdef"
LOST_AFTER_S, HEALTHY_LEASE_S = 3.0, 60.0
POLL_S, POLLS = 0.005, 300
WAITS_S, PLAIN_S = 0.020, 0.0005
"""99 of 100 polls wait while the server works for at most `WAITS_S`, on a machine where `plain_s` returns `PLAIN_S`;
otherwise in proportion."""
NODES = 300
"""Nodes at one address, which take 1 s of the server's work to join and to restart."""
UNDER_WAY_S = 90.0
"""Longest time until the load is under way: a connection that finds the queue full is tried again after seconds."""
QUIET_S = 12.0
"""Seconds in which memory is given back: the server checks once a second, and delays work that is not urgent by five.
"""
DRAINED_S = 300.0
"""Longest time until the server has read and closed what the strangers have left in its queue: thousands of them."""
GROWS_MB, STAYS_MB = 100, 64
"""Memory that may stay: Python uses a little of each mebibyte. It is more on a busy machine, where more strangers wait
at once."""


@dataclass(frozen=True, slots=True)
class Door:
    """Deed of strangers, how often it is done until the load is under way, and at which server.

    `row`: the row of the table in docs/explanation/threat-model.md with its cost.
    """

    row: str
    deed: str
    count: int
    is_tls: bool = False
    is_open: bool = False
    """Whether the server has no token."""
    addresses: int = 1


DOORS: dict[str, Door] = {
    "connections, one after another": Door("TCP connect", "connect", 1_500),
    "half a handshake that stays": Door("TLS handshake", "open hello", 600, is_tls=True),
    "plain HTTP where TLS is required": Door("plain HTTP where TLS is required", "open probe", 300, is_tls=True),
    "half a head, from many addresses": Door("request line and headers", "open head", 600, addresses=250),
    "bodies that do not end": Door("body, with a wrong token or none", "open body", 200),
    "bodies that do not end, where no token is set": Door(
        "body, where no token is set", "open body", 200, is_open=True
    ),
    "chunks of a byte": Door("`Transfer-Encoding`, `Content-Encoding`", "chunks", 200),
    "many requests in one piece": Door("many requests in one piece", "pipeline", 100),
    "answers that are not read": Door("an answer that is not read", "open unread", 200),
    "probes that stay": Door("`/healthz`, `/readyz`, `/leaderz`, `/openapi.json`, `/static/`", "open probe", 600),
    "pages, unknown paths and other methods": Door(
        "`/`, `/login`, `/logout`, `/runs/...`, `/nodes/...`, unknown paths, other methods", "open pages", 600
    ),
    "streams without a token": Door("`/v1/...`, `/metrics`, streams", "open watch", 300),
    "a large form": Door("`POST /login`", "login", 150),
}
LEAVES_MOST = "half a head, from many addresses"
"""Door at which strangers leave most connections behind: up to 13,000. Memory must not grow while they are closed."""
ELSEWHERE, AGENTS_ADDRESS = "127.0.2.1", "127.0.1.1"
"""First address of the strangers, and that of many agents."""


def plain_s() -> float:
    """Return the processor time that a piece of plain Python takes here and now."""
    began_s = time.thread_time()
    sum(number * number for number in range(5_000))
    return time.thread_time() - began_s


def starved_s(pid: int | str) -> float:
    """Return the seconds for which the process has waited for a processor, on a busy machine."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


class Agent:
    """Agent that polls when the test says so."""

    def __init__(self, server: Server, credentials: Credentials, name: str) -> None:
        self._transport = HttpTransport("127.0.0.1", server.port, credentials)
        self._pid, self._name, self._run_id = server.pid, name, name

    async def join(self, lease_s: float, run_id: str = "") -> None:
        """Join a run, by default a separate one. A later agent of a run is a spare."""
        self._run_id = run_id or self._name
        settings = RequestedSettings(
            min_nodes=1, max_nodes=2, lease_s=lease_s, last_call_timeout_s=0.0, scale_up="manual"
        )
        join = a_join(self._name, run_id=self._run_id, settings=settings)
        assert isinstance(await self._transport.exchange(join), Reply)

    async def poll(self) -> float:
        """Poll. Return how long the server has worked meanwhile, without times when this process had no processor."""
        poll = PollRequest(run_id=self._run_id, agent_id=self._name, revision=0, hold=False)
        began_s = cpu_s(self._pid) - starved_s("self")
        assert isinstance(await self._transport.exchange(poll), Reply)
        return cpu_s(self._pid) - starved_s("self") - began_s

    async def close(self) -> None:
        await self._transport.close()


@asynccontextmanager
async def serving(
    folder: Path, *, is_tls: bool = False, is_open: bool = False
) -> AsyncIterator[tuple[Server, Agent, Agent, Agent]]:
    """Yield a server, with a token unless it is open, and three agents that know the token."""
    token = folder / "agents.token"
    token.touch(0o600)
    token.write_text(f"{TOKEN}\n")
    words, credentials = ["--store", "memory"], Credentials()
    words += [] if is_open else ["--token-file", str(token)]
    if is_tls:
        authority = Authority(folder)
        certificate, key = authority.issue("server")
        words += ["--tls-cert", str(certificate), "--tls-key", str(key)]
        credentials = authority.credentials()
    credentials.token = TOKEN
    server = await Server.listen(*words, is_forked=False)  # a fork would share memory with its parent
    healthy, witness, silent = agents = [Agent(server, credentials, name) for name in ("healthy", "witness", "silent")]
    yield server, healthy, witness, silent
    for agent in agents:
        await agent.close()


async def polls_until(agent: Agent, witness: Agent, over: asyncio.Future[str]) -> float:
    """Let both poll until `over`.

    Return the most work that 99 of 100 polls of `agent` wait for, in proportion to plain Python.
    """
    waited: list[float] = []
    plain: list[float] = []
    while not over.done() or len(waited) < POLLS:
        waited.append(await agent.poll())
        await witness.poll()
        plain.append(plain_s())
        await asyncio.sleep(POLL_S)
    waited.sort()
    return waited[len(waited) * 99 // 100] * PLAIN_S / sorted(plain)[len(plain) // 2]


async def peak_mb(server: Server, over: asyncio.Future[None]) -> float:
    """Return the peak memory of the server until `over`."""
    peak = rss_kb(server.pid)
    while not over.done():
        await asyncio.sleep(0.05)
        peak = max(peak, rss_kb(server.pid))
    return peak / 1024


async def drained(server: Server, files: int, agent: Agent) -> None:
    """Return when the server has closed what the strangers have left in its queue, and has at most these open files."""
    async with asyncio.timeout(DRAINED_S):
        while open_files(server) > files:
            await agent.poll()
            await asyncio.sleep(0.05)


async def settled_mb(server: Server, at_most_mb: float, agent: Agent) -> float:
    """Return the memory of the server once it is below the limit, or at the end. The agent continues meanwhile."""
    peak = ends_s = 0.0
    while (held_mb := rss_kb(server.pid) / 1024) > at_most_mb:
        now_s = time.monotonic() - starved_s(server.pid)
        if held_mb > peak:
            peak, ends_s = held_mb, now_s + QUIET_S
        if now_s >= ends_s:
            break
        await agent.poll()
        await asyncio.sleep(0.05)
    return held_mb


def open_files(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


async def strangers_at(server: Server, deed: str, count: int, first: str = ELSEWHERE, addresses: int = 1) -> Program:
    words = (deed, str(server.port), str(count), first, str(addresses))
    return await Program.start(sys.executable, "-m", "tests.support.strangers", *words)


@pytest.mark.timeout(600)  # on a busy machine, thousands of connections are closed
@pytest.mark.parametrize("door", DOORS)
async def test_no_unauthenticated_path_uses_much_memory_delays_agents_or_hides_a_loss(
    door: str, tmp_path: Path
) -> None:
    visit = DOORS[door]
    async with serving(tmp_path, is_tls=visit.is_tls, is_open=visit.is_open) as (
        server, healthy, witness, silent,
    ):  # fmt: skip
        await healthy.join(HEALTHY_LEASE_S)
        before_mb, files = rss_kb(server.pid) / 1024, open_files(server) + len([witness, silent])
        over = asyncio.get_running_loop().create_future()
        peak = asyncio.create_task(peak_mb(server, over))
        load = await strangers_at(server, visit.deed, visit.count, addresses=visit.addresses)
        await load.line("under way", UNDER_WAY_S)
        for agent in (witness, silent):  # a run of which no agent is heard would only warn
            await agent.join(LOST_AFTER_S, run_id="run")
        cause = losses.not_heard(LOST_AFTER_S)
        lost = asyncio.create_task(server.line(pattern(losses.lost, node_id="silent", cause=cause)))
        waited_s = await polls_until(healthy, witness, lost)
        over.set_result(None)
        most_mb = await peak
        await load.kill()
        if door == LEAVES_MOST:
            await drained(server, files, healthy)
        after_mb = await settled_mb(server, before_mb + STAYS_MB, healthy)
    print(
        f"{door}: 99 of 100 polls wait for {1e3 * waited_s:.1f} ms of the server's work; "
        f"{most_mb - before_mb:+.0f} MB, then {after_mb - before_mb:+.0f} MB"
    )
    assert waited_s <= WAITS_S
    assert most_mb - before_mb <= GROWS_MB
    assert after_mb - before_mb <= STAYS_MB


async def test_agents_behind_one_address_join_and_restart_beside_strangers_at_another(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, *_):
        load = await strangers_at(server, "open head", 600)
        await load.line("under way")
        swarm = Swarm(NODES, server.port, addresses=1, token=TOKEN, lease_s=HEALTHY_LEASE_S)
        await swarm.join()
        await swarm.restart()
        assert load.is_running
        swarm.close()


async def test_agents_that_are_in_continue_beside_strangers_at_their_own_address(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, *_):
        swarm = Swarm(NODES, server.port, addresses=1, token=TOKEN, lease_s=HEALTHY_LEASE_S)
        await swarm.join()
        load = await strangers_at(server, "open head", 600, first=AGENTS_ADDRESS)
        await load.line("under way")
        await swarm.restart()
        assert load.is_running
        swarm.close()
