"""torchrun's command lines for several nodes, without a started server: a node of the run hosts it."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from node_agent.cli.plan import CONNECT_TIMEOUT_S
from rdzv_server.words import auth, completion
from tests.support.cluster import Cluster
from tests.support.message_search import has_message, message_fields, pattern
from tests.support.process_info import ended, is_running
from tests.support.programs import PATIENCE_S, Program, Server, refuses, start_agent
from tests.support.worker_hub import WorkerHub, of_node, restart_count

PATIENT = ("--rdzv-conf", "join_timeout=500,last_call_timeout=500", "--shutdown-timeout", "5")
IDLE = "from node_agent.servers import hosted; hosted.IDLE_S = 1"
"""Makes a hosted server stay without agents for one second instead of ten."""
HOSTING = pattern(words.hosting.hosting)
NOT_REACHED_YET = pattern(words.connection.not_reached_yet, longest_s=CONNECT_TIMEOUT_S, stage="connect")


def pid_of(line: str) -> int:
    """Return the pid of the server that an agent reports in this line."""
    return int(message_fields(line, words.hosting.hosting)["pid"])


class Nodes(Cluster):
    """The agents of one run on this machine, called `0`, `1` and so on, and the servers that they host at one port."""

    def __init__(self, hub: WorkerHub, port: int) -> None:
        super().__init__(hub)
        self.port = port

    async def start(self, *flags: str, env: Mapping[str, str] | None = None) -> Program:
        return await self.agent(str(len(self.agents)), *flags, env=env)

    async def static(self, rank: int, *flags: str) -> Program:
        master = ("--master-addr", "127.0.0.1", "--master-port", str(self.port))
        return await self.start("--nnodes", "2", "--node-rank", str(rank), *master, *PATIENT, *flags)

    async def c10d(self, *flags: str, nnodes: str = "2") -> Program:
        backend = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "job")
        return await self.start("--nnodes", nnodes, *backend, *PATIENT, *flags)

    async def server_pid(self, agent: Program) -> int:
        return pid_of((await agent.line(HOSTING))[0])

    def server_pids(self) -> list[int]:
        lines = [line for agent in self.agents.values() for line in agent.err]
        return [pid_of(line) for line in lines if has_message(line, words.hosting.hosting)]

    async def end(self) -> None:
        await super().end()
        for pid in self.server_pids():
            await ended(pid)


@pytest.fixture
async def nodes(hub: WorkerHub, unused_tcp_port: int) -> AsyncIterator[Nodes]:
    async with Nodes(hub, unused_tcp_port) as nodes:
        yield nodes


# Static.


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the host first", "the host last"])
async def test_a_plain_command_line_for_two_nodes_works_without_a_started_server(
    nodes: Nodes, order: tuple[int, int]
) -> None:
    first = await nodes.static(order[0])
    await first.line(HOSTING if order[0] == 0 else NOT_REACHED_YET)
    await nodes.static(order[1])
    workers = await nodes.hub.group(2)
    by_rank = dict(zip(order, nodes.agents.values(), strict=True))
    assert [worker.agent_pid for worker in workers] == [by_rank[0].pid, by_rank[1].pid]
    for worker in workers:
        assert worker.env["MASTER_ADDR"] == "127.0.0.1"
        assert worker.env["MASTER_PORT"] != str(nodes.port)
        assert worker.env["TORCHELASTIC_RUN_ID"] == "none"
    server = await nodes.server_pid(by_rank[0])
    await nodes.finish(workers)
    assert not is_running(server), "the hosting agent waits for it"


async def test_a_static_run_works_with_kubeflows_variables(nodes: Nodes) -> None:
    common = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(nodes.port),
    }
    for rank in ("1", "0"):
        await nodes.start(env={**common, "PET_NODE_RANK": rank})
    workers = await nodes.hub.group(4)
    assert workers[0].agent_pid == nodes.agents["1"].pid
    assert workers[0].env["PET_NNODES"] == "2", "workers inherit them, as under torchrun"
    await nodes.finish(workers)


async def test_a_token_for_the_server_that_a_node_hosts(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    host = await nodes.static(0, "--token-file", str(tmp_path / "token"))
    asks = words.connection.asks_for_token(f"127.0.0.1:{nodes.port}", "--token-file")
    await refuses(await nodes.static(1), asks, code=ExitCode.FAILED)
    nodes.agents.popitem()
    await nodes.static(1, "--token-file", str(tmp_path / "token"))
    await nodes.finish(await nodes.hub.group(2))
    assert not has_message(host.err, auth.OPEN)


async def test_one_node_with_a_port_of_its_own_choice(nodes: Nodes) -> None:
    await nodes.start("--nproc", "2", "--master-addr", "127.0.0.1", "--master-port", str(nodes.port))
    workers = await nodes.hub.group(2)
    assert (workers[0].env["MASTER_ADDR"], workers[0].env["MASTER_PORT"]) == ("127.0.0.1", str(nodes.port))
    await nodes.finish(workers)


async def test_a_port_that_needs_privileges() -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing needs privileges here")
    agent = await start_agent("--nnodes", "2", "--master-port", "1")
    await refuses(agent, words.rendezvous.cannot_host(1, "Permission denied"))


# c10d.


async def test_c10d_is_hosted_by_one_of_the_nodes_that_the_endpoint_names(nodes: Nodes) -> None:
    for _ in "ab":
        await nodes.c10d()
    workers = await nodes.hub.group(2)
    assert has_message(
        nodes.agents["0"].said[0], words.progress.joining, run_id="job", address=f"127.0.0.1:{nodes.port}"
    )
    assert {worker.env["TORCHELASTIC_RUN_ID"] for worker in workers} == {"job"}
    await nodes.finish(workers)
    assert len(nodes.server_pids()) == 1


async def test_nodes_of_c10d_may_all_ask_for_one_rank(nodes: Nodes) -> None:
    for _ in "ab":
        await nodes.c10d("--node-rank", "0")
    workers = await nodes.hub.group(2)
    await nodes.finish(workers)
    said = [line for agent in nodes.agents.values() for line in agent.said if "--node-rank" in line]
    assert said == [f"node-agent: {words.agent.node_rank_taken(0, 1)}"]


async def test_with_is_host_0_a_node_does_not_host_c10d(nodes: Nodes) -> None:
    other = await nodes.c10d("--rdzv-conf", "is_host=false")
    await other.line(NOT_REACHED_YET)
    host = await nodes.c10d("--rdzv-conf", "is_host=true")
    workers = await nodes.hub.group(2)
    await nodes.finish(workers)
    assert nodes.server_pids() == [await nodes.server_pid(host)]


async def test_a_server_that_runs_there_already_is_used(nodes: Nodes) -> None:
    server = await Server.listen(port=nodes.port)
    await nodes.c10d(nnodes="1")
    workers = await nodes.hub.group(1)
    await nodes.finish(workers)
    assert nodes.server_pids() == []
    assert (await server.run())["phase"] == "succeeded"
    await server.end()


# Start and end of the server.


async def test_losing_the_agent_that_hosts_the_server_does_not_end_the_run(nodes: Nodes) -> None:
    host = await nodes.c10d("--node-id", "host", nnodes="1:2")
    server = await nodes.server_pid(host)
    other = await nodes.c10d("--node-id", "other", nnodes="1:2")
    workers = await nodes.hub.group(2)
    host.signal(signal.SIGKILL)
    assert await host.exit_code() == -signal.SIGKILL
    (survivor,) = await nodes.hub.group(1)
    assert survivor.agent_pid == other.pid and restart_count([survivor]) == 0
    back = await nodes.c10d("--node-id", "host", nnodes="1:2")
    workers = await nodes.hub.group(2)
    assert is_running(server)
    del nodes.agents["0"]
    await nodes.finish(workers)
    assert not has_message([*other.err, *back.err], words.hosting.hosting)
    await ended(server)


async def test_a_hosted_server_outlives_its_agent_while_the_supervisor_ends_the_agents_other_processes(
    nodes: Nodes,
) -> None:
    host = await nodes.c10d("--exit-with-run", "--node-id", "host", nnodes="1:2")
    server = await nodes.server_pid(host)
    other = await nodes.c10d("--node-id", "other", nnodes="1:2")
    workers = await nodes.hub.group(2)
    (lost,) = (worker.agent_pid for worker in workers if worker.agent_pid != other.pid)
    os.kill(lost, signal.SIGKILL)
    (survivor,) = await nodes.hub.group(1)
    assert is_running(server)
    await nodes.finish([survivor])
    await ended(server)


@pytest.mark.parametrize(("signum", "within_s"), [(signal.SIGKILL, PATIENCE_S), (signal.SIGTERM, 5.0)])
async def test_a_server_whose_only_agent_is_gone_ends_by_itself(
    nodes: Nodes, signum: signal.Signals, within_s: float
) -> None:
    """The server ends at once if the agent has announced its leave."""
    nodes.python = ("-c", f"{IDLE}; from node_agent.cli.main import main; raise SystemExit(main())")
    host = await nodes.static(0)
    server = await nodes.server_pid(host)
    await host.line(completion.waiting_for(1))
    host.signal(signum)
    await ended(server, within_s)


async def test_a_server_that_is_killed_is_hosted_again_and_the_run_continues(nodes: Nodes) -> None:
    host = await nodes.static(0)
    await nodes.static(1)
    await nodes.hub.group(2)
    os.kill(await nodes.server_pid(host), signal.SIGKILL)
    workers = await nodes.hub.group(2)
    assert len(nodes.server_pids()) == 2
    await nodes.finish(workers)


async def test_a_host_that_is_gone_for_good_ends_the_run_in_the_end(nodes: Nodes) -> None:
    host = await nodes.static(0)
    server = await nodes.server_pid(host)
    other = await nodes.static(1, "--server-lost-timeout", "0.5")
    await nodes.hub.group(2)
    os.kill(server, signal.SIGSTOP)  # so that it does not report the agent's end
    host.signal(signal.SIGKILL)
    await host.exit_code()
    os.kill(server, signal.SIGKILL)
    assert await other.exit_code() == 1
    assert has_message(other.said, words.connection.server_given_up, server=f"127.0.0.1:{nodes.port}", stage="connect")
    del nodes.agents["0"]


async def test_the_host_waits_until_the_others_have_received_the_end(nodes: Nodes) -> None:
    host = await nodes.static(0)
    server = await nodes.server_pid(host)
    other = await nodes.static(1, "--shutdown-timeout", "2")
    workers = await nodes.hub.group(2)
    await of_node(workers, 1)[0].tell("ignore SIGTERM")  # its agent needs two seconds to stop it
    of_node(workers, 0)[0].order_exit(3)
    await host.line(words.hosting.WAITING_FOR_OTHER_NODES)
    assert is_running(server)
    assert await host.exit_code() == 1
    assert await other.exit_code() == 1
    assert not is_running(server)
    assert has_message(other.err, words.progress.run_failed, reason="worker rank 0")


async def test_a_signal_ends_that_wait(nodes: Nodes) -> None:
    host = await nodes.static(0)
    await nodes.static(1)
    workers = await nodes.hub.group(2)
    stubborn = of_node(workers, 1)[0]
    await stubborn.tell("ignore SIGTERM")
    of_node(workers, 0)[0].order_exit(3)
    await host.line(words.hosting.WAITING_FOR_OTHER_NODES)
    host.signal(signal.SIGTERM)
    assert await host.exit_code() == 1
    assert is_running(stubborn.pid)


async def test_a_server_that_cannot_start_is_given_up(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").write_text("raise ImportError('broken here')\n")
    agent = await nodes.start("--nnodes", "2", "--master-port", str(nodes.port), env={"PYTHONPATH": str(tmp_path)})
    assert await agent.exit_code() == 1, "torchrun's line, and torchrun's exit code"
    assert agent.said[-1] == f"node-agent: error: {words.hosting.hosting_fails(nodes.port)}"
    assert any("broken here" in line for line in agent.err)


async def test_modules_in_the_users_folder_do_not_affect_the_server(nodes: Nodes, tmp_path: Path) -> None:
    for name in ("aiohttp", "logging", "store", "protocol"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the user')\n")
    host = ("-P", "-m", "node_agent", "--nnodes", "2", "--master-port", str(nodes.port), "--no-python", "true")
    nodes.agents["0"] = await Program.start(sys.executable, *host, cwd=tmp_path)
    other = ("--nnodes", "2", "--node-rank", "1", "--master-port", str(nodes.port), "--no-python")
    nodes.agents["1"] = await start_agent(*other, script="true")
    await nodes.finish([])
