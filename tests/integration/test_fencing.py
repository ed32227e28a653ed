"""Identities: agents that return, agents of one name, and requests that arrive again, or late.

Leases and graces are far longer than the tests wait, unless a test is about them.
"""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import aiohttp
import pytest
from rdzv_protocol import paths
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.timing import HOLDS_PER_LEASE

from node_agent import words
from rdzv_server.words import completion, losses
from tests.support.cluster import Cluster
from tests.support.message_search import part, pattern
from tests.support.process_info import is_running
from tests.support.programs import PATIENCE_S, Program, Server
from tests.support.tcp_proxy import Exchange, TcpProxy
from tests.support.worker_hub import Worker, WorkerHub, of_agent, of_node, restart_count

LEASE_S = 3.0
BUSY_S = 5.0
"""Seconds that a busy machine may need in addition to the time that the rules allow."""
PATIENT = ("--last-call-timeout", "500", "--join-timeout", "500", "--shutdown-timeout", "500")
FOR_EVER = ("--lease", "500", "--disconnect-grace", "500", *PATIENT)
SECONDS, AGES = re.compile(r"\d+(\.\d+)? s\b"), ("age_s", "_left_s", "deadline_s", "time_s")
ALARMS = re.compile("stopping|joining again|leaving|lost|error|Traceback")


# Agents that return.


def group_rank(workers: Sequence[Worker], agent: Program) -> int:
    """Return the group rank of the agent, from its workers."""
    (rank,) = {worker.group_rank for worker in of_agent(workers, agent.pid)}
    return rank


@pytest.mark.parametrize("flags", [(), ("--node-rank", "1")], ids=["by its node id", "by its node rank"])
async def test_a_restarted_agent_replaces_its_dead_self_at_once(cluster: Cluster, flags: tuple[str, ...]) -> None:
    await cluster.node("a", "--nnodes", "2", *FOR_EVER)
    old = await cluster.node("b", "--nnodes", "2", *FOR_EVER, *flags)
    first = await cluster.hub.group(4)
    rank = group_rank(first, old)
    await old.kill()
    new = await cluster.node("b", *flags)
    second = await cluster.hub.group(4)
    assert group_rank(second, new) == rank and restart_count(second) == 0
    await cluster.finish(second)
    run = await cluster.server.run()
    assert await cluster.restarts() == {"node_lost": 1}
    assert [(gone["node_id"], gone["cause"]) for gone in run["departures"]] == [("b", losses.REPLACED)]


async def test_while_a_round_forms_a_restarted_agent_takes_its_own_place(cluster: Cluster) -> None:
    old = await cluster.node("a", "--nnodes", "2", *FOR_EVER)
    await old.line(completion.waiting_for(1))
    await cluster.server.parks(1)
    await old.kill()
    new = await cluster.node("a")
    await new.line(pattern(completion.too_few(1, 1, 2, "a")))
    await cluster.node("b")
    await cluster.finish(await cluster.hub.group(4))


async def test_an_agent_replaces_one_that_hangs_on_the_same_node(cluster: Cluster) -> None:
    """A silent holder: its connection is open and its lease lasts. Asked for a sign of life, it sends none."""
    lease_s = 12.0
    first = await cluster.nodes("ab", "--nnodes", "2", "--lease", str(lease_s), *PATIENT)
    old = cluster.agents["b"]
    rank = group_rank(first, old)
    old.signal(signal.SIGSTOP)
    began = time.monotonic()
    new = cluster.agents["new"] = await cluster.node("b")
    second = await cluster.hub.group(4)
    assert time.monotonic() - began < lease_s / HOLDS_PER_LEASE + BUSY_S < lease_s
    assert group_rank(second, new) == rank and restart_count(second) == 0
    old.signal(signal.SIGCONT)
    await old.line(pattern(losses.gone, node_id="b", left=False) + ".*; joining again")
    await old.line(completion.standby_full(2, 2))
    for worker in first:
        await worker.gone()
    cluster.agents["old"] = old
    await cluster.finish(second)


async def test_two_live_agents_of_one_name_are_two_nodes(cluster: Cluster) -> None:
    flags = ("--nnodes", "2", "--max-restarts", "1", *PATIENT)
    one = cluster.agents["one"] = await cluster.node("same", *flags)
    other = cluster.agents["other"] = await cluster.node("same", *flags)
    first = await cluster.hub.group(4)
    ranks = group_rank(first, one), group_rank(first, other)
    assert set(ranks) == {0, 1}
    first[0].kill()
    second = await cluster.hub.group(4)
    assert (group_rank(second, one), group_rank(second, other)) == ranks and restart_count(second) == 1
    await cluster.finish(second)
    assert (await cluster.server.run())["departures"] == []


# Requests that arrive again, or late.


class Recorded(Cluster):
    """A cluster whose agents reach their server through a proxy, which records their requests.

    `echoes`: whether every request also reaches the server a second time, simultaneously over a separate connection.
    """

    nproc = 1

    def __init__(self, hub: WorkerHub, echoes: bool) -> None:
        super().__init__(hub)
        self.exchanges: list[Exchange] = []
        self.echoes: set[asyncio.Task[int]] = set()
        self.proxy = TcpProxy(exchanges=self.exchanges, on_request=self._echo if echoes else None)

    async def __aenter__(self) -> Self:
        self.proxy.target = (await self.serve()).endpoint
        await self.proxy.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        await self.proxy.__aexit__()
        for echo in self.echoes:
            echo.cancel()
        await asyncio.gather(*self.echoes, return_exceptions=True)

    @property
    def endpoint(self) -> str:
        return self.proxy.address

    def _echo(self, path: str, body: bytes) -> None:
        self.echoes.add(asyncio.create_task(post(self.server, path, body)))

    async def repeat_all(self) -> None:
        """Send every request that was ever answered once more. None has an effect."""
        asked = [(exchange.path, exchange.request) for exchange in self.exchanges]
        before = await self._picture()
        codes = await asyncio.gather(*(post(self.server, path, body) for path, body in asked))
        assert set(codes) <= {200, 409}
        assert await self._picture() == before
        self.repeated = {path for path, _ in asked}

    async def _picture(self) -> Any:
        """Return the visible state of the run without ages: its status, its workers, and its agents' complaints."""
        return (
            without_ages(await self.server.run()),
            [worker.pid for worker in self.hub.all if is_running(worker.pid)],
            [line for agent in self.agents.values() for line in agent.err if ALARMS.search(line)],
        )


