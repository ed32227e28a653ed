"""Actions of an operator on a run, over HTTP, with real agents and workers."""

import asyncio
import json
import re
import signal
import urllib.error
import urllib.request

import pytest
from rdzv_protocol.paths import ADMIT, STOP

from tests.support.cluster import PATIENT, Cluster
from tests.support.programs import Server
from tests.support.worker_hub import WorkerHub


async def act(server: Server, path: str, body: object) -> tuple[int, dict]:
    """Status and answer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.endpoint}{path}", raw, method="POST")
    return await asyncio.to_thread(_answer, request)


def _answer(request: urllib.request.Request) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


async def test_stopping_a_run_ends_every_agent_and_says_why(cluster: Cluster) -> None:
    workers = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "3", "--run-id", "r/1", *PATIENT)
    status, _ = await act(cluster.server, STOP, {"run_id": "r/1", "reason": "wrong\ndata set"})
    assert status == 200
    for agent in cluster.agents.values():
        assert await agent.exit_code() == 1
        assert any("stopped by an operator: wrong data set" in line for line in agent.err)
    for worker in workers:
        await worker.gone()
    run = await cluster.server.run()
    assert (run["phase"], run["restart_count"]) == ("failed", 0)
    assert (await act(cluster.server, STOP, {"run_id": "r/1"}))[0] == 200, "asked for twice, done once"
    assert (await act(cluster.server, STOP, {"run_id": "none such"}))[0] == 404
    said = [line for line in cluster.server.err if "stopped by an operator" in line and "run failed: " not in line]
    assert len(said) == 1
    line = r"INFO rdzv-server: run r/1 round 1: stopped by an operator: wrong data set \(by 127\.0\.0\.1\)"
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d {line}", said[0])


async def test_with_manual_scale_up_an_operator_admits(cluster: Cluster) -> None:
    flags = ("--nnodes", "1:2", "--run-id", "r", "--scale-up", "manual", *PATIENT, "--last-call-timeout", "0")
    await cluster.nodes("a", *flags)
    assert (await act(cluster.server, ADMIT, {"run_id": "r"}))[0] == 409, "nobody stands by"
    newcomer = await cluster.node("b", *flags)
    await newcomer.line("standing by: round 1 runs, and scale-up is manual")
    assert (await act(cluster.server, ADMIT, {"run_id": "r"}))[0] == 200
    await cluster.finish(await cluster.hub.group(4))
    assert await cluster.restarts() == {"node_arrived": 1}


MISTAKES = (
    ({"run_id": "none such"}, 404, "no run none such is known here"),
    ({}, 400, "StopRequest.run_id is missing"),
    ({"run_id": 7}, 400, "StopRequest.run_id must be text of 1 to 256 characters without control characters, not 7"),
    ({"run_id": "a\nb"}, 400, "characters without control characters, not 'a\\nb'"),
    ([], 400, "StopRequest must be a map, not"),
    (b"{", 400, 'the body is not JSON: give {"run_id": "..."}'),
    (b"\xff", 400, "the body is not JSON"),
)


async def test_a_mistake_is_said_and_changes_nothing(cluster: Cluster) -> None:
    for body, status, says in MISTAKES:
        answered, answer = await act(cluster.server, STOP, body)
        assert answered == status and says in answer["message"], body


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
