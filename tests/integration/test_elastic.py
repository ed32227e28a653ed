"""Every way in which a run changes its membership, with real processes.

The timeouts of these runs are far longer than the tests wait, so timers do not cause events.
"""

import asyncio
import os
import signal
import time
from contextlib import suppress

import pytest
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.settings import LAST_CALL_QUIET_S

from node_agent import words
from rdzv_server.words import attempts, completion, failures, losses
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import pattern
from tests.support.programs import PATIENCE_S, TORCH_WORKER
from tests.support.worker_hub import Worker, of_agent, of_node, restart_count


async def test_a_run_below_its_maximum_begins_soon_after_the_last_node_has_come(cluster: Cluster) -> None:
    """The run has no `--last-call-timeout`, and no node that would end the wait."""
    began_at = time.monotonic()
    workers = await cluster.nodes("ab", "--nnodes", "2:4", "--lease", "500")
    assert time.monotonic() - began_at >= LAST_CALL_QUIET_S
    await cluster.agents["a"].line(f"joined of 2 to 4; {completion.awaits_more(4)}; starts in ")
    assert {worker.env["GROUP_WORLD_SIZE"] for worker in workers} == {"2"}
    await cluster.finish(workers)
    assert (await cluster.server.run())["round"] == 1


def master_port(workers: list[Worker]) -> str:
    return workers[0].env["MASTER_PORT"]


async def test_a_killed_worker_restarts_the_whole_run_once(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "3", *PATIENT)
    first[3].kill()
    second = await cluster.hub.group(4)
    assert (restart_count(first), restart_count(second)) == (0, 1)
    assert master_port(first) != master_port(second)
    await cluster.finish(second)
    run = await cluster.server.run()
    assert run["phase"] == "succeeded"
    assert await cluster.restarts() == {"worker_failure": 1}
    assert run["history"][0]["reason"].startswith("worker rank 3 on node ") and "SIGKILL" in run["history"][0]["reason"]


async def test_workers_of_several_nodes_that_fail_together_are_charged_once(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    for worker in first:
        with suppress(ProcessLookupError):  # its agent has already stopped it because of the one before
            worker.kill()
    second = await cluster.hub.group(4)
    assert restart_count(second) == 1
    await cluster.finish(second)


async def test_the_workers_of_a_killed_agent_end_and_the_others_form_again_at_once(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "1:2", *PATIENT)
    lost = of_node(first, 1)
    victim = next(name for name, agent in cluster.agents.items() if lost[0].agent_pid == agent.pid)
    agent = cluster.agents.pop(victim)
    agent.signal(signal.SIGKILL)
    for worker in lost:
        await worker.gone(within_s=1.0)
    second = await cluster.hub.group(2)
    assert restart_count(second) == 0, "losing a node is not charged"
    assert await agent.exit_code() == -signal.SIGKILL
    await cluster.finish(second)
    assert await cluster.restarts() == {"node_lost": 1}
    run = await cluster.server.run()
    assert [gone["node_id"] for gone in run["departures"]] == [victim]


@pytest.fixture(params=[pytest.param("plain"), pytest.param("torch", marks=pytest.mark.torch)])
def any_cluster(request: pytest.FixtureRequest, cluster: Cluster) -> Cluster:
    """The cluster with workers that do not notice each other's end, and with torch workers, which do.

    The torch workers are warm: torch is imported once a node, not once a worker and round.
    """
    if request.param == "torch":
        cluster.script, cluster.agent_flags = TORCH_WORKER, ("--preload", "torch.distributed")
    return cluster


async def test_a_silent_host_is_lost_with_its_lease_and_returns_as_a_newcomer(any_cluster: Cluster) -> None:
    # There is no corroboration here: the host is silent, but its connections stay open.
    timing = ("--nnodes", "1:2", "--lease", "1.5", "--last-call-timeout", "500", "--shutdown-timeout", "5")
    first = await any_cluster.nodes("ab", *timing)
    silent = any_cluster.agents["b"]
    frozen = [silent.pid, *(worker.pid for worker in of_agent(first, silent.pid))]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    second = await any_cluster.hub.group(2)
    assert restart_count(second) == 0
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGCONT)
    await silent.line(pattern(words.leaving.rejoining, slept_s=0.0))
    third = await any_cluster.hub.group(4)
    assert restart_count(third) == 0
    await any_cluster.finish(third)
    run = await any_cluster.server.run()
    assert await any_cluster.restarts() == {"node_lost": 1, "node_arrived": 1}
    assert losses.not_heard(1.5) in run["departures"][0]["cause"]


