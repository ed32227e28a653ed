"""A server and agents on hosts of their own, and what their workers lost of their training."""

import signal
import ssl
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from rdzv_protocol.paths import DEFAULT_PORT

from tests.hosts.network import DEVICE, Host, Network
from tests.hosts.switch import Switch
from tests.support.cluster import Cluster
from tests.support.programs import Program, Server
from tests.support.worker_hub import Worker, WorkerHub

SERVER = "s"
LOCKSTEP_WORKER = str(Path(__file__).with_name("lockstep_worker.py"))
CHECKPOINT_EVERY = 10
"""Steps from one checkpoint to the next: a restart may lose fewer than these."""


class ServerOnHost(Server):
    """An `rdzv-server` on a host of the network."""

    host: Host
    tls: ssl.SSLContext | None = None
    token: str = ""
    """How the test looks at a server that does not let everybody."""

    @classmethod
    async def serve(cls, host: Host, *flags: str) -> "ServerOnHost":
        server = await host.start(cls, sys.executable, "-m", "rdzv_server", "--store", "memory", *flags)
        assert isinstance(server, ServerOnHost)
        server.host, server.port = host, DEFAULT_PORT
        await server.line("listening on")
        return server

    @property
    def endpoint(self) -> str:
        return self.host.authority(self.port)

    async def get(self, path: str) -> str:
        return await self.host.get(self.port, path, self.tls, self.token)


class Hosts(Cluster):
    """Agents on the hosts of a network, by the hosts' names; the server is on host `s`.

    Their workers are in lock-step over the network, unless `script` is another.
    """

    nproc = 1

    def __init__(self, hub: WorkerHub, network: Network, training: Path) -> None:
        super().__init__(hub)
        self.network = network
        self.script = LOCKSTEP_WORKER
        self._training = training

    @property
    def switch(self) -> Switch:
        return self.network.switch

    async def serve(self, *flags: str, port: int = DEFAULT_PORT) -> Server:
        self.servers.append(await ServerOnHost.serve(self.network[SERVER], *flags))
        return self.server

    async def node(
        self, node_id: str, *flags: str, nproc: int | None = None, env: dict[str, str] | None = None
    ) -> Program:
        """Start an agent of the run on the host of this name."""
        return await self.agent(
            node_id, "--endpoint", self.server.endpoint, "--nproc", str(nproc or self.nproc), *flags, env=env
        )

    async def agent(self, name: str, *flags: str, env: Mapping[str, str] | None = None) -> Program:
        """Start an agent on the host of this name, which finds its server as the flags say."""
        command = (sys.executable, "-m", "node_agent", "--node-id", name, *flags, self.script)
        environment = {**self._environment(name), **(env or {})}
        self.agents[name] = await self.network[name].start(Program, *command, env=environment)
        return self.agents[name]

    async def finish(self, workers: list[Worker]) -> None:
        """Let these workers exit, and every agent with them; no process is left but the server's."""
        await super().finish(workers)
        assert self.network.processes() == {SERVER: [server.pid for server in self.servers]}

    async def vanish(self, name: str) -> None:
        """The host is switched off: nobody hears a last word of it."""
        self.switch.unplug(name)
        agent = self.agents.pop(name)
        agent.signal(signal.SIGKILL)
        await agent.exit_code()

    async def restarts(self) -> dict[str, int]:
        """How often the run was restarted for which cause; all but `worker_failure` are free."""
        restarts = (await self.server.run())["restarts"]
        return {cause: times for cause, times in restarts.items() if times}

    async def silence_s(self, name: str) -> float:
        """How long the server has not heard of the agent on this host."""
        nodes = (await self.server.run())["nodes"]
        (silence_s,) = (node["lease_age_s"] for node in nodes if node["node_id"] == name)
        return float(silence_s)

    def lost_steps(self) -> list[int]:
        """For each restart, how many steps were taken before it and had to be taken again."""
        rounds: dict[str, list[int]] = {}
        for line in (self._training / "journal").read_text().splitlines():
            pid, step = line.split()
            if pid not in rounds or pid == next(reversed(rounds)):  # else one that was cut off ends its last step
                rounds.setdefault(pid, []).append(int(step))
        return [before[-1] - after[0] + 1 for before, after in pairwise(rounds.values())]

    def _environment(self, name: str) -> dict[str, str]:
        return {
            **self.hub.env,
            "TEST_HOST": name,
            "GLOO_SOCKET_IFNAME": DEVICE,  # the hosts have one host name here, which says nothing of their addresses
            **(self._lockstep if self.script == LOCKSTEP_WORKER else {}),
        }

    @property
    def _lockstep(self) -> dict[str, str]:
        return {
            "TEST_TRAINING": str(self._training),
            "TEST_CHECKPOINT_EVERY": str(CHECKPOINT_EVERY),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # rank 0 listens at MASTER_PORT
        }


def host_of(worker: Worker) -> str:
    """The name of the host that the worker is on."""
    return worker.env["TEST_HOST"]


def on_host(workers: list[Worker], name: str) -> Worker:
    """The only one of these workers that is on the host of this name."""
    (worker,) = (worker for worker in workers if host_of(worker) == name)
    return worker
