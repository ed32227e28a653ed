"""A worker that forks daemons, which leave its process group and its session: none outlives its round, or its agent."""

import os
import signal

from tests.support.cluster import Cluster
from tests.support.process_info import ended, guardians, is_running, process_ended, until
from tests.support.programs import Program
from tests.support.worker_hub import Worker


async def descendants(workers: list[Worker]) -> list[int]:
    """What each worker has been told to start: a child in its group, one in a session of its own, and one whose parent
    is gone."""
    return [int(await worker.tell(how)) for worker in workers for how in ("fork", "daemon", "double-fork")]


async def killed(agent: Program) -> None:
    agent.signal(signal.SIGKILL)
    assert await agent.exit_code() == -signal.SIGKILL


async def test_daemons_end_when_the_run_does(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1")
    pids = await descendants(workers)
    await cluster.finish(workers)
    for pid in pids:
        await ended(pid)


async def test_daemons_of_a_round_are_gone_when_the_next_one_begins(cluster: Cluster) -> None:
    first = await cluster.nodes("a", "--nnodes", "1", "--max-restarts", "1")
    ends = [process_ended(pid) for pid in await descendants(first)]
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    assert all(end.is_set() for end in ends)
    await cluster.finish(second)


async def test_workers_and_their_descendants_go_with_an_agent_that_is_killed(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1")
    pids = await descendants(workers)
    await killed(cluster.agents.pop("a"))
    for pid in [*pids, *(worker.pid for worker in workers)]:
        await ended(pid)


async def test_a_guardian_that_is_killed_is_replaced(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1")
    agent = cluster.agents.pop("a")
    await until(lambda: guardians(agent.pid))
    (guardian,) = guardians(agent.pid)
    os.kill(guardian, signal.SIGKILL)
    await until(lambda: guardians(agent.pid) not in ([], [guardian]))
    pids = await descendants(workers)
    await killed(agent)
    for pid in [*pids, *(worker.pid for worker in workers)]:
        await ended(pid)


async def test_an_agent_that_ends_well_is_held_up_by_no_guardian(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1")
    agent = cluster.agents["a"]
    await until(lambda: guardians(agent.pid))
    (guardian,) = guardians(agent.pid)
    os.kill(guardian, signal.SIGSTOP)
    await cluster.finish(workers)
    assert not is_running(guardian)


async def test_workers_die_with_an_agent_whose_guardian_dies_in_the_same_moment(cluster: Cluster) -> None:
    """What they have started in sessions of their own is then nobody's: no one is left who could know of it."""
    workers = await cluster.nodes("a", "--nnodes", "1")
    agent = cluster.agents.pop("a")
    await until(lambda: guardians(agent.pid))
    agent.signal(signal.SIGSTOP)
    for pid in guardians(agent.pid):
        os.kill(pid, signal.SIGKILL)
    await killed(agent)
    for worker in workers:
        await worker.gone()
