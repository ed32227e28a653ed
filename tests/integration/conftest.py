"""A cluster of real processes on loopback, and the promise that nothing of it is left after a test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.desk import Desk, WorkerAtDesk
from tests.integration.programs import WORKER, Program, Server, start_agent


class Cluster:
    """One server, its agents, and the desk where their workers report."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.agents: dict[str, Program] = {}
        self.servers: list[Server] = []
        self.script = WORKER

    @property
    def server(self) -> Server:
        return self.servers[-1]

    async def serve(self, *flags: str, port: int = 0) -> Server:
        self.servers.append(await Server.listen(*flags, port=port))
        return self.server

    async def node(self, node_id: str, *flags: str, nproc: int = 2, env: dict[str, str] | None = None) -> Program:
        """Start an agent of the run."""
        agent = await start_agent(
            "--endpoint", self.server.endpoint, "--node-id", node_id, "--nproc", str(nproc), *flags,
            script=self.script, env={**self.desk.env, **(env or {})},
        )  # fmt: skip
        self.agents[node_id] = agent
        return agent

    async def nodes(self, names: str, *flags: str, nproc: int = 2) -> list[WorkerAtDesk]:
        """Start one agent for each letter of `names`, and return their first round's workers."""
        for name in names:
            await self.node(name, *flags, nproc=nproc)
        return await self.desk.group(nproc * len(names))

    async def finish(self, workers: list[WorkerAtDesk], *, code: int = 0) -> None:
        """Let these workers exit, and every agent with them."""
        for worker in workers:
            worker.order_exit(code)
        for name, agent in self.agents.items():
            assert await agent.exit_code() == 0, f"agent {name}: {agent.err}"

    async def end(self) -> None:
        for program in [*self.agents.values(), *self.servers]:
            await program.end()
        for worker in self.desk.all:
            await worker.gone(5.0)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with Desk(tmp_path / "desk") as desk:
        yield desk


@pytest.fixture
async def cluster(desk: Desk) -> AsyncIterator[Cluster]:
    cluster = Cluster(desk)
    await cluster.serve()
    try:
        yield cluster
    finally:
        await cluster.end()
    assert desk.survivors() == []


@pytest.fixture(params=[pytest.param("plain"), pytest.param("torch", marks=pytest.mark.torch)])
def any_cluster(request: pytest.FixtureRequest, cluster: Cluster) -> Cluster:
    """The cluster with workers that do not notice each other's end, and with torch workers, which do."""
    if request.param == "torch":
        pytest.importorskip("torch")
        cluster.script = str(Path(WORKER).with_name("torch_worker.py"))
    return cluster
