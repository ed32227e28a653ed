"""Who is who: agents that come back, agents of one name, and requests that arrive again, or late.

Leases and graces are far longer than the tests wait, unless a test is about them.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from rdzv_protocol import paths
from rdzv_protocol.timing import HOLDS_PER_LEASE

from tests.integration.conftest import Cluster
from tests.integration.desk import Desk, WorkerAtDesk, is_running
from tests.integration.programs import PATIENCE_S, Program, start_agent
from tests.integration.taps import Answers, Tap
from tests.integration.test_elastic import of_node, ppid, restart_count

LEASE_S = 3.0
BUSY_S = 5.0
"""What a busy machine may take beside the time that the rules allow."""
PATIENT = ("--last-call-timeout", "500", "--join-timeout", "500", "--shutdown-timeout", "500")
FOR_EVER = ("--lease", "500", "--disconnect-grace", "500", *PATIENT)
SECONDS, AGES = re.compile(r"\d+(\.\d+)? s\b"), ("age_s", "_left_s", "deadline_s")
ALARMS = re.compile("stopping|joining anew|leaving|lost|error|Traceback")


# Agents that come back.


def group_rank(workers: Sequence[WorkerAtDesk], agent: Program) -> str:
    """That of the agent, by its workers."""
    (rank,) = {worker.env["GROUP_RANK"] for worker in workers if ppid(worker.pid) == agent.pid}
    return rank


async def killed(agent: Program) -> None:
    agent.signal(signal.SIGKILL)
    assert await agent.exit_code() == -signal.SIGKILL


@pytest.mark.parametrize("flags", [(), ("--node-rank", "1")], ids=["by its node id", "by its node rank"])
async def test_a_restarted_agent_replaces_its_dead_self_at_once(cluster: Cluster, flags: tuple[str, ...]) -> None:
    await cluster.node("a", "--nnodes", "2", *FOR_EVER)
    old = await cluster.node("b", "--nnodes", "2", *FOR_EVER, *flags)
    first = await cluster.desk.group(4)
    rank = group_rank(first, old)
    await killed(old)
    new = await cluster.node("b", *flags)
    second = await cluster.desk.group(4)
    assert group_rank(second, new) == rank and restart_count(second) == 0
    await cluster.finish(second)
    run = await cluster.server.run()
    assert run["restarts"] == {"worker_failure": 0, "node_lost": 1, "node_left": 0, "node_arrived": 0}
    assert [(gone["node_id"], gone["cause"]) for gone in run["departures"]] == [
        ("b", "a new agent of the same node joined")
    ]


async def test_while_a_round_forms_a_restarted_agent_takes_its_own_place(cluster: Cluster) -> None:
    old = await cluster.node("a", "--nnodes", "2", *FOR_EVER)
    await old.line("waiting for 1 more node")
    await killed(old)
    new = await cluster.node("a")
    await new.line(r"waiting for 1 more node: 1 of 2 joined \(a\)")
    await cluster.node("b")
    await cluster.finish(await cluster.desk.group(4))


async def test_an_agent_replaces_one_that_hangs_on_the_same_node(cluster: Cluster) -> None:
    """Its connection stands and its lease has not run out; but asked for a sign of life it gives none."""
    lease_s = 12.0
    first = await cluster.nodes("ab", "--nnodes", "2", "--lease", str(lease_s), *PATIENT)
    old = cluster.agents["b"]
    rank = group_rank(first, old)
    old.signal(signal.SIGSTOP)
    began = time.monotonic()
    new = cluster.agents["new"] = await cluster.node("b")
    second = await cluster.desk.group(4)
    assert time.monotonic() - began < lease_s / HOLDS_PER_LEASE + BUSY_S < lease_s
    assert group_rank(second, new) == rank and restart_count(second) == 0
    old.signal(signal.SIGCONT)
    await old.line("is no longer part of run .*; joining anew")
    await old.line("standing by: round 2 has its 2 nodes")
    for worker in first:
        await worker.gone()
    cluster.agents["old"] = old
    await cluster.finish(second)


async def test_two_live_agents_of_one_name_are_two_nodes(cluster: Cluster) -> None:
    flags = ("--nnodes", "2", "--max-restarts", "1", *PATIENT)
    one = cluster.agents["one"] = await cluster.node("same", *flags)
    other = cluster.agents["other"] = await cluster.node("same", *flags)
    first = await cluster.desk.group(4)
    ranks = group_rank(first, one), group_rank(first, other)
    assert set(ranks) == {"0", "1"}
    os.kill(first[0].pid, signal.SIGKILL)
    second = await cluster.desk.group(4)
    assert (group_rank(second, one), group_rank(second, other)) == ranks and restart_count(second) == 1
    await cluster.finish(second)
    assert (await cluster.server.run())["departures"] == []


# Requests that arrive again, or late.


class EchoingTap(Tap):
    """Every request reaches the server twice: on its own way, and at the same time over a connection of its own."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self.echoes: set[asyncio.Task[int]] = set()

    def _ask(self, asked: list[tuple[str, bytes]], path: str, body: bytes) -> None:
        super()._ask(asked, path, body)
        self.echoes.add(asyncio.create_task(post(self.target, path, body)))

    async def close(self) -> None:
        await super().close()
        for echo in self.echoes:
            echo.cancel()
        await asyncio.gather(*self.echoes, return_exceptions=True)