async def test_an_agent_that_slept_until_its_run_was_forgotten_does_not_begin_it_again(cluster: Cluster) -> None:
    await cluster.serve("--retention", "1")
    timing = ("--nnodes", "1:2", "--lease", "1", "--last-call-timeout", "500", "--shutdown-timeout", "5")
    first = await cluster.nodes("ab", "--run-id", "r", *timing, nproc=1)
    sleeper = cluster.agents.pop("b")
    os.kill(sleeper.pid, signal.SIGSTOP)
    await cluster.finish(await cluster.hub.group(1))
    async with asyncio.timeout(PATIENCE_S):
        while (await cluster.server.status())["runs"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    os.kill(sleeper.pid, signal.SIGCONT)
    assert await sleeper.exit_code() == ExitCode.REFUSED
    await sleeper.line(pattern(attempts.outcome_unknown("r", "b")))
    for worker in first:
        await worker.gone()
    assert (await cluster.server.status())["runs"] == []


async def test_agents_form_their_run_again_if_their_server_has_lost_its_state(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--run-id", "r", "--nnodes", "2", *PATIENT, nproc=1)
    await cluster.lose_server()
    await cluster.regain_server()
    for worker in first:
        await worker.gone()
    await cluster.finish(await cluster.hub.group(2))


async def test_an_agent_that_gets_a_stop_signal_leaves_and_the_others_form_again_at_once(cluster: Cluster) -> None:
    await cluster.nodes("ab", "--nnodes", "1:2", *PATIENT)
    leaver = cluster.agents.pop("b")
    leaver.signal(signal.SIGTERM)
    second = await cluster.hub.group(2)
    assert restart_count(second) == 0
    assert await leaver.exit_code() == ExitCode.START_AGAIN
    await leaver.line(pattern(words.leaving.leaving, why="SIGTERM"))
    await cluster.finish(second)
    assert await cluster.restarts() == {"node_left": 1}


async def test_a_third_node_is_admitted_to_a_run_of_two_to_three(cluster: Cluster) -> None:
    timing = ("--nnodes", "2:3", "--last-call-timeout", "0.2", "--lease", "500", "--shutdown-timeout", "5")
    first = await cluster.nodes("ab", *timing)
    await cluster.node("c")
    second = await cluster.hub.group(6)
    newcomers = of_agent(second, cluster.agents["c"].pid)
    assert [worker.group_rank for worker in newcomers] == [2, 2], "those that were there keep their group ranks"
    assert restart_count(second) == 0 and master_port(first) != master_port(second)
    await cluster.finish(second)
    assert await cluster.restarts() == {"node_arrived": 1}


async def test_a_replacement_takes_the_lost_nodes_place(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "2", *PATIENT)
    lost_rank = of_agent(first, cluster.agents["a"].pid)[0].group_rank
    cluster.agents.pop("a").signal(signal.SIGKILL)
    await cluster.agents["b"].line(f"{completion.waiting_for(1)}: .*gone: a")
    replacement = await cluster.node("c", "--nnodes", "2")
    second = await cluster.hub.group(4)
    assert {worker.group_rank for worker in of_agent(second, replacement.pid)} == {lost_rank}
    assert restart_count(second) == 0
    await cluster.finish(second)


async def test_a_spare_takes_a_lost_nodes_place_without_a_wait(cluster: Cluster) -> None:
    await cluster.nodes("ab", "--nnodes", "2", *PATIENT)
    spare = await cluster.node("spare")
    await spare.line(completion.standby_full(1, 2))
    cluster.agents.pop("b").signal(signal.SIGKILL)
    second = await cluster.hub.group(4)
    assert restart_count(second) == 0
    await cluster.finish(second)


async def test_a_spare_that_was_not_needed_exits_0(cluster: Cluster) -> None:
    workers = await cluster.nodes("ab", "--nnodes", "2", *PATIENT)
    spare = await cluster.node("spare")
    await spare.line("standing by")
    await cluster.finish(workers)
    assert any("run succeeded" in line for line in spare.err)


async def test_nodes_with_one_and_three_workers_make_one_world_of_four(cluster: Cluster) -> None:
    await cluster.node("one", "--nnodes", "2", "--node-rank", "0", nproc=1)
    await cluster.node("three", "--nnodes", "2", "--node-rank", "1", nproc=3)
    workers = await cluster.hub.group(4)
    assert [worker.env["LOCAL_RANK"] for worker in workers] == ["0", "0", "1", "2"]
    assert [worker.group_rank for worker in workers] == [0, 1, 1, 1]
    assert [worker.env["LOCAL_WORLD_SIZE"] for worker in workers] == ["1", "3", "3", "3"]
    await cluster.finish(workers)


async def test_early_finishers_wait_and_restart_with_the_others_when_one_fails(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    for worker in of_node(first, 0):
        worker.order_exit(0)
        await worker.gone()
    of_node(first, 1)[0].order_exit(7)
    second = await cluster.hub.group(4)
    assert restart_count(second) == 1
    await cluster.finish(second)


async def test_without_restarts_left_every_agent_exits_1_and_names_the_first_failure(cluster: Cluster) -> None:
    workers = await cluster.nodes("ab", "--nnodes", "2", *PATIENT)
    await workers[2].tell("complain the data loader found no data")
    workers[2].order_exit(7)
    await workers[2].gone()
    for agent in cluster.agents.values():
        assert await agent.exit_code(within_s=1.0) == 1
        report = "\n".join(agent.err)
        assert "run failed: worker rank 2 on node " in report and failures.no_restarts_left(0, None) in report
        root = report.partition("Root Cause (first observed failure):")[2]
        assert "rank      : 2 (local_rank: 0)" in root and "exitcode  : 7 " in root
        assert "the data loader found no data" in root
