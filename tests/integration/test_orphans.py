"""Workers that fork daemons, which leave the process group and session: none outlives its round or agent."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.kernel.processes.orphans_helper import MARK, Roster, read_roster
from tests.support import leaderless
from tests.support.cluster import Cluster
from tests.support.process_info import command_line, ended, guardians, is_running, process_ended, until
from tests.support.programs import AGENT, WORKER, Program
from tests.support.worker_hub import Worker, WorkerHub

ONE_NODE = ("a", "--nnodes", "1", "--max-restarts", "1")


async def descendants(workers: list[Worker]) -> list[int]:
    """Return processes that each worker must start: a child in its group, one in a separate session, and an orphan."""
    return [int(await worker.tell(how)) for worker in workers for how in ("fork", "daemon", "double-fork")]


async def without_main_thread(worker: Worker, how: str = "") -> list[int]:
    """Return processes that the worker must start, whose main threads have ended: one in its session, and a daemon."""
    program = f"{how} {shlex.join(leaderless.COMMAND)} >/dev/null 2>&1 & echo $!"
    pids = [int(await worker.tell(f"shell {session} {program}")) for session in ("", "setsid")]
    for pid in pids:
        await until(lambda pid=pid: leaderless.is_leaderless(pid))
    return pids


async def guardian_of(agent: Program) -> int:
    await until(lambda: guardians(agent.pid))
    (guardian,) = guardians(agent.pid)
    return guardian


def temporary(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("node-agent-*"))


async def all_ended(*pids: int) -> None:
    for pid in pids:
        await ended(pid)


async def test_daemons_have_ended_when_the_next_round_begins_and_when_the_run_ends(cluster: Cluster) -> None:
    first = await cluster.nodes(*ONE_NODE)
    ends = [process_ended(pid) for pid in await descendants(first)]
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    assert all(end.is_set() for end in ends)
    pids = await descendants(second)
    await cluster.finish(second)
    await all_ended(*pids)


@pytest.mark.parametrize("how", ["", "env -i"], ids=["marked", "without the mark"])
async def test_processes_whose_main_thread_has_ended_are_gone_when_the_next_round_begins_and_when_the_run_ends(
    cluster: Cluster, how: str
) -> None:
    first = await cluster.nodes(*ONE_NODE, nproc=1)
    ends = [process_ended(pid) for pid in await without_main_thread(first[0], how)]
    first[0].order_exit(3)
    second = await cluster.hub.group(1)
    assert all(end.is_set() for end in ends)
    pids = await without_main_thread(second[0], how)
    await cluster.finish(second)
    await all_ended(*pids)


async def test_processes_of_a_killed_agent_end_even_if_their_main_thread_has_ended(cluster: Cluster) -> None:
    """They carry the mark, or are in a worker's session, or the agent has seen them."""
    (worker,) = await cluster.nodes(*ONE_NODE, "--lease", "1", nproc=1)
    agent = cluster.agents.pop("a")
    guardian = await guardian_of(agent)
    marked = await without_main_thread(worker)
    in_session, unmarked = await without_main_thread(worker, "env -i")
    await until(lambda: roster(agent.pid).others.get(unmarked, -1) >= 0)
    await agent.kill()
    await all_ended(*marked, in_session, unmarked, worker.pid, guardian)


async def test_processes_of_a_killed_agent_are_ended(cluster: Cluster, tmp_path: Path) -> None:
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


