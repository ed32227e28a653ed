"""Exit codes of both programs, one real process each, as promised in docs/reference/exit-codes.md."""

import re
import signal
from pathlib import Path

import yaml
from rdzv_protocol.exit_codes import ExitCode

from tests.support.cluster import Cluster
from tests.support.programs import Program, Server, start_agent
from tests.support.worker_hub import WorkerHub

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
NOWHERE = ("--connect-timeout", "0.1")


def test_the_page_has_every_code():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == [(code.value, code.name) for code in ExitCode]


def test_the_samples_of_the_page_equal_the_files_in_deploy():
    (rules,), (unit,) = (re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S) for language in ("yaml", "ini"))
    job = (ROOT / "deploy/kubernetes/runs/indexed-job/job.yaml").read_text().replace("containerName: node, ", "")
    assert yaml.safe_load(rules)["podFailurePolicy"] == yaml.safe_load(job)["spec"]["podFailurePolicy"]
    assert set(unit.split("\n")) <= set((ROOT / "deploy/systemd/node-agent@.service").read_text().split("\n"))


async def test_a_run_that_succeeds_and_one_that_fails(cluster: Cluster) -> None:
    workers = await cluster.nodes("ab", "--nnodes", "2", "--run-id", "one", nproc=1)
    await cluster.finish(workers)
    workers = await cluster.nodes("ab", "--nnodes", "2", "--run-id", "other", nproc=1)
    workers[0].order_exit(3)
    for name in "ab":
        assert await cluster.agents.pop(name).exit_code() == ExitCode.FAILED


async def test_an_agent_that_was_asked_to_leave_exits_with_the_code_for_a_new_start(cluster: Cluster) -> None:
    await cluster.nodes("a", "--nnodes", "1", nproc=1)
    agent = cluster.agents.pop("a")
    agent.signal(signal.SIGTERM)
    assert await agent.exit_code() == ExitCode.START_AGAIN


async def test_an_agent_that_never_hears_how_the_run_ended_has_its_own_workers_verdict(cluster: Cluster) -> None:
    workers = await cluster.nodes("ab", "--nnodes", "2", "--server-lost-timeout", "1", nproc=1)
    succeeds, runs_on = (worker.agent_pid for worker in workers)
    await cluster.server.kill()
    workers[0].order_exit(0)
    ends = {agent.pid: await agent.exit_code() for agent in map(cluster.agents.pop, "ab")}
    assert (ends[succeeds], ends[runs_on]) == (ExitCode.SUCCEEDED, ExitCode.START_AGAIN)


async def test_a_node_that_cannot_start_its_worker(cluster: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\0of another machine")
    program.chmod(0o755)
    agent = await start_agent("--endpoint", cluster.server.endpoint, "--no-python", script=program)
    assert await agent.exit_code() == ExitCode.NODE_UNFIT


async def test_torchruns_command_lines_have_torchruns_codes(hub: WorkerHub) -> None:
    agent = await start_agent("--standalone", env=hub.env)
    await hub.group(1)
    agent.signal(signal.SIGTERM)
    assert await agent.exit_code() == ExitCode.FAILED
    line = ("--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "--master-port=1", *NOWHERE)
    assert await (await start_agent(*line)).exit_code() == ExitCode.FAILED


async def test_exit_codes_of_the_server(tmp_path: Path) -> None:
    server = await Server.listen()
    server.signal(signal.SIGTERM)
    assert await server.exit_code() == ExitCode.SUCCEEDED
    assert await (await Program.start(*Server.command("--lease", "3"))).exit_code() == ExitCode.BAD_INPUT
