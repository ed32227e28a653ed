"""A wall clock that jumps by an hour, forwards or back, under a real server and a real agent. Also a server whose time
stands still. Neither has an effect on runs.

libfaketime gives a program its own wall clock, which the test sets while the program runs.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from node_agent import words
from tests.support.cluster import ALL_COME, Cluster
from tests.support.message_search import has_message, part
from tests.support.outages import LOST, REACHED
from tests.support.programs import PATIENCE_S, Program, Server, start_agent
from tests.support.wall_clock import WallClock, sweep
from tests.support.worker_hub import Worker, WorkerHub, all_run, finish

HOUR_S, DAY_S = 3600, 86_400
SANE_S = 600.0
"""Limit of all ages in a test."""
LEASE_S, WATCHED_S = 6.0, 2.5
LONG_LEASE_S = 60.0
"""Much shorter than a jump, yet no agent on a busy machine is silent for so long. libfaketime makes threads slow."""
jumps = pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S], ids=["an hour on", "an hour back"])


class Clocked(Cluster):
    """A durable server with its own wall clock, and agents, of which `a` also has one."""

    nproc = 1

    def __init__(self, hub: WorkerHub, folder: Path) -> None:
        super().__init__(hub, "--store", f"sqlite:{folder}/state.db")
        self.servers_clock = WallClock(folder / "server")
        self.agents_clock = WallClock(folder / "agent")

    async def serve(self, *flags: str, port: int = 0) -> Server:
        self.servers.append(await Server.listen(*self.server_flags, *flags, port=port, env=self.servers_clock.env))
        return self.server

    async def node(self, node_id: str, *flags: str, nproc: int = 0, env: Mapping[str, str] | None = None) -> Program:
        clock = self.agents_clock.env if node_id == "a" else {}
        return await super().node(node_id, *flags, nproc=nproc, env={**clock, **(env or {})})

    def jump(self, offset_s: int) -> None:
        """Make the clocks of the server and of node a jump."""
        self.servers_clock.jump(offset_s)
        self.agents_clock.jump(offset_s)


@pytest.fixture
async def clocked(hub: WorkerHub, tmp_path: Path) -> AsyncIterator[Clocked]:
    try:
        async with Clocked(hub, tmp_path) as cluster:
            await cluster.serve()
            yield cluster
    finally:
        sweep()


def ages(value: Any, name: str = "") -> list[float]:
    """Return every age and remaining time in a status."""
    if isinstance(value, dict):
        return [age for key, part in value.items() for age in ages(part, key)]
    if isinstance(value, list):
        return [age for part in value for age in ages(part)]
    is_age = name.endswith(("age_s", "_left_s")) or name == "deadline_s"
    return [value] if is_age and value is not None else []


async def watched(server: Server) -> None:
    """Check for a while of the server's time that nothing is lost, restarted or absurd and every agent is heard."""
    began_at = (await server.run())["age_s"]
    while (run := await server.run())["age_s"] < began_at + WATCHED_S:
        assert (run["round"], run["restart_count"], run["departures"]) == (1, 0, [])
        assert all(node["connected"] for node in run["nodes"]), run
        assert all(0.0 <= age < SANE_S for age in ages(run)), run


async def all_connected(server: Server) -> dict[str, Any]:
    """Return the run once every agent polls this server."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            run = await server.run()
            if all(node["connected"] for node in run["nodes"]):
                return run
            await asyncio.sleep(0.05)


def log_lag_s(server: Server) -> float:
    """Return how far the time in the server's last line is from the true time, in either direction."""
    hours, minutes, seconds = map(int, server.err[-1].split()[1].split(":"))
    now = time.localtime()
    lag_s = 3600 * (hours - now.tm_hour) + 60 * (minutes - now.tm_min) + seconds - now.tm_sec
    return min(lag_s % DAY_S, -lag_s % DAY_S)


async def test_workers_and_leases_of_a_running_run_notice_nothing(clocked: Clocked) -> None:
    first = await clocked.nodes("ab", "--nnodes", "2", "--max-restarts", "1", "--lease", str(LONG_LEASE_S), nproc=1)
    for jump_s in (HOUR_S, -HOUR_S):
        clocked.jump(jump_s)
        await watched(clocked.server)
    assert all_run(first)
    of_node_a(first).kill()
    second = await clocked.hub.group(2)
    run = await clocked.server.run()
    run_id, failed_at = run["run_id"], run["failures"][-1]["failed_at"]
    assert abs(failed_at - time.time() + HOUR_S) < 60, "its clock has jumped indeed"
    events = json.loads(await clocked.server.get(f"/v1/runs/{run_id}/events"))["events"]
    offs = {event["kind"]: event["at"] - time.time() for event in events}
    assert abs(offs["run_created"]) < 60 and abs(offs["workers_failed"] + HOUR_S) < 60, "by the server's clock then"
    await clocked.finish(second)
    run = await clocked.server.run()
    assert await clocked.restarts() == {"worker_failure": 1}
    assert all(0.0 <= age < SANE_S for age in ages(run)), run


