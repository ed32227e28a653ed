"""Server and agent under a service manager: their messages to it, and upgrades of a server whose port it holds."""

import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rdzv_protocol.exit_codes import ExitCode

from rdzv_server.words import completion, startup
from tests.support.cluster import Cluster
from tests.support.process_info import is_running
from tests.support.programs import Program, Server, refuses
from tests.support.service_manager import PASS_ON, Manager
from tests.support.worker_hub import WorkerHub, all_run, restart_count

WATCHDOG_S = 1.0
PATIENT = ("--last-call-timeout", "500", "--lease", "60", "--join-timeout", "500")


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[Manager]:
    async with Manager(tmp_path, watchdog_s=WATCHDOG_S) as manager:
        yield manager


class ManagedCluster(Cluster):
    """A cluster whose server is at its manager's port, with its state in a file."""

    def __init__(self, hub: WorkerHub, manager: Manager, state: Path) -> None:
        super().__init__(hub)
        self.manager = manager
        self._store = f"sqlite:{state}"

    async def serve_managed(self) -> None:
        self.servers.append(await self.manager.serve("--store", self._store))

    @asynccontextmanager
    async def upgrade(self) -> AsyncIterator[None]:
        """Stop the server, run the block without a server, and start another one."""
        self.server.signal(signal.SIGTERM)
        await self.manager.hears("STOPPING=1")
        assert await self.server.exit_code() == 0
        yield
        await self.serve_managed()


@pytest.fixture
async def managed(hub: WorkerHub, manager: Manager, tmp_path: Path) -> AsyncIterator[ManagedCluster]:
    async with ManagedCluster(hub, manager, tmp_path / "state.db") as cluster:
        await cluster.serve_managed()
        yield cluster


# The server.


async def test_an_upgrade_accepts_every_connection_and_keeps_all_state(managed: ManagedCluster) -> None:
    """One run continues, another one forms. The next server handles what happens without a server."""
    running = await managed.nodes("ab", "--nnodes", "2", "--max-restarts", "1", "--run-id", "one", *PATIENT)
    forming = await managed.node("c", "--nnodes", "3", "--run-id", "two", *PATIENT)
    await forming.line(completion.waiting_for(2))

    async with managed.upgrade():
        joining = await managed.node("d", "--run-id", "two", *PATIENT)
    await joining.line(completion.waiting_for(1))
    assert all_run(running)

    async with managed.upgrade():
        running[3].kill()
        await running[2].gone()
        assert all_run(running[:2])
    running = await managed.hub.group(4)
    assert restart_count(running) == 1

    async with managed.upgrade():
        await managed.node("e", "--run-id", "two", *PATIENT)
    formed = await managed.hub.group(6)
    assert all_run(running)
    await managed.finish([*running, *formed])
    for agent in managed.agents.values():
        assert not any("refused" in line for line in agent.err)


async def test_agents_do_not_notice_an_upgrade_if_nothing_else_happens(managed: ManagedCluster) -> None:
    """Parked polls get a last answer on their connection. The next polls wait for the next server."""
    running = await managed.nodes("a", "--run-id", "one", *PATIENT)
    forming = await managed.node("c", "--nnodes", "2", "--run-id", "two", *PATIENT)
    await forming.line(completion.waiting_for(1))
    await managed.server.parks(2)  # a poll that arrives during the stop would find the connection closed
    said = {name: len(agent.err) for name, agent in managed.agents.items()}
    async with managed.upgrade():
        pass
    await managed.node("d", "--run-id", "two", *PATIENT)
    formed = await managed.hub.group(4)
    await managed.finish([*running, *formed])
    for name in said:
        assert not any("rdzv-server at" in line for line in managed.agents[name].err[said[name] :])


async def test_a_server_that_hangs_is_found_out_and_started_again(managed: ManagedCluster) -> None:
    workers = await managed.nodes("a")
    for _ in range(2):
        await managed.manager.hears("WATCHDOG=1")
    await managed.manager.hears("STATUS=1 run")
    managed.server.signal(signal.SIGSTOP)
    await managed.manager.misses(managed.server)
    assert all_run(workers)
    await managed.serve_managed()
    await managed.finish(workers)
    assert (await managed.server.run())["phase"] == "succeeded"


async def test_a_socket_activated_server_finds_its_state_again_by_the_port(manager: Manager, tmp_path: Path) -> None:
    server = await manager.serve(env={"STATE_DIRECTORY": str(tmp_path)})
    assert (await server.line("state in (.*)"))[1] == f"{tmp_path}/port-{server.port}.db"


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["datagrams", "not-listening"])
async def test_a_socket_of_another_kind_is_refused(kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as passed:
        server = await Program.start("sh", "-c", PASS_ON, "sh", *Server.command(), stdin=passed.fileno())
        await refuses(server, startup.PASSED_NO_LISTENER)


async def test_several_sockets_are_refused() -> None:
    two = PASS_ON.replace("LISTEN_FDS=1", "LISTEN_FDS=2")
    await refuses(await Program.start("sh", "-c", two, "sh", *Server.command()), startup.too_many_sockets(2))


async def test_systemds_own_activator_starts_it_with_the_first_agent(cluster: Cluster, unused_tcp_port: int) -> None:
    if shutil.which("systemd-socket-activate") is None:
        pytest.skip("systemd is missing: tests/install-debian-packages.sh installs it")
    place = f"127.0.0.1:{unused_tcp_port}"
    command = Server.command("--store", "memory")
    activator = await Program.start("systemd-socket-activate", "--listen", place, "--setenv=HOME", *command)
    await activator.line("Listening on")
    await cluster.agent("a", "--endpoint", place, "--nproc", "2")
    workers = await cluster.hub.group(2)
    await activator.line(f"listening on http://{place}")
    await cluster.finish(workers)


# The agent.


async def test_an_agent_is_ready_once_it_has_joined_and_reports_what_it_waits_for(
    cluster: Cluster, manager: Manager
) -> None:
    agent = await cluster.node("a", "--nnodes", "2", *PATIENT, env=manager.env)
    await manager.hears("READY=1")
    await manager.hears(f"STATUS={completion.waiting_for(1)}")
    await cluster.node("b", *PATIENT)
    workers = await cluster.hub.group(4)
    for worker in workers:
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(worker.env)
    await manager.hears("WATCHDOG=1")
    await cluster.finish(workers)
    await manager.hears("STOPPING=1")
    assert not agent.is_running


async def test_an_agent_that_stops_its_workers_reports_it_while_they_run(cluster: Cluster, manager: Manager) -> None:
    agent = await cluster.node("a", "--shutdown-timeout", "300", env=manager.env)
    workers = await cluster.hub.group(2)
    await workers[0].tell("ignore SIGTERM")
    agent.signal(signal.SIGTERM)
    assert "EXTEND_TIMEOUT_USEC=305000000" in await manager.hears("STOPPING=1")
    await workers[1].gone()
    await manager.hears("WATCHDOG=1")
    assert is_running(workers[0].pid)
    workers[0].kill()
    assert await agent.exit_code() == ExitCode.START_AGAIN


async def test_an_agent_that_hangs_is_found_out(cluster: Cluster, manager: Manager) -> None:
    agent = await cluster.node("a", env=manager.env)
    workers = await cluster.hub.group(2)
    await manager.hears("WATCHDOG=1")
    agent.signal(signal.SIGSTOP)
    await manager.misses(agent)
    for worker in workers:
        await worker.gone()
    cluster.agents.clear()