class Tapped(Cluster):
    """A cluster whose agents reach their server through a tap, which remembers what they have asked."""

    def __init__(self, desk: Desk, tap: type[Tap]) -> None:
        super().__init__(desk)
        self.answers = Answers()
        self.tap = tap(self.answers)

    async def open(self) -> None:
        await self.serve()
        self.tap.target = ("127.0.0.1", self.server.port)
        await self.tap.open()

    async def node(self, node_id: str, *flags: str, nproc: int = 1, env: dict[str, str] | None = None) -> Program:
        command = ("--endpoint", self.tap.address, "--node-id", node_id, "--nproc", str(nproc), *flags)
        self.agents[node_id] = await start_agent(*command, env={**self.desk.env, **(env or {})})
        return self.agents[node_id]

    async def repeat_all(self) -> None:
        """Send everything that has ever been answered once more; nothing comes of it."""
        asked = [(answer.path, answer.request) for answer in self.answers.all]
        before = await self._picture()
        codes = await asyncio.gather(*(post(self.tap.target, path, body) for path, body in asked))
        assert set(codes) <= {200, 409}
        assert await self._picture() == before
        self.repeated = {path for path, _ in asked}

    async def _picture(self) -> Any:
        """All that can be seen of the run but ages: its status, its workers, and what its agents complain of."""
        return (
            without_ages(await self.server.run()),
            [worker.pid for worker in self.desk.all if is_running(worker.pid)],
            [line for agent in self.agents.values() for line in agent.err if ALARMS.search(line)],
        )


def without_ages(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_ages(part) for key, part in value.items() if not key.endswith(AGES)}
    if isinstance(value, list):
        return [without_ages(part) for part in value]
    return SECONDS.sub("", value) if isinstance(value, str) else value


