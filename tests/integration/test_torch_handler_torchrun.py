"""Stock torchrun with `--rdzv-backend=rdzv-server`: real agents of torch, real workers that take steps together.

The last call is far longer than the tests wait: what happens here happens because it was noticed. Restarts are counted
by torchrun, each agent for itself, so that TORCHELASTIC_RESTART_COUNT may differ within a round: it is not looked at.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.process_info import is_running
from tests.support.programs import TORCH_WORKER, Program, Server
from tests.support.worker_hub import Worker, WorkerHub

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
PATIENCE_S = 60.0
"""Every program here imports torch, and its workers do after that."""
CONF = "last_call_timeout=500,join_timeout=500"
TALKATIVE = {"LOGLEVEL": "INFO"}
STANDING_BY = "standing by: round 1 has its 2 nodes"
NO_LAST_CALL = "last_call_timeout=0,join_timeout=500"
SAME_IN_A_ROUND = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE")


class TorchrunDesk(WorkerHub):
    """Where torchrun's workers report: its restart counts may differ within a round."""

    async def group(self, size: int) -> list[Worker]:
        async with asyncio.timeout(PATIENCE_S):
            workers = [await self._arrivals.get() for _ in range(size)]
        workers.sort(key=lambda worker: worker.rank)
        assert [worker.rank for worker in workers] == list(range(size))
        for name in SAME_IN_A_ROUND:
            assert len({worker.env[name] for worker in workers}) == 1, f"{name} differs within a round"
        return workers


class Torchruns:
    """One server, some torchruns of one run, and the hub where their workers report."""

    def __init__(self, server: Server, hub: WorkerHub) -> None:
        self.server = server
        self.hub = hub
        self.agents: dict[str, Program] = {}

    async def start(self, name: str, *flags: str, script: str = TORCH_WORKER, cwd: str | None = None,
                    env: dict[str, str] | None = None, conf: str = CONF) -> Program:  # fmt: skip
        agent = await Program.start(
            TORCHRUN, "--rdzv-backend=rdzv-server", f"--rdzv-endpoint={self.server.endpoint}", "--rdzv-id=nightly",
            "--nproc-per-node=2", "--rdzv-conf", f"{conf},node_id={name}", *flags, script,
            env={**self.hub.env, "OMP_NUM_THREADS": "1", **(env or {})}, cwd=cwd,
        )  # fmt: skip
        self.agents[name] = agent
        return agent

    async def nodes(self, names: str, *flags: str) -> list[Worker]:
        for name in names:
            await self.start(name, *flags)
        return await self.hub.group(2 * len(names))

    async def finish(self, workers: list[Worker]) -> None:
        """Let these workers exit, and every agent with them."""
        for worker in workers:
            worker.order_exit(0)
        for name, agent in self.agents.items():
            assert await agent.exit_code(PATIENCE_S) == 0, f"torchrun {name}: {agent.err}"

    def of(self, workers: list[Worker], group_rank: int) -> str:
        """The name of the torchrun that holds this group rank."""
        worker = next(worker for worker in workers if worker.env["GROUP_RANK"] == str(group_rank))
        parent = int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1])
        return next(name for name, agent in self.agents.items() if agent.pid == parent)

    async def end(self) -> None:
        for agent in self.agents.values():
            if agent.process.returncode is None:
                agent.signal(signal.SIGTERM)
        for agent in self.agents.values():
            await agent.exit_code(PATIENCE_S)
        for worker in self.hub.all:
            if is_running(worker.pid):  # a killed torchrun leaves its workers behind
                os.kill(worker.pid, signal.SIGKILL)
            await worker.gone(5.0)
        await self.server.end()


@pytest.fixture
async def torchruns(tmp_path: Path) -> AsyncIterator[Torchruns]:
    async with TorchrunDesk(tmp_path / "hub") as hub:
        torchruns = Torchruns(await Server.listen(), hub)
        try:
            yield torchruns
        finally:
            await torchruns.end()


async def test_a_run_of_two_nodes_is_on_the_status_page_and_succeeds(torchruns: Torchruns) -> None:
    workers = await torchruns.nodes("ab", "--nnodes=2")
    run = await torchruns.server.run()
    assert (run["run_id"], run["phase"], run["round"]) == ("nightly", "running", 1)
    assert {node["node_id"]: node["state"] for node in run["nodes"]} == {"a": "running", "b": "running"}
    assert {int(worker.env["MASTER_PORT"]) for worker in workers} == {run["nodes"][0]["port"]}
    await torchruns.finish(workers)
    run = await torchruns.server.run()
    assert (run["phase"], run["reason"]) == ("succeeded", "all workers of 2 nodes exited 0")
    late = await torchruns.start("c", "--nnodes=2")
    assert await late.exit_code(PATIENCE_S) == 0, "the run has succeeded: a late node has nothing to do"


