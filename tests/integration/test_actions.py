"""Operators' actions with real agents and workers: each has its documented effect, also twice and over failover."""

import asyncio
import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.actions import ADMIT, CORDON, DRAIN, FORGET, RESIZE, RESTART, STOP, UNCORDON, Action
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.words import flags as flag_words

from rdzv_server.words import admission, attempts, completion, operations
from tests.integration.replicas import Replicas
from tests.support.cluster import PATIENT, Cluster
from tests.support.programs import PATIENCE_S, Server, refuses
from tests.support.worker_hub import Worker, WorkerHub, all_run

NOW = ("--last-call-timeout", "0")


async def act(server: Server, action: Action, **body: Any) -> tuple[int, dict[str, Any]]:
    """Return the status and the answer."""
    return await asyncio.to_thread(_post, f"http://{server.endpoint}{action.path}", body)


def _post(url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


async def leader(cluster: Cluster) -> Server:
    return await cluster.leader() if isinstance(cluster, Replicas) else cluster.server


async def states(server: Server) -> dict[str, str]:
    return {node["node_id"]: node["state"] for node in (await server.run())["nodes"]}


async def save_at_sigterm(workers: list[Worker], checkpoint: Path) -> None:
    for number, worker in enumerate(workers):
        await worker.tell(f"save {checkpoint}{number}")


async def forgets(server: Server) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await server.status())["runs"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_drained_node_saves_while_a_standby_takes_its_seat(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--nnodes", "2", "--run-id", "r", *PATIENT)
    first = await cluster.nodes("ab", *flags)
    spare = await cluster.node("c", *flags)
    await spare.line("standing by")
    ours = [worker for worker in first if worker.agent_pid == cluster.agents["b"].pid]
    await save_at_sigterm(ours, tmp_path / "checkpoint")
    answer = {"node_id": "b", "deadline_s": 600, "reason": "its fan", "request_id": "t-7"}
    said = operations.drained("b", "its fan")
    assert (await act(cluster.server, DRAIN, **answer))[1]["message"] == said
    second = await cluster.hub.group(4)
    assert {worker.agent_pid for worker in second} == {cluster.agents["a"].pid, spare.pid}
    assert all_run(ours), "they write a checkpoint, and no other node waits for them"
    assert (await states(cluster.server))["b"] == "draining"
    assert (await act(cluster.server, DRAIN, **answer))[1]["message"] == said, "asked twice, done once"
    for number in range(2):
        (tmp_path / f"checkpoint{number}.end").touch()
    assert await cluster.agents["b"].exit_code() == ExitCode.START_AGAIN
    assert [(tmp_path / f"checkpoint{number}").read_text() for number in range(2)] == ["saved"] * 2
    assert await cluster.restarts() == {"node_drained": 1}
    told = [line for line in cluster.server.err if "node b is drained" in line and "opened: " not in line]
    assert len(told) == 1 and told[0].endswith(f"run r round 1: {said} (by 127.0.0.1)")
    again = await cluster.node("b", *flags)
    await again.line(completion.standby_kept_out("b", "its fan", excluded=False))
    await cluster.finish(second)


async def test_workers_that_do_not_end_are_killed_at_the_deadline_and_idle_nodes_leave_at_once(
    cluster: Cluster,
) -> None:
    flags = ("--nnodes", "1:2", "--run-id", "r", *PATIENT, *NOW)
    first = await cluster.nodes("a", *flags)
    for worker in first:
        await worker.tell("ignore SIGTERM")
    standby = await cluster.node("b", "--scale-up", "immediate", *flags)
    await act(cluster.server, CORDON, node_id="b")
    await standby.line(completion.standby_kept_out("b", "", excluded=False))
    await act(cluster.server, DRAIN, node_id="b")
    assert await standby.exit_code() == ExitCode.START_AGAIN
    await act(cluster.server, DRAIN, node_id="a", deadline_s=0.2)
    assert await cluster.agents["a"].exit_code() == ExitCode.START_AGAIN
    assert not any(map(all_run, [[worker] for worker in first]))


async def test_drains_cordons_and_their_request_ids_survive_a_server_restart(lasting: Cluster, tmp_path: Path) -> None:
    flags = ("--nnodes", "1:2", "--run-id", "r", *PATIENT)
    first = await lasting.nodes("ab", *flags)
    ours = [worker for worker in first if worker.agent_pid == lasting.agents["b"].pid]
    await save_at_sigterm(ours, tmp_path / "checkpoint")
    drain = {"node_id": "b", "deadline_s": 600, "for_s": 86_400, "request_id": "1"}
    answered = await act(await leader(lasting), DRAIN, **drain)
    second = [worker.agent_pid for worker in await lasting.hub.group(2)]
    await lasting.restart_server()
    server = await leader(lasting)
    assert (await act(server, DRAIN, **drain))[1]["message"] == answered[1]["message"]
    restart = {"run_id": "r", "request_id": "2"}
    assert (await act(server, RESTART, **restart))[0] == 200
    third = await lasting.hub.group(2)
    await lasting.restart_server() if not isinstance(lasting, Replicas) else None
    server = await leader(lasting)
    assert (await act(server, RESTART, **restart))[0] == 200
    (kept,) = (await server.status())["server"]["cordons"]
    assert (kept["node_id"], kept["drained"], kept["by"]) == ("b", True, "127.0.0.1")
    for number in range(2):
        (tmp_path / f"checkpoint{number}.end").touch()
    assert await lasting.agents.pop("b").exit_code() == ExitCode.START_AGAIN
    await server.line("node b left: drained")
    assert all_run(third) and {*second, *(worker.agent_pid for worker in third)} == {lasting.agents["a"].pid}
    await lasting.finish(third)
    restarts = (await server.run())["restarts"]
    assert [cause for cause, times in restarts.items() if times] == ["node_drained", "run_restarted"]


async def test_a_run_shrinks_and_grows_while_it_runs_and_agents_keep_their_flags(cluster: Cluster) -> None:
    flags = ("--nnodes", "3", "--run-id", "r", *PATIENT, *NOW)
    first = await cluster.nodes("abc", *flags, nproc=1)
    ranked = {worker.agent_pid: worker.group_rank for worker in first}
    assert (await act(cluster.server, RESIZE, run_id="r", min_nodes=1, max_nodes=2))[0] == 200
    second = await cluster.hub.group(2)
    assert {worker.agent_pid: worker.group_rank for worker in second} == {
        pid: rank for pid, rank in ranked.items() if rank < 2
    }
    late = await cluster.node("d", *flags, nproc=1)
    await late.line(re.escape(admission.resized("r", [flag_words.other_setting("--nnodes", "1:2", "3")])))
    assert (await act(cluster.server, RESIZE, run_id="r", min_nodes=1, max_nodes=4))[0] == 200
    third = await cluster.hub.group(4)
    assert (await act(cluster.server, RESIZE, run_id="r", min_nodes=3, max_nodes=2))[0] == 400
    await cluster.finish(third)
    assert await cluster.restarts() == {"run_resized": 1, "node_arrived": 1}


async def test_a_cordoned_node_takes_part_again_when_its_time_is_over(cluster: Cluster) -> None:
    flags = ("--nnodes", "2", "--run-id", "r", *PATIENT)
    await act(cluster.server, CORDON, node_id="b", reason="burn-in")
    cordoned = re.escape(operations.cordoned("b", None, "burn-in"))
    await cluster.server.line(rf"INFO rdzv-server: {cordoned} \(by 127\.0\.0\.1\)$")
    agent = await cluster.node("b", *flags)
    await agent.line(completion.standby_kept_out("b", "burn-in", excluded=False))
    other = await cluster.node("a", *flags)
    await other.line(re.escape(completion.too_few(1, 1, 2, "a", cordoned="b")))
    assert (await act(cluster.server, CORDON, node_id="b", for_s=0.2))[0] == 200
    workers = await cluster.hub.group(4)
    assert (await act(cluster.server, UNCORDON, node_id="b"))[0] == 200, "it is not cordoned: nothing to do"
    await cluster.finish(workers)


async def test_the_log_says_once_that_the_time_of_a_cordon_is_over_whether_a_run_has_the_node_or_not(
    cluster: Cluster,
) -> None:
    flags = ("--nnodes", "2", "--run-id", "r", *PATIENT)
    for node in "bx":
        await act(cluster.server, CORDON, node_id=node, reason="burn-in")
    agent = await cluster.node("b", *flags)
    await agent.line(completion.standby_kept_out("b", "burn-in", excluded=False))
    for node in "bx":
        await act(cluster.server, CORDON, node_id=node, for_s=0.2)
        await cluster.server.line(
            f"INFO rdzv-server: .*{operations.uncordoned(node, operations.TIME_OVER, by_operator=False)}"
        )
    await agent.end()
    await cluster.server.end()
    over = [line for line in cluster.server.err if "is uncordoned" in line]
    assert len(over) == 2, over
    assert "run r round" in over[0] and "run " not in over[1]


async def test_a_run_that_is_over_is_forgotten_and_one_that_continues_is_not(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--run-id", "r", *PATIENT, "--lease", "1", nproc=1)
    status, refusal = await act(cluster.server, FORGET, run_id="r")
    assert (status, refusal["code"]) == (409, "run_goes_on") and "stop it first" in refusal["message"]
    await cluster.finish(workers)
    assert (await act(cluster.server, FORGET, run_id="r", request_id="1"))[0] == 200
    await cluster.server.line(r"INFO rdzv-server: run r is forgotten.* \(by 127\.0\.0\.1\)$")
    await forgets(cluster.server)
    assert (await act(cluster.server, FORGET, run_id="r", request_id="1"))[0] == 200
    for action in (FORGET, RESTART):
        assert (await act(cluster.server, action, run_id="r"))[1]["code"] == "unknown_run"
    assert (await act(cluster.server, DRAIN, node_id="x"))[1]["code"] == "unknown_node"


async def test_the_server_itself_identifies_the_client_that_acts(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--run-id", "r", *PATIENT, nproc=1)
    assert (await act(cluster.server, RESTART, run_id="r", by="somebody else", reason="a\nb"))[0] == 200
    await workers[0].gone()
    await cluster.server.line(rf"run r round 1: {operations.restarted('a b')} \(by 127\.0\.0\.1\)$")
    second = await cluster.hub.group(1)
    assert (await cluster.server.run())["history"][0]["reason"] == operations.restarted("a b")
    await cluster.finish(second)


async def test_stopping_a_run_ends_every_agent_and_says_why(cluster: Cluster) -> None:
    workers = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "3", "--run-id", "r/1", *PATIENT)
    status, _ = await act(cluster.server, STOP, run_id="r/1", reason="wrong\ndata set")
    assert status == 200
    for agent in cluster.agents.values():
        assert await agent.exit_code() == 1
        assert any(operations.stopped("wrong data set") in line for line in agent.err)
    for worker in workers:
        await worker.gone()
    run = await cluster.server.run()
    assert (run["phase"], run["restart_count"]) == ("failed", 0)
    assert (await act(cluster.server, STOP, run_id="r/1"))[0] == 200, "asked for twice, done once"
    assert (await act(cluster.server, STOP, run_id="none such"))[0] == 404
    said = [line for line in cluster.server.err if operations.stopped("") in line and "run failed: " not in line]
    assert len(said) == 1
    stopped = operations.stopped("wrong data set")
    line = rf"INFO rdzv-server: run r/1 round 1: {stopped} \(by 127\.0\.0\.1\)"
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d {line}", said[0])


async def test_a_late_node_does_not_start_a_stopped_run_again(cluster: Cluster) -> None:
    flags = ("--nnodes", "1", "--run-id", "r", *PATIENT)
    await cluster.nodes("a", *flags)
    assert (await act(cluster.server, STOP, run_id="r", reason="wrong data"))[0] == 200
    assert await cluster.agents.pop("a").exit_code() == 1
    await cluster.node("b", *flags)
    await refuses(
        cluster.agents.pop("b"), attempts.was_stopped("r", operations.stopped("wrong data")), code=ExitCode.REFUSED
    )
    await cluster.finish(await cluster.nodes("c", *flags, "--rerun"))


async def test_with_manual_scale_up_an_operator_admits_new_nodes(cluster: Cluster) -> None:
    flags = ("--nnodes", "1:2", "--run-id", "r", "--scale-up", "manual", *PATIENT, "--last-call-timeout", "0")
    await cluster.nodes("a", *flags)
    assert (await act(cluster.server, ADMIT, run_id="r"))[0] == 409, "no node stands by"
    newcomer = await cluster.node("b", *flags)
    await newcomer.line(completion.standby_scale_up(1, "manual"))
    assert (await act(cluster.server, ADMIT, run_id="r"))[0] == 200
    await cluster.finish(await cluster.hub.group(4))
    assert await cluster.restarts() == {"node_arrived": 1}


@pytest.mark.parametrize("end", [0, 3, "SIGTERM"])
async def test_a_server_that_was_started_for_a_run_exits_with_its_verdict(hub: WorkerHub, end: int | str) -> None:
    async with Cluster(hub, "--exit-when-idle", "500") as cluster:
        await cluster.serve()
        (worker,) = await cluster.nodes("a", nproc=1)
        if end == "SIGTERM":
            cluster.server.signal(signal.SIGTERM)  # in the middle of the run
        else:
            worker.order_exit(int(end))
        assert await cluster.server.exit_code() == int(end != 0)
