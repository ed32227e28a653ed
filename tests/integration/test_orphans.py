"""A worker that forks daemons, which leave its process group and its session: none outlives its round, or its agent."""

import asyncio
import signal

from tests.integration.conftest import Cluster
from tests.integration.desk import process_ended
from tests.integration.programs import PATIENCE_S


async def gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await process_ended(pid).wait()


async def test_daemons_end_when_the_run_does(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1")
    daemons = [int(await worker.tell("daemon")) for worker in workers]
    await cluster.finish(workers)
    for pid in daemons:
        await gone(pid)


async def test_daemons_of_a_round_are_gone_when_the_next_one_begins(cluster: Cluster) -> None:
    first = await cluster.nodes("a", "--nnodes", "1", "--max-restarts", "1")
    daemons = [process_ended(int(await worker.tell("daemon"))) for worker in first]
    first[0].order_exit(3)
    second = await cluster.desk.group(2)
    assert all(ended.is_set() for ended in daemons)
    await cluster.finish(second)


async def test_daemons_go_with_an_agent_that_is_killed(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1")
    daemons = [int(await worker.tell("daemon")) for worker in workers]
    agent = cluster.agents.pop("a")
    agent.signal(signal.SIGKILL)
    for pid in [*daemons, *(worker.pid for worker in workers)]:
        await gone(pid)
    await agent.exit_code()