async def test_a_killed_worker_restarts_every_node_once(torchruns: Torchruns) -> None:
    first = await torchruns.nodes("ab", "--nnodes=2", "--max-restarts=3")
    os.kill(first[3].pid, signal.SIGKILL)
    second = await torchruns.hub.group(4)
    assert first[0].env["MASTER_PORT"] != second[0].env["MASTER_PORT"]
    await torchruns.finish(second)
    run = await torchruns.server.run()
    assert run["restarts"] == {"worker_failure": 1, "node_lost": 0, "node_left": 0, "node_arrived": 0}


async def test_a_third_node_makes_the_run_larger(torchruns: Torchruns) -> None:
    for name in "ab":
        await torchruns.start(name, "--nnodes=2:3", "--max-restarts=3", conf=NO_LAST_CALL)
    await torchruns.hub.group(4)
    await torchruns.start("c", "--nnodes=2:3", "--max-restarts=3", conf=NO_LAST_CALL)
    larger = await torchruns.hub.group(6)
    await torchruns.finish(larger)
    run = await torchruns.server.run()
    assert (run["phase"], run["restarts"]["node_arrived"], run["restart_count"]) == ("succeeded", 1, 0)


async def test_the_others_go_on_when_the_node_of_rank_0_is_killed(torchruns: Torchruns) -> None:
    first = await torchruns.nodes("ab", "--nnodes=1:2", "--max-restarts=3")
    lost = torchruns.of(first, group_rank=0)
    agent = torchruns.agents.pop(lost)
    agent.signal(signal.SIGKILL)
    second = await torchruns.hub.group(2)
    await torchruns.finish(second)
    assert await agent.exit_code() == -signal.SIGKILL
    run = await torchruns.server.run()
    assert (run["phase"], run["restarts"]["node_lost"]) == ("succeeded", 1)
    assert [gone["node_id"] for gone in run["departures"]] == [lost]


async def test_a_spare_takes_a_lost_nodes_place(torchruns: Torchruns) -> None:
    first = await torchruns.nodes("ab", "--nnodes=2", "--max-restarts=3")
    spare = await torchruns.start("c", "--nnodes=2", "--max-restarts=3", env=TALKATIVE)
    await spare.line(STANDING_BY)
    agent = torchruns.agents.pop(torchruns.of(first, group_rank=1))
    agent.signal(signal.SIGKILL)
    second = await torchruns.hub.group(4)
    assert torchruns.of(second, group_rank=1) == "c"
    await torchruns.finish(second)
    assert await agent.exit_code() == -signal.SIGKILL


async def test_a_spare_exits_0_when_the_run_has_succeeded(torchruns: Torchruns) -> None:
    workers = await torchruns.nodes("ab", "--nnodes=2")
    spare = await torchruns.start("c", "--nnodes=2", env=TALKATIVE)
    await spare.line(STANDING_BY)
    await torchruns.finish(workers)
    assert not any("Traceback" in line for line in spare.err)


async def test_a_torchrun_without_restarts_left_ends_the_run_everywhere(torchruns: Torchruns) -> None:
    workers = await torchruns.nodes("ab", "--nnodes=1:2")
    blamed = torchruns.of(workers, group_rank=1)
    workers[2].order_exit(7)
    for agent in torchruns.agents.values():
        assert await agent.exit_code(PATIENCE_S) == 1
    run = await torchruns.server.run()
    assert run["phase"] == "failed"
    assert f"on node {blamed} failed: exit code 7, and torchrun has no restarts left" in run["reason"]


async def test_a_torchrun_that_is_told_to_go_leaves_and_the_others_go_on(torchruns: Torchruns) -> None:
    first = await torchruns.nodes("ab", "--nnodes=1:2", "--max-restarts=3")
    leaver = torchruns.of(first, group_rank=0)
    agent = torchruns.agents.pop(leaver)
    agent.signal(signal.SIGTERM)
    second = await torchruns.hub.group(2)
    await torchruns.finish(second)
    assert await agent.exit_code() != 0
    (gone,) = (await torchruns.server.run())["departures"]
    assert (gone["node_id"], gone["left"], gone["cause"]) == (leaver, True, "torchrun exits")


async def test_other_settings_than_the_runs_are_refused_with_both_values(torchruns: Torchruns) -> None:
    workers = await torchruns.nodes("a", "--nnodes=1")
    refused = await torchruns.start("b", "--nnodes=2")
    assert await refused.exit_code(PATIENCE_S) == 1
    assert any("RendezvousError: run nightly has other settings: min_nodes is 1 here, not 2" in e for e in refused.err)
    del torchruns.agents["b"]
    await torchruns.finish(workers)


async def test_a_protocol_module_of_the_users_own_is_the_users(torchruns: Torchruns, tmp_path: Path) -> None:
    (tmp_path / "protocol.py").write_text("WHOSE = 'the user'\n")
    (tmp_path / "train.py").write_text(
        "import torch.distributed.elastic.rendezvous, protocol\nprint('the script sees', protocol.WHOSE)\n"
    )
    agent = await torchruns.start("a", script="train.py", cwd=str(tmp_path), env={"PYTHONPATH": "."})
    assert await agent.exit_code(PATIENCE_S) == 0, agent.err
    assert agent.out == ["the script sees the user"] * 2
    assert (await torchruns.server.run())["phase"] == "succeeded"