async def post(address: tuple[str, int], path: str, body: bytes) -> int:
    """The status with which the server answers this request."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*address)
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: {paths.MEDIA_TYPE}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
    return int(answer.split()[1])


async def running(tap: type[Tap], desk: Desk) -> AsyncIterator[Tapped]:
    cluster = Tapped(desk, tap)
    await cluster.open()
    try:
        yield cluster
    finally:
        await cluster.end()
        await cluster.tap.close()
    assert desk.survivors() == []


@pytest.fixture
async def tapped(desk: Desk) -> AsyncIterator[Tapped]:
    async for cluster in running(Tap, desk):
        yield cluster


@pytest.fixture
async def echoing(desk: Desk) -> AsyncIterator[Tapped]:
    async for cluster in running(EchoingTap, desk):
        yield cluster


LEASED = ("--lease", str(LEASE_S), *PATIENT)
"""A poll that arrives again is parked for half of the lease."""


async def test_whatever_is_repeated_later_changes_nothing_of_a_run_that_restarts(tapped: Tapped) -> None:
    await tapped.node("a", "--nnodes", "2", "--max-restarts", "2", *LEASED)
    await tapped.agents["a"].line("waiting for 1 more node")
    await tapped.repeat_all()  # forming
    await tapped.node("b")
    first = await tapped.desk.group(2)
    await tapped.repeat_all()  # running
    await first[0].tell("ignore SIGTERM")
    first[1].order_exit(3)
    await tapped.agents["a"].line("stopping the workers of round 1")
    await tapped.agents["b"].line("waiting for .* to stop the workers of round 1")
    await tapped.repeat_all()  # restarting: one has reported and has joined again, the other stops its worker
    os.kill(first[0].pid, signal.SIGKILL)
    second = await tapped.desk.group(2)
    await tapped.repeat_all()  # running again
    second[0].order_exit(0)
    await succeeded(tapped, 1)
    await tapped.repeat_all()  # finishing
    await tapped.finish(second[1:])
    await tapped.repeat_all()  # succeeded
    run = await tapped.server.run()
    assert (run["attempt"], run["phase"], run["round"], run["restart_count"]) == (1, "succeeded", 2, 1)
    assert tapped.repeated == {paths.JOIN, paths.POLL, paths.REPORT}


async def succeeded(cluster: Cluster, number: int) -> None:
    """Return when so many nodes are done."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(node["state"] == "succeeded" for node in (await cluster.server.run())["nodes"]) < number:
            pass


async def test_whatever_is_repeated_later_changes_nothing_of_a_run_whose_nodes_come_and_go(tapped: Tapped) -> None:
    first = await tapped.nodes("abc", "--nnodes", "1:3", *LEASED, nproc=1)
    assert len(first) == 3
    leaver = tapped.agents.pop("c")
    leaver.signal(signal.SIGTERM)
    second = await tapped.desk.group(2)
    assert await leaver.exit_code() == 1
    await tapped.repeat_all()  # one has left
    old = tapped.agents.pop("b")
    await killed(old)
    await tapped.desk.group(1)
    await tapped.repeat_all()  # another one is lost
    await tapped.node("b")
    third = await tapped.desk.group(2)
    await tapped.repeat_all()  # it is back, and what it said in its life before is not it
    assert not any(is_running(worker.pid) for worker in second if worker.env["RANK"] == "1")
    await tapped.finish(third)
    run = await tapped.server.run()
    assert run["restarts"] == {"worker_failure": 0, "node_lost": 1, "node_left": 1, "node_arrived": 1}
    assert tapped.repeated == {paths.JOIN, paths.POLL, paths.REPORT, paths.LEAVE} - {paths.REPORT}


async def test_whatever_is_repeated_after_a_failed_run_begins_no_other_attempt(tapped: Tapped) -> None:
    workers = await tapped.nodes("ab", "--nnodes", "2", *LEASED, nproc=1)
    workers[0].order_exit(3)
    for agent in tapped.agents.values():
        assert await agent.exit_code() == 1
    await tapped.repeat_all()
    assert [run["attempt"] for run in [await tapped.server.run()]] == [1]


async def test_a_run_whose_every_request_arrives_twice_goes_as_ever(echoing: Tapped) -> None:
    first = await echoing.nodes("ab", "--nnodes", "2:3", "--max-restarts", "2", "--last-call-timeout", "0.2", nproc=1)
    os.kill(first[1].pid, signal.SIGKILL)
    second = await echoing.desk.group(2)
    assert restart_count(second) == 1
    await echoing.node("c")
    third = await echoing.desk.group(3)
    echoing.agents["c"].signal(signal.SIGTERM)
    fourth = await echoing.desk.group(2)
    assert await echoing.agents.pop("c").exit_code() == 1
    assert len(of_node(third, 2)) == 1 and restart_count(fourth) == 1
    await echoing.finish(fourth)
    run = await echoing.server.run()
    assert (run["attempt"], run["phase"], run["round"]) == (1, "succeeded", 4)
    assert run["restarts"] == {"worker_failure": 1, "node_lost": 0, "node_left": 1, "node_arrived": 1}
    assert isinstance(echoing.tap, EchoingTap) and len(echoing.tap.echoes) > 10
