"""Nodes that are checked before they join: real agents, real checks, a real server."""

import json
import sys
from pathlib import Path

from rdzv_protocol.exit_codes import ExitCode

from node_agent.features.checks import words
from rdzv_server.core.policies.network_check import words as network
from rdzv_server.words import completion
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import has_message
from tests.support.programs import Program


async def test_an_unfit_node_never_joins_and_says_why(cluster: Cluster, tmp_path: Path) -> None:
    errors = tmp_path / "error.json"
    check = ("--pre-join-check", "echo no GPU 3; exit 71")
    agent = await cluster.node("a", *check, env={"TORCHELASTIC_ERROR_FILE": str(errors)})
    assert await cluster.agents.pop("a").exit_code() == ExitCode.NODE_UNFIT
    why = "node a is unfit: --pre-join-check 'echo no GPU 3; exit 71' rejected it: no GPU 3"
    assert agent.said[1:] == [f"node-agent: error: {why}"]
    assert why in errors.read_text()
    (run,) = (await cluster.server.status())["runs"]
    assert run["nodes"] == [] and run["reason"].startswith(completion.too_few(1, 0, 1, "", unfit=why))
    events = json.loads(await cluster.server.get(f"/v1/runs/{run['run_id']}/events"))["events"]
    assert [event["reason"] for event in events if event["kind"] == "node_unfit"] == [why]


async def test_a_node_that_breaks_is_replaced_by_a_spare_and_the_server_knows_why(
    cluster: Cluster, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    check = ("--pre-join-check", f'test ! -e {broken} || {{ echo "$NODE_AGENT_CHECK: fallen off"; exit 71; }}')
    flags = ("--nnodes", "2", "--max-restarts", "3", "--run-id", "r", *PATIENT)
    await cluster.node("a", *flags, *check, nproc=1)
    await (await cluster.node("b", *flags, nproc=1)).line("round 1:")
    workers = await cluster.hub.group(2)
    await (await cluster.node("c", *flags, nproc=1)).line("standing by")
    broken.touch()
    of_a = next(worker for worker in workers if worker.agent_pid == cluster.agents["a"].pid)
    of_a.order_exit(3)
    assert await cluster.agents.pop("a").exit_code() == ExitCode.NODE_UNFIT
    await cluster.finish(await cluster.hub.group(2))
    events = json.loads(await cluster.server.get("/v1/runs/r/events"))["events"]
    (left,) = [event["reason"] for event in events if event["kind"] == "node_left"]
    assert left.startswith("node a left: node a is unfit: --pre-join-check ")
    assert left.endswith("rejected it: after_failure: fallen off")


async def test_the_check_command_tests_a_node(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--endpoint", cluster.endpoint, "--node-id", "n7", "--log-dir", str(tmp_path), "--check-only")
    command = (sys.executable, "-m", "node_agent", *flags, "--check", "ports,disk=0,clock=30")
    fit = await Program.start(*command)
    assert await fit.exit_code() == 0, fit.err
    assert [line.split()[:2] for line in fit.out[:3]] == [["ports", "ok"], ["disk", "ok"], ["clock", "ok"]]
    assert fit.out[3:] == [words.verdict("n7", is_unfit=False)]
    unfit = await Program.start(*command, "--pre-join-check", "echo worn out; exit 71")
    assert await unfit.exit_code() == ExitCode.NODE_UNFIT
    assert unfit.out[-2:] == ["worn out", words.verdict("n7", is_unfit=True)]
    nothing = await Program.start(sys.executable, "-m", "node_agent", "--check-only")
    assert await nothing.exit_code() == ExitCode.BAD_INPUT
    assert words.nothing_to_check("--check-only") in nothing.err[-1]


async def test_nodes_test_the_network_between_them_before_the_first_round(cluster: Cluster) -> None:
    flags = ("--nnodes", "3", "--run-id", "r", "--check", "network=0.1", *PATIENT)
    workers = await cluster.nodes("abc", *flags, nproc=1)
    await cluster.finish(workers)
    events = json.loads(await cluster.server.get("/v1/runs/r/events"))["events"]
    (tested,) = [event["reason"] for event in events if event["kind"] == "network_tested"]
    assert has_message(tested, network.tested, nodes=3)


async def test_a_run_of_fixed_nodes_does_not_wait_for_what_never_comes(cluster: Cluster, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    check = ("--pre-join-check", f"test ! -e {broken} || {{ echo worn out; exit 71; }}")
    flags = ("--nnodes", "2", "--fixed-nodes", "2", "--max-restarts", "3", "--run-id", "r", *PATIENT)
    await cluster.node("a", *flags, *check, nproc=1)
    await cluster.node("b", *flags, nproc=1)
    workers = await cluster.hub.group(2)
    broken.touch()
    of_a = next(worker for worker in workers if worker.agent_pid == cluster.agents["a"].pid)
    of_a.order_exit(3)
    assert await cluster.agents.pop("a").exit_code() == ExitCode.NODE_UNFIT
    other = cluster.agents.pop("b")
    assert await other.exit_code() == ExitCode.FAILED
    why = f"run failed: {completion.too_few_fit(1, 2, 2, completion.unfit('a', ''))}"
    (said,) = [line for line in other.err if why in line]
    assert said.endswith("worn out")
