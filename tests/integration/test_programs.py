"""The two programs as programs: signals, output, shutdown, names, the embedded server."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from node_agent.cli.plan import CONNECT_TIMEOUT_S
from rdzv_server.words import http as http_words
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import pattern
from tests.support.outages import LOST, REACHED
from tests.support.process_info import is_running
from tests.support.programs import Program, Server, get, start_agent
from tests.support.rdzvctl import rdzvctl
from tests.support.worker_hub import WorkerHub, finish

PRINT_PROTOCOL = "import protocol\nprint('the script sees', protocol.WHOSE)\n"


async def test_standalone_needs_no_server_and_shows_a_status_page(hub: WorkerHub) -> None:
    agent = await start_agent("--standalone", "--nproc", "2", env=hub.env)
    workers = await hub.group(2)
    url = (await agent.line(pattern(words.progress.status_page)))["url"]
    (run,) = json.loads(await get(f"{url}v1/status"))["runs"]
    assert "<h1" in await get(f"{url}runs/{run['run_id']}?plain=0")
    assert (run["phase"], run["world_size"]) == ("running", 2)
    done = await rdzvctl("stop", run["run_id"], "--yes", endpoint=url)
    assert done.code == ExitCode.REFUSED and http_words.READ_ONLY in " ".join(done.err)
    await finish(agent, *workers)


async def test_a_status_page_that_cannot_be_imported_does_not_end_the_run(hub: WorkerHub, tmp_path: Path) -> None:
    """The package may be upgraded or removed during a run. The page is imported when it is first asked for."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['rdzv_server.http.routes'] = None\n")
    agent = await start_agent("--standalone", "--nproc", "1", env={**hub.env, "PYTHONPATH": str(tmp_path)})
    workers = await hub.group(1)
    url = (await agent.line(pattern(words.progress.status_page)))["url"]
    with pytest.raises(OSError):
        await get(url)
    await agent.line(pattern(words.progress.no_status_page))
    await finish(agent, *workers)


async def test_ctrl_c_reaches_the_workers_and_leaves_nothing(hub: WorkerHub) -> None:
    agent = await start_agent("--standalone", "--nproc", "2", "--shutdown-timeout", "0.3", env=hub.env)
    polite, stubborn = await hub.group(2)
    await stubborn.tell("ignore SIGINT")
    grandchild = int(await stubborn.tell("fork"))
    agent.signal(signal.SIGINT)
    await polite.gone()
    await stubborn.gone()  # SIGKILL after the grace period
    assert await agent.exit_code() == 1
    assert f"node-agent: {words.leaving.leaving_with_workers('SIGINT', 0.3, 'SIGINT')}" in agent.said
    assert not any("Traceback" in line for line in agent.said if line.startswith("node-agent"))
    assert not is_running(grandchild)


async def test_a_second_ctrl_c_kills_at_once(hub: WorkerHub) -> None:
    agent = await start_agent("--standalone", "--nproc", "1", "--shutdown-timeout", "500", env=hub.env)
    (stubborn,) = await hub.group(1)
    await stubborn.tell("ignore SIGINT")
    agent.signal(signal.SIGINT)
    await agent.line(pattern(words.leaving.leaving, why="SIGINT"))
    await agent.signal_again(signal.SIGINT)
    assert await agent.exit_code() == 1


async def test_workers_lines_are_shown_and_the_last_one_is_not_lost(hub: WorkerHub) -> None:
    agent = await start_agent("--standalone", "--nproc", "2", env=hub.env)
    one, two = await hub.group(2)
    await one.tell("say hello")
    await two.tell("complain dear me")
    await finish(agent, one, two)
    assert "hello" in agent.out
    assert "dear me" in agent.err


async def test_an_agent_waits_for_a_server_that_starts_later(hub: WorkerHub, unused_tcp_port: int) -> None:
    agent = await start_agent("--endpoint", f"127.0.0.1:{unused_tcp_port}", env=hub.env)
    failure = "connect: 127.0.0.1: Connection refused"
    expected = {"failure": failure, "longest_s": CONNECT_TIMEOUT_S, "stage": "connect"}
    await agent.line(pattern(words.connection.not_reached_yet, **expected))
    await Server.listen(port=unused_tcp_port)
    (worker,) = await hub.group(1)
    await agent.line(REACHED)
    await finish(agent, worker)


