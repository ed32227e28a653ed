"""Nodes that are lost suddenly, and nodes that are only silent."""

import signal

import pytest

from rdzv_server.words import silent_runs
from tests.support.cluster import Cluster
from tests.support.message_search import any_numbers, pattern
from tests.support.worker_hub import WorkerHub


async def test_a_killed_agent_is_noticed_while_its_poll_is_parked(hub: WorkerHub) -> None:
    async with Cluster(hub) as cluster:
        await cluster.serve()
        await cluster.nodes("ab", "--nnodes", "1:2", "--lease", "500", "--last-call-timeout", "2", nproc=1)
        await cluster.agents.pop("b").kill()
        (worker,) = await hub.group(1)
        assert (await cluster.restarts()) == {"node_lost": 1}
        await cluster.finish([worker])


async def test_agents_that_are_all_silent_for_longer_than_their_lease_lose_nothing(hub: WorkerHub) -> None:
    async with Cluster(hub) as cluster:
        await cluster.serve()
        workers = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "0", "--lease", "1", nproc=1)
        for agent in cluster.agents.values():
            agent.signal(signal.SIGSTOP)
        await cluster.server.line(silent_runs.not_heard(1))
        assert (await cluster.server.run())["unheard_s"] >= 1.0
        for agent in cluster.agents.values():
            agent.signal(signal.SIGCONT)
        await cluster.server.line(any_numbers(pattern(silent_runs.heard_again, has_others=True, after_s=1)))
        assert await cluster.restarts() == {}
        await cluster.finish(workers)


async def test_a_run_survives_the_failures_that_follow_an_agents_death_between_two_polls(cluster: Cluster) -> None:
    """Its connection closes after an answer, which is no sign. Others notice first that its workers are gone."""
    elastic = ("--nnodes", "1:2", "--lease", "4", "--last-call-timeout", "2", "--max-restarts", "0")
    lost, other = await cluster.nodes("ab", *elastic, nproc=1)
    names = {agent.pid: name for name, agent in cluster.agents.items()}
    agent = cluster.agents.pop(names[lost.agent_pid])
    await cluster.server.parks(2)
    agent.signal(signal.SIGSTOP)
    await cluster.server.parks(1)
    await agent.kill()
    await other.tell("complain RuntimeError: [gloo] Connection closed by peer")
    other.order_exit(1)
    (last,) = await cluster.hub.group(1)
    assert await cluster.restarts() == {"node_lost": 1}
    await cluster.finish([last])


@pytest.mark.parametrize("is_told", [True, False], ids=["told before", "told after"])
async def test_a_lost_node_is_not_charged_if_the_server_restarts_before_its_verdict(
    lasting: Cluster, is_told: bool
) -> None:
    """The failure of another node's worker is reported to the old server, which waits for the lost node, or the new."""
    elastic = ("--nnodes", "1:2", "--lease", "4", "--disconnect-grace", "500", "--last-call-timeout", "2")
    lost, other = await lasting.nodes("ab", *elastic, "--max-restarts", "0", nproc=1)
    names = {agent.pid: name for name, agent in lasting.agents.items()}
    await lasting.agents.pop(names[lost.agent_pid]).kill()
    if not is_told:
        await lasting.lose_server()
    other.order_exit(3)
    await other.gone()
    if is_told:
        await lasting.servers[0].line("exit code 3")
        await lasting.lose_server()
    await lasting.regain_server()
    (last,) = await lasting.hub.group(1)
    await lasting.finish([last])