def without_ages(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_ages(part) for key, part in value.items() if not key.endswith(AGES)}
    if isinstance(value, list):
        return [without_ages(part) for part in value]
    return SECONDS.sub("", value) if isinstance(value, str) else value


async def post(server: Server, path: str, body: bytes) -> int:
    """Return the status with which the server answers this request, over a separate connection."""
    url, headers = f"http://{server.endpoint}{path}", {"Content-Type": paths.MEDIA_TYPE}
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as answer:
        return answer.status


@pytest.fixture
async def recorded(hub: WorkerHub, request: pytest.FixtureRequest) -> AsyncIterator[Recorded]:
    async with Recorded(hub, echoes=getattr(request, "param", False)) as cluster:
        yield cluster


LEASED = ("--lease", str(LEASE_S), *PATIENT)
"""Flags with which a repeated poll is parked for half of the lease."""


async def test_requests_repeated_later_have_no_effect_on_a_run_that_restarts(recorded: Recorded) -> None:
    await recorded.node("a", "--nnodes", "2", "--max-restarts", "2", *LEASED)
    await recorded.agents["a"].line(completion.waiting_for(1))
    await recorded.repeat_all()  # forming
    await recorded.node("b")
    first = await recorded.hub.group(2)
    await recorded.repeat_all()  # running
    await first[0].tell("ignore SIGTERM")
    first[1].order_exit(3)
    await recorded.agents["a"].line(part(words.progress.stopping_workers, round_=1, reason=""))
    await recorded.agents["b"].line(completion.to_stop("a", 1))
    await recorded.repeat_all()  # restarting: one node has reported and joined again, the other is stopping its worker
    first[0].kill()
    second = await recorded.hub.group(2)
    await recorded.repeat_all()  # running again
    second[0].order_exit(0)
    await succeeded(recorded, 1)
    await recorded.repeat_all()  # finishing
    await recorded.finish(second[1:])
    await recorded.repeat_all()  # succeeded
    run = await recorded.server.run()
    assert (run["attempt"], run["phase"], run["round"], run["restart_count"]) == (1, "succeeded", 2, 1)
    assert recorded.repeated == {paths.JOIN, paths.POLL, paths.REPORT}


async def succeeded(cluster: Cluster, number: int) -> None:
    """Return when this number of nodes has succeeded."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(node["state"] == "succeeded" for node in (await cluster.server.run())["nodes"]) < number:
            pass


async def test_requests_repeated_later_have_no_effect_on_a_run_whose_nodes_come_and_go(recorded: Recorded) -> None:
    first = await recorded.nodes("abc", "--nnodes", "1:3", *LEASED, nproc=1)
    assert len(first) == 3
    leaver = recorded.agents.pop("c")
    leaver.signal(signal.SIGTERM)
    second = await recorded.hub.group(2)
    assert await leaver.exit_code() == ExitCode.START_AGAIN
    await recorded.repeat_all()  # one has left
    old = recorded.agents.pop("b")
    await old.kill()
    await recorded.hub.group(1)
    await recorded.repeat_all()  # another one is lost
    await recorded.node("b")
    third = await recorded.hub.group(2)
    await recorded.repeat_all()  # it is back, and requests of its previous agent have no effect
    assert not any(is_running(worker.pid) for worker in second if worker.env["RANK"] == "1")
    await recorded.finish(third)
    assert await recorded.restarts() == {"node_lost": 1, "node_left": 1, "node_arrived": 1}
    assert recorded.repeated == {paths.JOIN, paths.POLL, paths.REPORT, paths.LEAVE} - {paths.REPORT}


async def test_requests_repeated_after_a_failed_run_do_not_begin_another_attempt(recorded: Recorded) -> None:
    workers = await recorded.nodes("ab", "--nnodes", "2", *LEASED, nproc=1)
    workers[0].order_exit(3)
    for agent in recorded.agents.values():
        assert await agent.exit_code() == 1
    await recorded.repeat_all()
    assert (await recorded.server.run())["attempt"] == 1


@pytest.mark.parametrize("recorded", [True], indirect=True)
async def test_duplicated_requests_do_not_change_a_run(recorded: Recorded) -> None:
    first = await recorded.nodes("ab", "--nnodes", "2:3", "--max-restarts", "2", "--last-call-timeout", "0.2", nproc=1)
    first[1].kill()
    second = await recorded.hub.group(2)
    assert restart_count(second) == 1
    await recorded.node("c")
    third = await recorded.hub.group(3)
    recorded.agents["c"].signal(signal.SIGTERM)
    fourth = await recorded.hub.group(2)
    assert await recorded.agents.pop("c").exit_code() == ExitCode.START_AGAIN
    assert len(of_node(third, 2)) == 1 and restart_count(fourth) == 1
    await recorded.finish(fourth)
    run = await recorded.server.run()
    assert (run["attempt"], run["phase"], run["round"]) == (1, "succeeded", 4)
    assert await recorded.restarts() == {"worker_failure": 1, "node_left": 1, "node_arrived": 1}
    assert len(recorded.echoes) > 10
