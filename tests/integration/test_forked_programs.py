"""A forked program does not import modules of the project, aiohttp or asyncio: its parent has imported them."""

import signal
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.forked import IMPORTS
from tests.support.rdzvctl import rdzvctl
from tests.support.worker_hub import WorkerHub

IMPORTED_BEFORE = ("rdzv_protocol", "rdzv_server", "node_agent", "rdzvctl", "aiohttp", "asyncio")


def imported_again(report: Path) -> list[str]:
    return [name for name in report.read_text().splitlines() if name.partition(".")[0] in IMPORTED_BEFORE]


async def test_forks_of_a_server_an_agent_and_rdzvctl_import_no_module(hub: WorkerHub, tmp_path: Path) -> None:
    server, agent, command = (tmp_path / name for name in ("server", "agent", "command"))
    async with Cluster(hub) as cluster:
        await cluster.serve(env={IMPORTS: str(server)})
        await cluster.node("a", env={IMPORTS: str(agent)})
        workers = await hub.group(2)
        await rdzvctl("status", endpoint=cluster.endpoint, env={IMPORTS: str(command)})
        await cluster.server.get("/metrics")
        await cluster.finish(workers)
        cluster.server.signal(signal.SIGTERM)
        assert await cluster.server.exit_code() == 0
    assert {each.name: imported_again(each) for each in (server, agent, command)} == {
        "server": [], "agent": [], "command": [],
    }  # fmt: skip
