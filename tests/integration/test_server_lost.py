"""An agent whose server is gone: its workers run on, it says so once, and gives up only if it was told to."""

import asyncio
import signal
import socket
import time
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.process_info import is_running
from tests.support.programs import PATIENCE_S, Program, start_agent
from tests.support.worker_hub import WorkerHub

TRIES = 5


async def lose_server(cluster: Cluster) -> None:
    cluster.server.signal(signal.SIGKILL)
    await cluster.server.exit_code()


async def turned_away(port: int, times: int) -> None:
    """Return when agents have come to this port so often, where nobody answers."""
    enough, came = asyncio.Event(), 0

    async def turn_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        writer.close()
        if came >= times:
            enough.set()

    async with await asyncio.start_server(turn_away, "127.0.0.1", port), asyncio.timeout(PATIENCE_S):
        await enough.wait()


def about_the_server(agent: Program) -> list[str]:
    return [line.removeprefix("node-agent: ").partition(" at ")[0] for line in agent.err if "rdzv-server" in line]


async def test_it_is_said_once_however_often_the_agent_tries(hub: WorkerHub, tmp_path: Path) -> None:
    cluster, store = Cluster(hub), ("--store", f"sqlite:{tmp_path / 'state.db'}")
    await cluster.serve(*store)
    try:
        workers = await cluster.nodes("a", "--nnodes", "1")
        await lose_server(cluster)
        await cluster.agents["a"].line("lost rdzv-server at .*; workers keep running, trying again")
        await turned_away(cluster.server.port, TRIES)
        assert all(is_running(worker.pid) for worker in workers)
        await cluster.serve(*store, port=cluster.server.port)
        await cluster.agents["a"].line("reached rdzv-server at .* after")
        await cluster.finish(workers)
        said = about_the_server(cluster.agents["a"])
        assert (said[0], said[-1]) == ("lost rdzv-server", "reached rdzv-server")
        assert len(said) <= 4 and set(said[1:-1]) <= {"still no rdzv-server"}, "each cause is said once"
        run = await cluster.server.run()
        assert (run["phase"], run["round"], run["departures"]) == ("succeeded", 1, [])
    finally:
        await cluster.end()


async def test_an_agent_that_is_to_wait_no_longer_stops_its_workers_and_exits(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", "--server-lost-timeout", "1")
    await lose_server(cluster)
    agent = cluster.agents.pop("a")
    await agent.line("lost rdzv-server at .*; workers keep running, trying again for 1 s")
    assert all(is_running(worker.pid) for worker in workers)
    assert await agent.exit_code() == 1
    assert not any(is_running(worker.pid) for worker in workers)
    assert any("no rdzv-server at" in line and "within 1 s" in line for line in agent.err)


async def test_an_agent_whose_workers_finish_without_the_server_says_so_and_waits_for_a_while(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", "--connect-timeout", "3")
    await lose_server(cluster)
    agent = cluster.agents.pop("a")
    await agent.line("lost rdzv-server at .*; workers keep running, trying again$")
    for worker in workers:
        worker.order_exit(0)
    await agent.line("all workers exited 0, but rdzv-server at .* is out of reach: waiting for it for 3 s")
    assert await agent.exit_code() == 0
    assert any("how the run ended is not known" in line for line in agent.err)


async def test_a_signal_then_exits_by_the_workers_result(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1")
    await lose_server(cluster)
    agent = cluster.agents.pop("a")
    for worker in workers:
        worker.order_exit(0)
    await agent.line("all workers exited 0, but rdzv-server at .* is out of reach")
    agent.signal(signal.SIGTERM)
    assert await agent.exit_code() == 0


async def test_a_port_that_accepts_and_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = f"127.0.0.1:{mute.getsockname()[1]}"
        began = time.monotonic()
        agent = await start_agent("--endpoint", endpoint, "--connect-timeout", "4")
        await agent.line(f"waiting for rdzv-server at {endpoint} to answer")
        assert await agent.exit_code() == 2
        assert 4.0 <= time.monotonic() - began < 10.0, "not after a request's own limit of 15 s"
    assert agent.err[-1].startswith(f"node-agent: error: no rdzv-server at {endpoint} within 4 s (HTTP: no answer): ")