def of_node_a(workers: list[Worker]) -> Worker:
    (worker,) = (worker for worker in workers if "FAKETIME_TIMESTAMP_FILE" in worker.env)
    return worker


@jumps
async def test_a_forming_round_keeps_its_full_last_call(clocked: Clocked, jump_s: int) -> None:
    last_call_s = 3.0
    await clocked.node("a", "--nnodes", "1:2", "--last-call-timeout", str(last_call_s), "--join-timeout", "500")
    async with asyncio.timeout(PATIENCE_S):
        while not (await clocked.server.status())["runs"]:
            pass  # `get` pauses between two requests
    waited_since = time.monotonic() - (await clocked.server.run())["age_s"]
    clocked.jump(jump_s)
    assert 0.0 <= ((await clocked.server.run())["deadline_s"] or 0.0) <= last_call_s
    workers = await clocked.hub.group(1)  # within seconds, not an hour
    assert time.monotonic() - waited_since >= last_call_s
    await clocked.finish(workers)
    await clocked.server.line("run succeeded")
    assert abs(log_lag_s(clocked.server) - HOUR_S) < 60, "its log continues, an hour off"


@jumps
async def test_while_a_round_restarts_workers_get_only_their_grace(clocked: Clocked, jump_s: int) -> None:
    grace_s = 1.5
    flags = ("--nnodes", "2", "--max-restarts", "1", "--lease", str(LONG_LEASE_S), "--shutdown-timeout", str(grace_s))
    first = await clocked.nodes("ab", *flags, nproc=1)
    stubborn = of_node_a(first)
    await stubborn.tell("ignore SIGTERM")
    began = time.monotonic()
    next(worker for worker in first if worker is not stubborn).order_exit(3)
    await clocked.agents["a"].line(part(words.progress.stopping_workers, round_=1, reason=""))
    clocked.jump(jump_s)
    await stubborn.gone()
    assert grace_s <= time.monotonic() - began
    second = await clocked.hub.group(2)
    assert (await clocked.server.run())["departures"] == []
    await clocked.finish(second)


@jumps
async def test_a_server_continues_though_its_clock_jumped_between_two_incarnations(
    clocked: Clocked, jump_s: int
) -> None:
    first = await clocked.nodes("ab", "--nnodes", "2", "--max-restarts", "2", "--lease", "500", nproc=1)
    first[0].kill()
    second = await clocked.hub.group(2)
    await clocked.server.kill()
    for agent in clocked.agents.values():
        await agent.line(LOST)  # libfaketime makes threads slow
    clocked.jump(jump_s)
    await clocked.serve(port=clocked.server.port)
    away_s = [float((await agent.line(REACHED))["after_s"]) for agent in clocked.agents.values()]
    assert all(0.0 <= each < 60.0 for each in away_s)
    run = await all_connected(clocked.server)
    assert (run["round"], run["restart_count"], run["departures"]) == (2, 1, [])
    assert all(0.0 <= age < SANE_S for age in ages(run)), run
    second[1].kill()
    third = await clocked.hub.group(2)
    ages_of_restarts = [restart["age_s"] for restart in (await clocked.server.run())["history"]]
    assert ages_of_restarts == sorted(ages_of_restarts, reverse=True)
    await clocked.finish(third)
    assert all(0.0 <= age < SANE_S for age in ages(await clocked.server.run()))


# A server that hangs: its process is stopped, or its machine is suspended.

HANG_S = 1.5 * LEASE_S


async def hangs(pid: int) -> None:
    """Stop the process for longer than any lease."""
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(HANG_S)
    os.kill(pid, signal.SIGCONT)


async def test_a_server_that_hung_for_longer_than_the_leases_does_not_lose_agents(cluster: Cluster) -> None:
    workers = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", "--lease", str(LEASE_S), nproc=1)
    await hangs(cluster.server.pid)
    await watched(cluster.server)
    assert all_run(workers)
    await cluster.finish(workers)


async def test_a_node_lost_after_such_a_hang_is_noticed_by_its_lease(cluster: Cluster) -> None:
    await cluster.nodes("ab", "--nnodes", "1:2", *ALL_COME, "--lease", str(LEASE_S), nproc=1)
    gone = cluster.agents.pop("b")
    gone.signal(signal.SIGSTOP)  # its connection stays open
    await hangs(cluster.server.pid)
    (left,) = await cluster.hub.group(1)
    await cluster.finish([left])
    assert [departure["node_id"] for departure in (await cluster.server.run())["departures"]] == ["b"]
    await gone.end()


async def test_an_agent_with_its_own_server_may_be_stopped_for_a_while(hub: WorkerHub) -> None:
    """Ctrl-Z, and `fg` later."""
    agent = await start_agent("--standalone", "--lease", str(LEASE_S), "--max-restarts", "1", env=hub.env)
    (worker,) = await hub.group(1)
    await hangs(agent.pid)
    await worker.tell("say here")
    worker.kill()
    (again,) = await hub.group(1)
    assert again.env["TORCHELASTIC_RESTART_COUNT"] == "1", "it is the same run"
    await finish(agent, again)
    assert not has_message(agent.err, words.leaving.rejoining, slept_s=0.0)
