"""Stock torchrun with `--rdzv-backend=rdzv-server`: real torch agents, and in some tests workers with torch too.

The last call is far longer than the tests wait, so that timer does not cause events. Each torchrun counts restarts for
itself, so TORCHELASTIC_RESTART_COUNT may differ within a round and is not checked.
"""

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rdzv_protocol.actions import DRAIN

from node_agent import words
from rdzv_server.words import completion, runs
from tests.support.launchers import warm_torch
from tests.support.process_info import is_running
from tests.support.programs import TORCH_WORKER, WORKER, Program, Server
from tests.support.worker_hub import Worker, WorkerHub

pytestmark = pytest.mark.torch

PATIENCE_S = 60.0
"""Seconds to wait: every torchrun imports torch, and some workers do after that."""
CONF = "last_call_timeout=500,join_timeout=500"
NO_LAST_CALL = "last_call_timeout=0,join_timeout=500"
TALKATIVE = {"LOGLEVEL": "INFO"}
STANDING_BY = completion.standby_full(1, 2)


class TorchrunHub(WorkerHub):
    same_in_a_round = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE")
    patience_s = PATIENCE_S


class Torchruns:
    """One server, some torchruns of one run, and the hub where their workers report."""

    def __init__(self, server: Server, hub: WorkerHub) -> None:
        self.server = server
        self.hub = hub
        self.agents: dict[str, Program] = {}

    async def start(self, name: str, *flags: str, script: str = WORKER, env: dict[str, str] | None = None,
                    conf: str = CONF) -> Program:  # fmt: skip
        agent = self.agents[name] = await Program.torchrun(
            "--rdzv-backend=rdzv-server", f"--rdzv-endpoint={self.server.endpoint}", "--rdzv-id=nightly",
            "--nproc-per-node=2", "--rdzv-conf", f"{conf},node_id={name}", *flags, script,
            env={**self.hub.env, "OMP_NUM_THREADS": "1", **(env or {})},
        )  # fmt: skip
        return agent

    async def nodes(self, names: str, *flags: str, script: str = WORKER, env: dict[str, str] | None = None,
                    conf: str = CONF) -> list[Worker]:  # fmt: skip
        """Return the workers of the round that nodes of these names form."""
        for name in names:
            await self.start(name, *flags, script=script, env=env, conf=conf)
        return await self.hub.group(2 * len(names))

    async def finish(self, workers: list[Worker]) -> None:
        """Let these workers exit, and every agent with them."""
        for worker in workers:
            worker.order_exit(0)
        for name, agent in self.agents.items():
            assert await agent.exit_code(PATIENCE_S) == 0, f"torchrun {name}: {agent.err}"

    def of(self, workers: list[Worker], group_rank: int) -> str:
        """Return the name of the torchrun with this group rank."""
        worker = next(worker for worker in workers if worker.group_rank == group_rank)
        parent = int(worker.env.get("LAUNCHER_PID", worker.agent_pid))
        return next(name for name, agent in self.agents.items() if agent.pid == parent)

    async def lose(self, workers: list[Worker], group_rank: int, signum: signal.Signals) -> tuple[str, Program]:
        """Signal the torchrun with this group rank. The others continue without it."""
        name = self.of(workers, group_rank)
        agent = self.agents.pop(name)
        agent.signal(signum)
        return name, agent


@pytest.fixture
async def torchruns(programs: None, tmp_path: Path) -> AsyncIterator[Torchruns]:
    async with TorchrunHub(tmp_path / "hub") as hub:
        yield Torchruns(await Server.listen(), hub)
        for worker in hub.all:
            if is_running(worker.pid):  # a killed torchrun leaves its workers behind
                os.kill(worker.pid, signal.SIGKILL)