async def test_a_guardian_does_not_need_the_working_folder_of_its_agent(hub: WorkerHub, tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    without_folder = ("sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", sys.executable, *AGENT)
    agent = await Program.start(*without_folder, "--standalone", WORKER, env=hub.env, cwd=gone)
    (worker,) = await hub.group(1)
    pids = [int(await worker.tell(how)) for how in ("fork", "daemon")]
    guardian = await guardian_of(agent)
    await agent.kill()
    await all_ended(*pids, worker.pid, guardian)
    assert not [line for line in agent.err if "getcwd" in line]


async def test_a_guardian_survives_a_signal_that_a_scheduler_sends_to_every_process(cluster: Cluster) -> None:
    workers = await cluster.nodes(*ONE_NODE, "--signals-to-handle", "SIGTERM,SIGUSR1")
    agent, pids = cluster.agents.pop("a"), await descendants(workers)
    guardian = await guardian_of(agent)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(guardian, signum)
    await agent.kill()
    await all_ended(*pids, *(worker.pid for worker in workers))


async def test_a_guardian_is_not_killed_by_the_name_of_its_agents_program(cluster: Cluster) -> None:
    """An operator's `pkill -9 -f node-agent` kills what has this text in its command line."""
    workers = await cluster.nodes(*ONE_NODE)
    pids = await descendants(workers)
    agent = cluster.agents.pop("a")
    guardian = await guardian_of(agent)
    assert not re.search("node[-_]agent", command_line(guardian))
    await agent.kill()
    await all_ended(*pids, guardian)


async def test_an_agent_that_ends_well_does_not_wait_for_its_guardian(cluster: Cluster) -> None:
    workers = await cluster.nodes(*ONE_NODE)
    guardian = await guardian_of(cluster.agents["a"])
    os.kill(guardian, signal.SIGSTOP)
    await cluster.finish(workers)
    assert not is_running(guardian)


async def test_workers_die_with_an_agent_whose_guardian_dies_in_the_same_moment(cluster: Cluster) -> None:
    """Processes in separate sessions are then left over: no process exists that knows them."""
    workers = await cluster.nodes(*ONE_NODE)
    agent = cluster.agents.pop("a")
    guardian = await guardian_of(agent)
    agent.signal(signal.SIGSTOP)
    os.kill(guardian, signal.SIGKILL)
    await agent.kill()
    for worker in workers:
        await worker.gone()


async def test_a_daemon_with_children_is_gone_with_all_of_them_when_the_next_round_begins(cluster: Cluster) -> None:
    (worker,) = await cluster.nodes(*ONE_NODE, nproc=1)
    tree = "setsid sh -c 'setsid sleep 1000 >/dev/null 2>&1 & echo $$ $!; exec >/dev/null; wait' 2>/dev/null &"
    ends = [process_ended(int(pid)) for pid in (await worker.tell(f"shell {tree}")).split()]
    assert len(ends) == 2
    worker.order_exit(3)
    second = await cluster.hub.group(1)
    assert all(end.is_set() for end in ends)
    await cluster.finish(second)


async def without_mark(worker: Worker) -> list[int]:
    """Return processes with an empty environment that the worker must start, in its session and in separate ones."""
    await worker.tell(f"unset {MARK}")
    commands = [f"shell env -i {how} sleep 1000 >/dev/null 2>&1 & echo $!" for how in ("", "setsid")]
    return [int(await worker.tell(command)) for command in ("daemon", "double-fork", *commands)]


async def test_processes_without_the_mark_are_gone_when_the_next_round_begins_and_when_the_run_ends(
    cluster: Cluster,
) -> None:
    first = await cluster.nodes(*ONE_NODE, nproc=1)
    ends = [process_ended(pid) for pid in await without_mark(first[0])]
    first[0].order_exit(3)
    second = await cluster.hub.group(1)
    assert all(end.is_set() for end in ends)
    pids = await without_mark(second[0])
    await cluster.finish(second)
    await all_ended(*pids)


async def test_unmarked_processes_of_a_killed_agent_are_ended(cluster: Cluster) -> None:
    """Processes in a worker's session end at once, and others if their agent has seen them."""
    (worker,) = await cluster.nodes(*ONE_NODE, "--lease", "1", nproc=1)
    agent = cluster.agents.pop("a")
    guardian = await guardian_of(agent)
    pids = await without_mark(worker)
    await until(lambda: set(pids) <= roster(agent.pid).others.keys())
    in_session = int(await worker.tell("shell env -i sleep 1000 >/dev/null 2>&1 & echo $!"))
    await agent.kill()
    await all_ended(*pids, in_session, worker.pid, guardian)


@pytest.mark.parametrize("flags", [(), ("--preload", "json")], ids=["cold", "warm"])
async def test_unmarked_processes_that_a_killed_agent_has_not_seen_are_ended(
    cluster: Cluster, flags: tuple[str, ...]
) -> None:
    """The processes have no environment and no parent, and are in sessions of their own."""
    (worker,) = await cluster.nodes(*ONE_NODE, "--lease", "500", *flags, nproc=1)
    agent = cluster.agents.pop("a")
    await guardian_of(agent)
    pids = await without_mark(worker)
    assert not roster(agent.pid).others
    await agent.kill()
    await all_ended(*pids)


def roster(agent: int) -> Roster:
    """Return the workers' descendants that the agent has seen."""
    for name in os.listdir(f"/proc/{agent}/fd"):
        path = f"/proc/{agent}/fd/{name}"
        if "node-agent-roster" in os.readlink(path):
            with open(path, "rb") as file:
                return read_roster(file.fileno())
    raise AssertionError("there is no roster")


@pytest.fixture
def daemon() -> Iterator[int]:
    """A process without mark or parent, unrelated to any agent."""
    command = "env -i setsid sleep 1000 >/dev/null 2>&1 & echo $!"
    pid = int(subprocess.check_output(("sh", "-c", command)))
    yield pid
    os.kill(pid, signal.SIGKILL)


async def test_other_programs_are_left_alone(cluster: Cluster, daemon: int) -> None:
    """Neither the agent between two rounds nor the guardian ends them."""
    first = await cluster.nodes(*ONE_NODE, nproc=1)
    first[0].order_exit(3)
    await cluster.hub.group(1)
    agent = cluster.agents.pop("a")
    guardian = await guardian_of(agent)
    await agent.kill()
    await all_ended(guardian)
    assert is_running(daemon)


def test_without_a_descriptor_left_no_process_is_found() -> None:
    lines = (
        "import resource",
        "from node_agent.kernel.processes.orphans import children",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        "assert children() == set()",
    )
    subprocess.run((sys.executable, "-c", "\n".join(lines)), check=True, timeout=60)
