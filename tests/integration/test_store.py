"""The workers' store: beside group rank 0's agent, fresh each round, and there for as long as anybody needs it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.process_info import children, process_ended, state, until
from tests.support.programs import PATIENCE_S, STORE_WORKER, WORKER, Program
from tests.support.worker_hub import Worker

pytestmark = pytest.mark.torch
PATIENT = ("--last-call-timeout", "500", "--lease", "500", "--join-timeout", "500")


@pytest.fixture
def stores(cluster: Cluster) -> Cluster:
    pytest.importorskip("torch")
    cluster.script = STORE_WORKER
    return cluster


def helpers(agent: Program) -> list[int]:
    """The agent's children that host a store."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"store_helper" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def host(cluster: Cluster) -> Program:
    """The agent beside which the store is."""
    (agent,) = (agent for agent in cluster.agents.values() if helpers(agent))
    return agent


async def leave_in_turn(workers: list[Worker]) -> None:
    for worker in workers:
        worker.order_exit(0)
        await worker.gone()


async def test_the_store_outlives_the_worker_of_rank_0(stores: Cluster) -> None:
    first, second = await stores.nodes("a", "--nnodes", "1")
    assert first.env["TORCHELASTIC_USE_AGENT_STORE"] == second.env["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    await first.tell("set key 1")
    await leave_in_turn([first])
    assert await second.tell("get key") == "1"
    await second.tell("set late 2")
    assert await second.tell("get late") == "2"
    await stores.finish([second])


async def test_the_store_outlives_every_worker_of_its_node(stores: Cluster) -> None:
    workers = await stores.nodes("ab", "--nnodes", "2", *PATIENT)
    await workers[0].tell("set key 1")
    await leave_in_turn(workers[:2])
    assert await workers[3].tell("get key") == "1"
    await stores.finish(workers[2:])


async def test_each_round_has_a_fresh_store_from_one_helper(stores: Cluster) -> None:
    first = await stores.nodes("a", "--nnodes", "1", "--max-restarts", "1")
    agent = host(stores)
    before = helpers(agent)
    await first[0].tell("set key 1")
    os.kill(first[1].pid, signal.SIGKILL)
    second = await stores.hub.group(2)
    assert await second[0].tell("has key") == "False"
    assert helpers(agent) == before, "it has torch already"
    await stores.finish(second)


async def test_a_node_that_becomes_group_rank_0_hosts_the_store(stores: Cluster) -> None:
    workers = await stores.nodes("ab", "--nnodes", "1:2", *PATIENT)
    name = next(name for name, agent in stores.agents.items() if helpers(agent))
    stores.agents.pop(name).signal(signal.SIGKILL)
    survivors = await stores.hub.group(2)
    assert helpers(host(stores))
    await survivors[1].tell("set key 1")
    assert await survivors[0].tell("get key") == "1"
    for worker in workers:
        await worker.gone()
    await stores.finish(survivors)


async def test_a_store_that_breaks_restarts_the_round_and_says_why(stores: Cluster) -> None:
    await stores.nodes("a", "--nnodes", "1", "--max-restarts", "1")
    (helper,) = helpers(host(stores))
    os.kill(helper, signal.SIGKILL)
    second = await stores.hub.group(2)
    await second[0].tell("set key 1")
    assert await second[1].tell("get key") == "1"
    agent = stores.agents["a"]
    assert await agent.line(rf"the workers' store \(process {helper}\) ended by itself")
    await stores.finish(second)


async def test_a_store_ends_with_its_agent(stores: Cluster) -> None:
    workers = await stores.nodes("a", "--nnodes", "1")
    agent = stores.agents.pop("a")
    (helper,) = helpers(agent)
    gone = process_ended(helper)
    agent.signal(signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        await gone.wait()
    for worker in workers:
        await worker.gone()
    await agent.exit_code()


async def test_rank_0_hosts_the_store_itself_when_the_user_does_not_share_it(stores: Cluster) -> None:
    await stores.node("a", "--nnodes", "1", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    workers = await stores.hub.group(2)
    assert workers[0].env["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    await workers[0].tell("set key 1")
    assert await workers[1].tell("get key") == "1"
    assert helpers(stores.agents["a"]) == []
    await stores.finish(workers)


async def test_an_agent_leaves_when_its_last_worker_and_the_helper_end_in_the_same_instant(stores: Cluster) -> None:
    (worker,) = await stores.nodes("a", "--nnodes", "1", nproc=1)
    await worker.tell("ignore SIGTERM")
    agent = stores.agents.pop("a")
    agent.signal(signal.SIGTERM)
    await agent.line("SIGTERM: leaving the run")
    agent.signal(signal.SIGSTOP)  # so that it hears of both ends at once
    for pid in [worker.pid, *helpers(agent)]:
        os.kill(pid, signal.SIGKILL)
        await until(lambda pid=pid: state(pid) == "Z")
    agent.signal(signal.SIGCONT)
    assert await agent.exit_code() == 1


async def test_a_scheduler_may_send_sigterm_to_every_process_of_a_node(stores: Cluster) -> None:
    workers = await stores.nodes("ab", "--nnodes", "1:2", *PATIENT)
    name = next(name for name, agent in stores.agents.items() if helpers(agent))
    agent = stores.agents.pop(name)
    rest = [worker for worker in workers if worker.pid not in children(agent.pid)]
    for pid in [agent.pid, *children(agent.pid)]:
        os.kill(pid, signal.SIGTERM)
    assert await agent.exit_code() == 1
    assert not [line for line in agent.err if "store" in line]
    for worker in rest:
        await worker.gone()
    await stores.finish(await stores.hub.group(2))
    assert [entry["cause"] for entry in (await stores.server.run())["history"] if entry["charged"]] == []


async def test_a_store_follows_a_round_whose_rank_0_succeeded_without_it(stores: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "torch_at_last.py"
    script.write_text(
        f"import os, runpy, sys\nsys.path.insert(0, {str(Path(WORKER).parent)!r})\n"
        "name = 'worker' if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 'store_worker'\n"
        "runpy.run_module(name, run_name='__main__')\n"
    )
    stores.script = str(script)
    workers = await stores.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    await leave_in_turn(workers[:2])
    workers[3].order_exit(5)
    second = await stores.hub.group(4)
    await second[0].tell("set key 1")
    assert await second[3].tell("get key") == "1"
    assert len(helpers(host(stores))) == 1
    await stores.finish(second)
