"""Runs behind real proxies: what each setting of nginx and haproxy costs."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import ClientSession
from rdzv_protocol import paths
from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from rdzv_server.words import losses
from tests.support.cluster import ALL_COME, Cluster
from tests.support.message_search import beginning, pattern
from tests.support.outages import LOST, REACHED
from tests.support.process_info import parent
from tests.support.programs import PATIENCE_S, Program
from tests.support.proxies import Kind, Proxy, needs_proxies, of_page
from tests.support.worker_hub import Worker, WorkerHub, all_run

pytestmark = needs_proxies

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
EXCLUDING = ("--exclude-after", "3/1h")
SERVER_CLOSE, ABORT_ON_CLOSE = "  option http-server-close", "  option abortonclose"
SHORT = {"nginx": "proxy_read_timeout 2s;", "haproxy": "  timeout server 2s"}
"""Settings with which a poll that the server holds ends after 2 s."""
REPEATING = "  timeout server 2s\n  option abortonclose\n  retries 2\n  retry-on all-retryable-errors"
IDLE_CUTS = "  mode tcp\n  timeout client 3s\n  timeout server 3s"
"""Settings that end each connection without traffic for 3 s."""
STOPS_S = 6.0
HEALTHY_S = 7.0
"""Seconds for which a run is healthy there: three polls end."""
AWAY_S = 3.0
LEASE_S = 4.0
BY_CONNECTION, BY_LEASE = "its connection closed", beginning(losses.not_heard)


async def behind(
    cluster: Cluster, proxy: Proxy, *flags: str, names: str = "ab"
) -> tuple[dict[str, Program], list[Worker]]:
    given = ("--endpoint", proxy.endpoint, "--nproc", "1", *flags)
    agents = {name: await cluster.agent(name, *given, "--node-id", name) for name in names}
    return agents, await cluster.hub.group(len(names))


def node_of(worker: Worker, agents: dict[str, Program]) -> str:
    return next(name for name, agent in agents.items() if agent.pid == worker.agent_pid)


def restart_counts(workers: Sequence[Worker]) -> set[str]:
    return {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers}


@pytest.mark.parametrize(("kind", "settings"), [("nginx", ""), ("haproxy", SERVER_CLOSE)], ids=["nginx", "haproxy"])
async def test_each_failure_is_charged_without_a_lost_node_behind_a_proxy_that_closes_after_each_answer(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int, kind: Kind, settings: str
) -> None:
    async with Cluster(hub, *EXCLUDING) as cluster:
        await cluster.serve()
        proxy = await Proxy.listen(kind, tmp_path, unused_tcp_port, cluster.endpoint, settings)
        agents, workers = await behind(cluster, proxy, "--nnodes", "2", "--max-restarts", "2", *ALL_COME)
        bad = node_of(workers[0], agents)
        for restarts in range(3):
            assert restart_counts(workers) == {str(restarts)}
            workers[0].order_exit(3)
            workers = await hub.group(2) if restarts < 2 else []
        assert [await agent.exit_code() for agent in agents.values()] == [ExitCode.FAILED] * 2
        assert await cluster.restarts() == {"worker_failure": 2}
        assert {cordon["node_id"] for cordon in (await cluster.server.status())["server"]["cordons"]} <= {bad}


async def test_a_node_whose_idle_connection_is_cut_while_it_stops_its_workers_is_not_lost(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int
) -> None:
    """An agent that stops its workers has no parked poll, and asks only now and then."""
    async with Cluster(hub, *EXCLUDING) as cluster:
        await cluster.serve()
        proxy = await Proxy.listen("haproxy", tmp_path, unused_tcp_port, cluster.endpoint, IDLE_CUTS)
        patient = ("--shutdown-timeout", str(STOPS_S), "--lease", "30")
        agents, workers = await behind(cluster, proxy, "--nnodes", "2", "--max-restarts", "1", *ALL_COME, *patient)
        bad, stubborn = workers
        await stubborn.tell("ignore SIGTERM")
        bad.order_exit(3)
        workers = await hub.group(2)
        run = await cluster.server.run()
        assert (run["departures"], await cluster.restarts()) == ([], {"worker_failure": 1})
        workers[0].order_exit(3)
        assert [await agent.exit_code() for agent in agents.values()] == [ExitCode.FAILED] * 2


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
async def test_workers_survive_the_restart_of_a_proxy(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int, kind: Kind
) -> None:
    """The proxy closes all connections at once, and is away for longer than the grace of a closed connection."""
    async with Cluster(hub, "--exclude-after", "1/1h") as cluster:
        await cluster.serve()
        proxy = await Proxy.listen(kind, tmp_path, unused_tcp_port, cluster.endpoint)
        agents, workers = await behind(cluster, proxy, "--nnodes", "1:2", "--lease", "500", *ALL_COME)
        await proxy.kill()
        for agent in agents.values():
            await agent.line(LOST)
        await asyncio.sleep(AWAY_S)
        await Proxy.listen(kind, tmp_path, unused_tcp_port, cluster.endpoint)
        for agent in agents.values():
            await agent.line(REACHED)
        assert all_run(workers) and await cluster.restarts() == {}
        assert (await cluster.server.status())["server"]["cordons"] == []
        await cluster.finish(workers)


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
@pytest.mark.parametrize("path", [f"{paths.WATCH}?run_id=none", paths.events_of("none")], ids=["watch", "events"])
async def test_a_stream_passes_a_proxy_as_it_comes(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int, kind: Kind, path: str
) -> None:
    """nginx holds an answer back until it has some kilobytes of it, unless the server asks it not to."""
    async with Cluster(hub) as cluster, ClientSession(headers={"Accept": "text/event-stream"}) as session:
        await cluster.serve()
        proxy = await Proxy.listen(kind, tmp_path, unused_tcp_port, cluster.endpoint)
        _, workers = await behind(cluster, proxy, "--nnodes", "1", names="a")
        async with asyncio.timeout(PATIENCE_S), session.get(f"http://{proxy.endpoint}{path}") as answer:
            while not (line := await answer.content.readline()).startswith(b"data: "):
                assert line
        await cluster.finish(workers)


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
async def test_the_supervisor_of_a_killed_agent_hears_the_runs_end_through_a_proxy(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int, kind: Kind
) -> None:
    async with Cluster(hub) as cluster:
        await cluster.serve()
        proxy = await Proxy.listen(kind, tmp_path, unused_tcp_port, cluster.endpoint)
        agents, workers = await behind(cluster, proxy, "--nnodes", "1:2", "--exit-with-run", *ALL_COME)
        lost = next(worker for worker in workers if parent(worker.agent_pid) == agents["a"].pid)
        os.kill(lost.agent_pid, signal.SIGKILL)
        await cluster.finish(await hub.group(1))
        assert await agents["a"].exit_code() == 0


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
async def test_an_idle_timeout_shorter_than_a_poll_causes_one_warning_without_a_restart(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int, kind: Kind
) -> None:
    async with Cluster(hub) as cluster:
        await cluster.serve()
        proxy = await Proxy.listen(kind, tmp_path, unused_tcp_port, cluster.endpoint, SHORT[kind])
        agents, workers = await behind(cluster, proxy, "--nnodes", "2", *ALL_COME)
        await asyncio.sleep(HEALTHY_S)
        for agent in agents.values():
            await agent.line(pattern(words.connection.poll_cut))
        assert all_run(workers) and await cluster.restarts() == {}
        await cluster.finish(workers)
        for agent in agents.values():
            assert sum("proxy" in line for line in agent.err) == 1 and not any("lost" in line for line in agent.err)


async def missed(cluster: Cluster, proxy: Proxy) -> str:
    """Begin a run of two agents behind the proxy, and kill one whose poll is parked. Return why it counts as lost."""
    given = ("--nnodes", "1:2", "--lease", f"{LEASE_S:g}", "--last-call-timeout", "2")
    agents, _ = await behind(cluster, proxy, *given)
    await cluster.server.parks(2)
    killed_at = time.monotonic()
    await cluster.agents.pop("b").kill()
    workers = await cluster.hub.group(1)
    print(f"missed after {time.monotonic() - killed_at:.2f} s")
    assert await cluster.restarts() == {"node_lost": 1}
    await cluster.finish(workers)
    return (await agents["a"].line("node b lost: (.*)"))[1]


@pytest.mark.parametrize(
    ("kind", "settings", "is_soon"),
    [
        ("nginx", "", True),
        ("nginx", "proxy_ignore_client_abort on;", False),
        ("haproxy", ABORT_ON_CLOSE, True),
        ("haproxy", f"{ABORT_ON_CLOSE}\n{SERVER_CLOSE}", True),
        ("haproxy", "", False),
    ],
)
async def test_a_killed_agent_is_noticed_by_its_forwarded_close_or_by_its_lease(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int, kind: Kind, settings: str, is_soon: bool
) -> None:
    async with Cluster(hub) as cluster:
        await cluster.serve()
        proxy = await Proxy.listen(kind, tmp_path, unused_tcp_port, cluster.endpoint, settings)
        assert (await missed(cluster, proxy)).startswith(BY_CONNECTION if is_soon else BY_LEASE)


@pytest.mark.parametrize(
    ("page", "kind"), [("high-availability", "nginx"), ("high-availability", "haproxy"), ("secure-a-server", "haproxy")]
)
async def test_with_the_documented_proxy_configuration_a_killed_agent_is_noticed_at_once_and_streams_are_not_buffered(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int, page: str, kind: Kind
) -> None:
    text = (DOCS / f"{page}.md").read_text()
    async with Cluster(hub) as cluster:
        await cluster.serve()
        shown = of_page(text, kind, unused_tcp_port, cluster.endpoint)
        proxy = await Proxy.configured(kind, tmp_path, unused_tcp_port, shown)
        assert (await missed(cluster, proxy)).startswith(BY_CONNECTION)
        assert await first_event(unused_tcp_port)


async def first_event(port: int) -> bytes:
    """Return the first event of the run's stream, which stays open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/runs/none/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        while not (line := await reader.readline()).startswith(b"data: "):
            assert line, "the stream has ended"
    writer.close()
    return line


async def test_a_proxy_that_repeats_unanswered_requests_does_not_cause_more_restarts(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int
) -> None:
    async with Cluster(hub, *EXCLUDING) as cluster:
        await cluster.serve()
        proxy = await Proxy.listen("haproxy", tmp_path, unused_tcp_port, cluster.endpoint, REPEATING)
        agents, workers = await behind(cluster, proxy, "--nnodes", "2", "--max-restarts", "1", *ALL_COME)
        await asyncio.sleep(HEALTHY_S)
        assert all_run(workers) and await cluster.restarts() == {}
        workers[0].order_exit(3)
        workers = await hub.group(2)
        assert await cluster.restarts() == {"worker_failure": 1}
        await cluster.finish(workers)
        assert not any("lost" in line for agent in agents.values() for line in agent.err)
