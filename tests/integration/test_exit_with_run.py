"""`--exit-with-run`: a process that outlives its agent, and exits as the run does."""

import os
import signal

import pytest
from rdzv_protocol.exit_codes import ExitCode

from tests.support.cluster import PATIENT, Cluster
from tests.support.process_info import is_running, parent
from tests.support.programs import Program, start_agent
from tests.support.worker_hub import Worker, WorkerHub, of_node

FLAGS = ("--exit-with-run", "--nnodes", "1:3", *PATIENT)


@pytest.mark.parametrize(("code", "end"), [(0, "succeeded"), (3, "failed")])
async def test_a_killed_agents_process_exits_as_the_run_that_goes_on_without_it(
    cluster: Cluster, code: int, end: str
) -> None:
    first = await cluster.nodes("abc", *FLAGS, nproc=1)
    a, b, c = (cluster.agents[name] for name in "abc")
    lost = of_agent_of(first, a)
    os.kill(lost.agent_pid, signal.SIGKILL)
    await a.line(r"the agent was killed \(SIGKILL\); waiting for the end of run none")
    await lost.gone()
    second = await cluster.hub.group(2)
    b.signal(signal.SIGTERM)  # reaches its agent, which leaves
    assert await b.exit_code() == ExitCode.START_AGAIN
    (last,) = await cluster.hub.group(1)
    assert a.is_running and is_running(c.pid) and not of_node(second, 2)
    last.order_exit(code)
    assert [await each.exit_code() for each in (a, c)] == [int(code > 0)] * 2
    await a.line(f"run none has {end}")


async def test_a_run_that_dies_with_its_agent_is_reported_as_a_kill(hub: WorkerHub) -> None:
    alone = await start_agent("--exit-with-run", "--standalone", env=hub.env)
    (worker,) = await hub.group(1)
    os.kill(worker.agent_pid, signal.SIGKILL)
    assert await alone.exit_code() == 128 + signal.SIGKILL
    await worker.gone()


async def test_an_agent_never_outlives_its_supervisor(hub: WorkerHub) -> None:
    alone = await start_agent("--exit-with-run", "--standalone", env=hub.env)
    (worker,) = await hub.group(1)
    await alone.kill()
    await worker.gone()


def of_agent_of(workers: list[Worker], supervisor: Program) -> Worker:
    """The worker whose agent this process supervises."""
    (found,) = (worker for worker in workers if parent(worker.agent_pid) == supervisor.pid)
    return found