async def test_a_server_that_shuts_down_releases_its_polls_without_an_effect_on_workers(cluster: Cluster) -> None:
    workers = await cluster.nodes("ab", "--nnodes", "2", *PATIENT)
    began = time.monotonic()
    cluster.server.signal(signal.SIGTERM)
    assert await cluster.server.exit_code() == 0
    assert time.monotonic() - began < 1.0
    for agent in cluster.agents.values():
        await agent.line(LOST)
    for worker in workers:
        assert await worker.tell("say still here") == "still here"


async def test_a_signal_to_all_processes_of_a_job_leaves_it_the_server_that_its_agent_hosts(
    hub: WorkerHub, unused_tcp_port: int
) -> None:
    """Slurm sends SIGUSR1 before the time limit. The agents still need the server: their workers save together."""
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{unused_tcp_port}", "--nnodes", "1:2")
    flags = ("--last-call-timeout", "0.1", "--signals-to-handle", "SIGTERM,SIGUSR1", "--nproc", "1")
    agent = await start_agent(*where, *flags, env=hub.env)
    pid = int((await agent.line(pattern(words.hosting.hosting, is_for_this_machine=False)))["pid"])
    await hub.group(1)
    os.kill(pid, signal.SIGUSR1)
    assert json.loads(await get(f"http://127.0.0.1:{unused_tcp_port}/v1/status"))["runs"]
    agent.signal(signal.SIGUSR1)
    assert await agent.exit_code() == 1
    assert not any(re.search(LOST, line) for line in agent.err)


async def test_a_server_without_its_state_makes_the_agents_rejoin(cluster: Cluster) -> None:
    """State is only in memory: after a restart the server knows nothing, and the run forms again."""
    await cluster.nodes("ab", "--nnodes", "2", *PATIENT)
    port = cluster.server.port
    await cluster.server.end()
    await cluster.serve(port=port)
    again = await cluster.hub.group(4)
    await cluster.finish(again)


async def test_proxies_in_the_environment_are_ignored(cluster: Cluster) -> None:
    proxy = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"), "http://127.0.0.1:1")
    await cluster.node("a", nproc=1, env=proxy)
    await cluster.finish(await cluster.hub.group(1))


@pytest.mark.parametrize("command", [("-m", "node_agent"), ("node-agent",)], ids=["module", "script"])
async def test_a_users_own_protocol_module_is_not_shadowed(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "protocol.py").write_text("WHOSE = 'the user'\n")
    (tmp_path / "train.py").write_text(PRINT_PROTOCOL)
    program = (sys.executable, *command) if command[0] == "-m" else (str(Path(sys.executable).with_name(command[0])),)
    agent = await Program.start(*program, "--standalone", "train.py", cwd=str(tmp_path), env={"PYTHONPATH": "."})
    assert await agent.exit_code() == 0, agent.err
    assert agent.out == ["the script sees the user"]


async def test_a_late_agent_learns_that_the_run_has_succeeded(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--run-id", "nightly", *PATIENT)
    await cluster.finish(workers)
    late = await cluster.node("b", "--run-id", "nightly")
    assert await late.exit_code() == 0
    assert any("run nightly has already succeeded" in line for line in late.err)
    again = await cluster.node("c", "--run-id", "nightly", "--rerun")
    await finish(again, *await cluster.hub.group(2))


async def test_scratch_files_are_gone_when_the_agent_is(hub: WorkerHub, tmp_path: Path) -> None:
    agent = await start_agent("--standalone", env={**hub.env, "TMPDIR": str(tmp_path)})
    (worker,) = await hub.group(1)
    assert Path(worker.env["TORCHELASTIC_ERROR_FILE"]).parent.is_dir()
    await finish(agent, worker)
    assert [name for name in os.listdir(tmp_path) if name.startswith("node-agent")] == []
