"""A cluster of real processes on loopback, all of which end with the test."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.programs import AGENT, WORKER, Program, Server, start_agent
from tests.support.worker_hub import Worker, WorkerHub

ALL_COME = ("--last-call-timeout", "500")
"""Flags of a run that starts only with all of its nodes, even if one takes long to start."""
PATIENT = (*ALL_COME, "--lease", "500", "--join-timeout", "500", "--shutdown-timeout", "5")
"""Flags with long timers, so that events in such a run cannot come from a timer."""


def straggling(folder: Path, *, is_slow: bool = False) -> dict[str, str]:
    """Return the environment of a `STRAGGLING_WORKER`. All workers of a run share the folder."""
    return {"STEPS": str(folder), "NODE_IS_SLOW": str(int(is_slow))}


class Cluster:
    """Servers, the agents started last by node name, and the hub to which their workers report.

    It is an async context manager that ends every process. `server_flags`: flags of every server.
    """

    agent_flags: Sequence[str] = ()

    nproc = 2
    """Workers of a node unless a test sets another number."""
    python: Sequence[str] = AGENT
    """Arguments with which the interpreter becomes an agent."""
    has_forked_agents = True
    """Whether agents are forked. If False, an agent's process has its own command line and environment."""

    def __init__(self, hub: WorkerHub, *server_flags: str) -> None:
        self.hub = hub
        self.agents: dict[str, Program] = {}
        self.servers: list[Server] = []
        self.script: str | Path = WORKER
        self.server_flags = server_flags

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.end()
        assert self.hub.survivors() == []

    async def end(self) -> None:
        """End every program, and wait for the workers to end too."""
        for program in [*self.agents.values(), *self.servers]:
            await program.end()
        for worker in self.hub.all:
            await worker.gone(5.0)

    # Servers.

    @property
    def server(self) -> Server:
        """The server that was started last."""
        return self.servers[-1]

    @property
    def endpoint(self) -> str:
        """Value of an agent's `--endpoint`."""
        return self.server.endpoint

    async def serve(
        self, *flags: str, port: int = 0, env: Mapping[str, str] | None = None, is_forked: bool = True
    ) -> Server:  # fmt: skip
        self.servers.append(await Server.listen(*self.server_flags, *flags, port=port, env=env, is_forked=is_forked))
        return self.server

    async def lose_server(self) -> None:
        """Kill the server."""
        await self.server.kill()

    async def regain_server(self) -> None:
        """Start the server again, at its port."""
        await self.serve(port=self.server.port)

    async def restart_server(self) -> None:
        await self.lose_server()
        await self.regain_server()

    async def restarts(self) -> dict[str, int]:
        """Return the restarts of the run by cause. All but `worker_failure` are free."""
        restarts = (await self.server.run())["restarts"]
        return {cause: times for cause, times in restarts.items() if times}

    # Nodes.

    async def node(self, node_id: str, *flags: str, nproc: int = 0, env: Mapping[str, str] | None = None) -> Program:
        """Start an agent of the run."""
        place = ("--endpoint", self.endpoint, "--node-id", node_id, "--nproc", str(nproc or self.nproc))
        return await self.agent(node_id, *place, *self.agent_flags, *flags, env=env)

    async def agent(self, name: str, *flags: str, env: Mapping[str, str] | None = None) -> Program:
        """Start an agent that finds its server by the given flags."""
        environment = {**self.hub.env, **(env or {})}
        self.agents[name] = await start_agent(
            *flags, script=self.script, python=self.python, env=environment, is_forked=self.has_forked_agents
        )
        return self.agents[name]

    async def nodes(self, names: str, *flags: str, nproc: int = 0) -> list[Worker]:
        """Start one agent for each letter of `names`, and return their first round's workers."""
        for name in names:
            await self.node(name, *flags, nproc=nproc)
        return await self.hub.group((nproc or self.nproc) * len(names))

    async def finish(self, workers: list[Worker]) -> None:
        """Let these workers exit, and every agent with them."""
        for worker in workers:
            worker.order_exit(0)
        for name, agent in self.agents.items():
            assert await agent.exit_code() == 0, f"agent {name}: {agent.err}"
