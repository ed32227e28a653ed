"""An agent whose server is gone: its workers run on, it says so once, and gives up only if it was told to."""

import asyncio
from pathlib import Path

from rdzv_protocol.exit_codes import ExitCode

from tests.support.cluster import Cluster
from tests.support.process_info import is_running
from tests.support.programs import PATIENCE_S
from tests.support.worker_hub import WorkerHub, all_run

TRIES = 3


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


async def test_it_is_said_once_however_often_the_agent_tries(hub: WorkerHub, tmp_path: Path) -> None:
    async with Cluster(hub, "--store", f"sqlite:{tmp_path / 'state.db'}") as cluster:
        await cluster.serve()
        workers = await cluster.nodes("a", "--nnodes", "1")
        agent = cluster.agents["a"]
        await cluster.server.kill()
        await agent.line("lost rdzv-server at .*; workers keep running, trying again")
        await turned_away(cluster.server.port, TRIES)
        assert all_run(workers)
        await cluster.serve(port=cluster.server.port)
        await agent.line("reached rdzv-server at .* after")
        await cluster.finish(workers)
        told = [line.removeprefix("node-agent: ").partition(" at ")[0] for line in agent.said if "rdzv-server" in line]
        assert (told[0], told[-1]) == ("lost rdzv-server", "reached rdzv-server")
        assert len(told) <= 4 and set(told[1:-1]) <= {"still no rdzv-server"}, "each cause is said once"
        run = await cluster.server.run()
        assert (run["phase"], run["round"], run["departures"]) == ("succeeded", 1, [])


async def test_an_agent_that_is_to_wait_no_longer_stops_its_workers_and_exits(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", "--server-lost-timeout", "1")
    await cluster.server.kill()
    agent = cluster.agents.pop("a")
    await agent.line("lost rdzv-server at .*; workers keep running, trying again for 1 s")
    assert all_run(workers)
    assert await agent.exit_code() == ExitCode.START_AGAIN
    assert not any(is_running(worker.pid) for worker in workers)
    assert any("no rdzv-server at" in line and "within 1 s" in line for line in agent.err)
