"""A server and agents on separate hosts, and how much training their workers lost."""

import ssl
import sys
from collections.abc import Mapping
from pathlib import Path

from rdzv_protocol.paths import DEFAULT_PORT

from tests.hosts.network import DEVICE, Host, Network
from tests.hosts.switch import Switch
from tests.hosts.training import CHECKPOINT_EVERY, Folder
from tests.support.cluster import Cluster
from tests.support.programs import Program, Server
from tests.support.worker_hub import Worker, WorkerHub

SERVER = "s"
LOCKSTEP_WORKER = str(Path(__file__).with_name("lockstep_worker.py"))


class ServerOnHost(Server):
    """An `rdzv-server` on a host of the network."""

    host: Host
    tls: ssl.SSLContext | None = None
    token: str = ""
    """Credential of the test for a server that requires one."""

    @property
    def endpoint(self) -> str:
        return self.host.authority(self.port)

    async def get(self, path: str) -> str:
        return await self.host.get(self.port, path, self.tls, self.token)


class Hosts(Cluster):
    """Agents on the hosts of a network, by the hosts' names. The server is on host `s`.

    Their workers run in lock-step over the network, unless `script` is another.
    """

    nproc = 1

    def __init__(self, hub: WorkerHub, network: Network, training: Path) -> None:
        super().__init__(hub)
        self.network = network
        self.script = LOCKSTEP_WORKER
        self.training = Folder(training)

    @property
    def switch(self) -> Switch:
        return self.network.switch

    async def serve(self, *flags: str, port: int = DEFAULT_PORT) -> ServerOnHost:
        host = self.network[SERVER]
        command = (sys.executable, "-m", "rdzv_server", "--port", str(port), "--store", "memory", *flags)
        server = await host.start(ServerOnHost, *command)
        server.host, server.port = host, port
        await server.line("listening on")
        self.servers.append(server)
        return server

    async def agent(self, name: str, *flags: str, env: Mapping[str, str] | None = None) -> Program:
        """Start an agent on the host of this name. Flags say how it finds its server."""
        command = (sys.executable, "-m", "node_agent", "--node-id", name, *flags, self.script)
        environment = {**self._environment(name), **(env or {})}
        self.agents[name] = await self.network[name].start(Program, *command, env=environment)
        return self.agents[name]

    async def finish(self, workers: list[Worker]) -> None:
        """Let these workers exit, and every agent with them. Only the server's process is left."""
        await super().finish(workers)
        assert self.network.processes() == {SERVER: [server.pid for server in self.servers]}

    async def ends(self, workers: list[Worker], **restarts: int) -> int:
        """Let the run finish, after these restarts by cause. Return the most steps that were repeated."""
        await self.finish(workers)
        assert await self.restarts() == restarts
        repeated = self.training.repeated()
        assert all(-1 <= again < CHECKPOINT_EVERY for again in repeated), repeated
        return max([0, *repeated])

    async def vanish(self, name: str) -> None:
        """Switch the host off, without a last message."""
        self.switch.unplug(name)
        await self.agents.pop(name).kill()

    async def silence_s(self, name: str) -> float:
        """Return the seconds for which the server has not heard the agent on this host."""
        nodes = (await self.server.run())["nodes"]
        (silence_s,) = (node["lease_age_s"] for node in nodes if node["node_id"] == name)
        return float(silence_s)

    def _environment(self, name: str) -> dict[str, str]:
        return {
            **self.hub.env,
            "TEST_HOST": name,
            "GLOO_SOCKET_IFNAME": DEVICE,  # the hosts share one host name here, which does not give their addresses
            "TEST_TRAINING": str(self.training.path),
            # the store listens at MASTER_PORT
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": str(int(self.script == LOCKSTEP_WORKER)),
        }


def host_of(worker: Worker) -> str:
    """Return the name of the worker's host."""
    return worker.env["TEST_HOST"]


def on_host(workers: list[Worker], name: str) -> Worker:
    """Return the only one of these workers on the host of this name."""
    (worker,) = (worker for worker in workers if host_of(worker) == name)
    return worker