async def test_a_run_of_two_nodes_is_on_the_status_page_and_succeeds(torchruns: Torchruns) -> None:
    workers = await torchruns.nodes("ab", "--nnodes=2")
    run = await torchruns.server.run()
    assert (run["run_id"], run["phase"], run["round"]) == ("nightly", "running", 1)
    assert {node["node_id"]: node["state"] for node in run["nodes"]} == {"a": "running", "b": "running"}
    assert {int(worker.env["MASTER_PORT"]) for worker in workers} == {run["nodes"][0]["port"]}
    await torchruns.finish(workers)
    run = await torchruns.server.run()
    assert (run["phase"], run["reason"]) == ("succeeded", runs.succeeded(2))
    late = await torchruns.start("c", "--nnodes=2")
    assert await late.exit_code(PATIENCE_S) == 0, "the run has succeeded: a late node has nothing to do"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(WORKER, id="plain workers"),
        pytest.param(TORCH_WORKER, id="workers with torch", marks=pytest.mark.xdist_group("warm torch")),
    ],
)
async def test_a_killed_worker_restarts_every_node_once(torchruns: Torchruns, script: str, tmp_path: Path) -> None:
    python = warm_torch(tmp_path) if script == TORCH_WORKER else None
    first = await torchruns.nodes("ab", "--nnodes=2", "--max-restarts=3", script=script, env=python)
    os.kill(first[3].pid, signal.SIGKILL)
    second = await torchruns.hub.group(4)
    assert first[0].env["MASTER_PORT"] != second[0].env["MASTER_PORT"]
    await torchruns.finish(second)
    run = await torchruns.server.run()
    assert {cause: times for cause, times in run["restarts"].items() if times} == {"worker_failure": 1}


async def test_a_third_node_makes_the_run_larger(torchruns: Torchruns) -> None:
    await torchruns.nodes("ab", "--nnodes=2:3", "--max-restarts=3", conf=NO_LAST_CALL)
    await torchruns.start("c", "--nnodes=2:3", "--max-restarts=3", conf=NO_LAST_CALL)
    larger = await torchruns.hub.group(6)
    await torchruns.finish(larger)
    run = await torchruns.server.run()
    assert (run["phase"], run["restarts"]["node_arrived"], run["restart_count"]) == ("succeeded", 1, 0)


@pytest.mark.xdist_group("warm torch")
async def test_the_others_continue_when_the_node_of_rank_0_is_killed(torchruns: Torchruns, tmp_path: Path) -> None:
    python = warm_torch(tmp_path)
    first = await torchruns.nodes("ab", "--nnodes=1:2", "--max-restarts=3", script=TORCH_WORKER, env=python)
    lost, _ = await torchruns.lose(first, 0, signal.SIGKILL)
    second = await torchruns.hub.group(2)
    await torchruns.finish(second)
    run = await torchruns.server.run()
    assert (run["phase"], run["restarts"]["node_lost"]) == ("succeeded", 1)
    assert [gone["node_id"] for gone in run["departures"]] == [lost]


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
    assert f"on node {blamed} failed: {words.torchrun.no_restarts_left('exit code 7')}" in run["reason"]


async def test_a_torchrun_that_gets_a_stop_signal_leaves_and_the_others_continue(torchruns: Torchruns) -> None:
    first = await torchruns.nodes("ab", "--nnodes=1:2", "--max-restarts=3")
    leaver, agent = await torchruns.lose(first, 0, signal.SIGTERM)
    second = await torchruns.hub.group(2)
    await torchruns.finish(second)
    assert await agent.exit_code() != 0
    (gone,) = (await torchruns.server.run())["departures"]
    assert (gone["node_id"], gone["left"], gone["cause"]) == (leaver, True, "torchrun exits")


async def test_a_drained_torchrun_exits_and_the_others_continue(torchruns: Torchruns) -> None:
    await torchruns.nodes("ab", "--nnodes=1:2")
    body = json.dumps({"node_id": "b", "deadline_s": 60}).encode()
    request = urllib.request.Request(f"http://{torchruns.server.endpoint}{DRAIN.path}", body)
    await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).close())
    assert await torchruns.agents.pop("b").exit_code(PATIENCE_S) == 1
    await torchruns.finish(await torchruns.hub.group(2))
