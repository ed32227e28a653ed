"""A worker that forks daemons, which leave its process group and its session: none outlives its round, or its agent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from node_agent.workers.orphans import MARK
from tests.support.cluster import Cluster
from tests.support.process_info import ended, guardians, is_running, process_ended, until
from tests.support.programs import Program
from tests.support.worker_hub import Worker

ONE_NODE = ("a", "--nnodes", "1", "--max-restarts", "1")


async def descendants(workers: list[Worker]) -> list[int]:
    """Processes that each worker has to start: a child in its group, one in a session of its own, and one whose parent
    is gone."""
    return [int(await worker.tell(how)) for worker in workers for how in ("fork", "daemon", "double-fork")]


async def guardian_of(agent: Program) -> int:
    await until(lambda: guardians(agent.pid))
    (guardian,) = guardians(agent.pid)
    return guardian


def temporary(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("node-agent-*"))


async def all_ended(*pids: int) -> None:
    for pid in pids:
        await ended(pid)


async def test_daemons_are_gone_when_the_next_round_begins_and_when_the_run_ends(cluster: Cluster) -> None:
    first = await cluster.nodes(*ONE_NODE)
    ends = [process_ended(pid) for pid in await descendants(first)]
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    assert all(end.is_set() for end in ends)
    pids = await descendants(second)
    await cluster.finish(second)
    await all_ended(*pids)


async def test_nothing_is_left_of_an_agent_that_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    """Workers and their descendants end, and the agent's temporary folder is removed."""
    await cluster.node("a", env={"TMPDIR": str(tmp_path)})
    workers = await cluster.hub.group(2)
    pids = await descendants(workers)
    assert temporary(tmp_path)
    await cluster.agents.pop("a").kill()
    await all_ended(*pids, *(worker.pid for worker in workers))
    await until(lambda: not temporary(tmp_path))


async def test_a_guardian_that_is_killed_is_replaced(cluster: Cluster) -> None:
    workers = await cluster.nodes(*ONE_NODE)
    agent = cluster.agents.pop("a")
    guardian = await guardian_of(agent)
    os.kill(guardian, signal.SIGKILL)
    await until(lambda: guardians(agent.pid) not in ([], [guardian]))
    pids = await descendants(workers)
    await agent.kill()
    await all_ended(*pids, *(worker.pid for worker in workers))


async def test_an_agent_that_ends_well_is_held_up_by_no_guardian(cluster: Cluster) -> None:
    workers = await cluster.nodes(*ONE_NODE)
    guardian = await guardian_of(cluster.agents["a"])
    os.kill(guardian, signal.SIGSTOP)
    await cluster.finish(workers)
    assert not is_running(guardian)


async def test_workers_die_with_an_agent_whose_guardian_dies_in_the_same_moment(cluster: Cluster) -> None:
    """Processes in sessions of their own are then nobody's: no one is left who could know of it."""
    workers = await cluster.nodes(*ONE_NODE)
    agent = cluster.agents.pop("a")
    guardian = await guardian_of(agent)
    agent.signal(signal.SIGSTOP)
    os.kill(guardian, signal.SIGKILL)
    await agent.kill()
    for worker in workers:
        await worker.gone()


async def test_what_does_not_carry_the_mark_is_left_alone(cluster: Cluster) -> None:
    """Neither the agent between two rounds nor the guardian ends a process without the mark."""
    first = await cluster.nodes(*ONE_NODE)
    await first[0].tell(f"unset {MARK}")
    unmarked = int(await first[0].tell("double-fork"))
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    orphan = int(await second[0].tell("double-fork"))
    agent = cluster.agents.pop("a")
    guardian = await guardian_of(agent)
    await agent.kill()
    await all_ended(orphan, guardian)
    assert is_running(unmarked)
    os.kill(unmarked, signal.SIGKILL)


def test_without_a_descriptor_left_nobody_is_found() -> None:
    lines = (
        "import resource",
        "from node_agent.workers.orphans import children",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        "assert children() == set()",
    )
    subprocess.run((sys.executable, "-c", "\n".join(lines)), check=True, timeout=60)
