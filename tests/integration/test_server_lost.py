"""An agent whose server is gone: its workers continue, it logs this once, and exits only if it was told to."""

import asyncio
from math import inf
from pathlib import Path

from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from tests.support.cluster import Cluster
from tests.support.message_search import has_message, pattern
from tests.support.outages import LOST, REACHED
from tests.support.process_info import is_running
from tests.support.programs import PATIENCE_S
from tests.support.worker_hub import WorkerHub, all_run

TRIES = 3


async def turned_away(port: int, times: int) -> None:
    """Return when agents have tried this port, where no server answers, `times` times."""
    enough, came = asyncio.Event(), 0

    async def turn_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        writer.close()
        if came >= times:
            enough.set()

    async with await asyncio.start_server(turn_away, "127.0.0.1", port), asyncio.timeout(PATIENCE_S):
        await enough.wait()


async def test_a_lost_server_is_logged_once_however_often_the_agent_retries(hub: WorkerHub, tmp_path: Path) -> None:
    async with Cluster(hub, "--store", f"sqlite:{tmp_path / 'state.db'}") as cluster:
        await cluster.serve()
        workers = await cluster.nodes("a", "--nnodes", "1")
        agent = cluster.agents["a"]
        await cluster.server.kill()
        await agent.line(LOST)
        await turned_away(cluster.server.port, TRIES)
        assert all_run(workers)
        await cluster.serve(port=cluster.server.port)
        await agent.line(REACHED)
        await cluster.finish(workers)
        said = [line for line in agent.said if "rdzv-server" in line]
        assert has_message(said[0], words.connection.server_lost, has_workers=True, longest_s=inf)
        assert has_message(said[-1], words.connection.server_reached)
        assert all(has_message(line, words.connection.still_no_server) for line in said[1:-1])
        assert len(said) <= 4, "the agent logs each cause once"
        run = await cluster.server.run()
        assert (run["phase"], run["round"], run["departures"]) == ("succeeded", 1, [])


async def test_an_agent_that_is_to_wait_no_longer_stops_its_workers_and_exits(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", "--server-lost-timeout", "1")
    await cluster.server.kill()
    agent = cluster.agents.pop("a")
    await agent.line(pattern(words.connection.server_lost, has_workers=True, longest_s=1.0))
    assert all_run(workers)
    assert await agent.exit_code() == ExitCode.START_AGAIN
    assert not any(is_running(worker.pid) for worker in workers)
    assert has_message(agent.err, words.connection.server_given_up, within_s=1.0, stage="connect")


async def test_an_agent_does_not_repeat_a_finished_run_because_its_server_has_lost_its_state(hub: WorkerHub) -> None:
    async with Cluster(hub, "--store", "memory") as cluster:
        await cluster.serve()
        (worker,) = await cluster.nodes("a", "--nnodes", "1", nproc=1)
        await cluster.lose_server()
        worker.order_exit(0)
        await worker.gone()
        await cluster.regain_server()
        assert await cluster.agents.pop("a").exit_code() == 0
