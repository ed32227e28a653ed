"""Evictions: a scheduler signals every process of a job in some order, and workers exit 0. No such run has succeeded.

The order is kept: a process gets its signal only when the effect of the previous signal can be seen.
"""

import asyncio
import itertools
import os
import signal
import sys
from contextlib import suppress

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import has_message, pattern
from tests.support.process_info import until
from tests.support.programs import Program, start_agent
from tests.support.worker_hub import Worker, WorkerHub

GAPS_S = (0.0, 0.005, 0.02, 0.2)
SIDE_BY_SIDE = 4
"""Runs that are evicted at the same time. More would compete for processor time."""
READY = "is ready"
NAMED = ("--signals-to-handle", "SIGTERM,SIGUSR1")
WRAPPED = ("--no-python", "sh", "-c", '"$0" "$1"; exit $?', sys.executable)


class Job:
    """One run at the server of a cluster. Each of its nodes has `nproc` workers that exit 0 on this signal."""

    def __init__(self, cluster: Cluster, name: str, nodes: str, nproc: int, signal_name: str = "SIGTERM") -> None:
        self._cluster, self._name, self._nodes, self._nproc = cluster, name, nodes, nproc
        self._signal_name = signal_name
        self.agents: dict[str, Program] = {}
        self.workers: dict[str, Worker] = {}

    async def start(self) -> None:
        flags = (
            "--run-id",
            self._name,
            "--nnodes",
            str(len(self._nodes)),
            "--nproc",
            str(self._nproc),
            *PATIENT,
            *NAMED,
        )
        for node in self._nodes:
            at = ("--endpoint", self._cluster.endpoint, "--node-id", node)
            self.agents[node] = await start_agent(*at, *flags, env=self._cluster.hub.env)
        await until(lambda: len(self._own()) == len(self._nodes) * self._nproc)
        for worker in self._own():
            await heeds(worker, self._signal_name)
            self.workers[f"{worker.env['LOCAL_RANK']}{self._node_of(worker)}"] = worker
        await until(lambda: all(agent.out.count(READY) == self._nproc for agent in self.agents.values()))

    async def evict(self, order: tuple[str, ...], gap_s: float) -> None:
        """Signal all processes in this order: agents by their node's name, workers with a local rank before it."""
        for target in order:
            if worker := self.workers.get(target):
                await end(worker, self._signal_name)
            else:
                self.agents[target].signal(signal.Signals[self._signal_name])
                await self.agents[target].line(leaving(self._signal_name))
            await asyncio.sleep(gap_s)

    async def has_not_succeeded(self) -> None:
        codes = {node: await agent.exit_code() for node, agent in self.agents.items()}
        assert codes == dict.fromkeys(self.agents, ExitCode.START_AGAIN)
        runs = (await self._cluster.server.status())["runs"]
        (phase,) = (run["phase"] for run in runs if run["run_id"] == self._name)
        assert phase not in ("succeeded", "failed")

    def _own(self) -> list[Worker]:
        return [each for each in self._cluster.hub.all if each.env["TORCHELASTIC_RUN_ID"] == self._name]

    def _node_of(self, worker: Worker) -> str:
        (node,) = (node for node, agent in self.agents.items() if agent.pid == worker.agent_pid)
        return node


async def heeds(worker: Worker, signal_name: str = "SIGTERM") -> None:
    """Make the worker exit 0 on this signal, and write that it is ready."""
    await worker.tell(f"heed {signal_name}")
    await worker.tell(f"say {READY}")


async def end(worker: Worker, signal_name: str = "SIGTERM") -> None:
    """Send this signal to the worker, unless its agent has stopped it, and return when it has ended."""
    with suppress(ProcessLookupError):
        os.kill(worker.pid, signal.Signals[signal_name])
    await worker.gone()


def leaving(signal_name: str) -> str:
    return pattern(words.leaving.leaving, why=signal_name)


def orders(nodes: str, nproc: int) -> list[tuple[str, ...]]:
    """Return the orders of all processes of these nodes. All nodes are alike, and all workers of a node."""
    workers = [f"{rank}{node}" for node in nodes for rank in range(nproc)]
    return [
        order
        for order in itertools.permutations([*workers, *nodes])
        if [each for each in order if each in nodes] == [*nodes]
        and all(
            [each for each in order if each[1:] == node] == [f"{rank}{node}" for rank in range(nproc)] for node in nodes
        )
    ]


@pytest.mark.parametrize("gap_s", GAPS_S)
@pytest.mark.parametrize(("nodes", "nproc"), [("a", 2), ("ab", 1)], ids=["one node", "all nodes"])
@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGUSR1"])
async def test_an_eviction_is_not_a_success_in_any_order_of_signals(
    cluster: Cluster, nodes: str, nproc: int, gap_s: float, signal_name: str
) -> None:
    jobs = [(Job(cluster, "-".join(order), nodes, nproc, signal_name), order) for order in orders(nodes, nproc)]
    for first in range(0, len(jobs), SIDE_BY_SIDE):
        batch = jobs[first : first + SIDE_BY_SIDE]
        await asyncio.gather(*(job.start() for job, _ in batch))
        await asyncio.gather(*(job.evict(order, gap_s) for job, order in batch))
        await asyncio.gather(*(job.has_not_succeeded() for job, _ in batch))


async def evicted(hub: WorkerHub, *flags: str) -> Program:
    """Return the agent of one node that has its own server, after its worker has got SIGTERM first."""
    agent = await start_agent(*flags, env=hub.env)
    (worker,) = await hub.group(1)
    await heeds(worker)
    await agent.line(READY)
    await end(worker)
    await asyncio.sleep(GAPS_S[-1])
    agent.signal(signal.SIGTERM)
    return agent


@pytest.mark.parametrize("gap_s", GAPS_S)
async def test_a_named_signal_that_kills_a_worker_before_its_agent_gets_it_is_not_a_failure(
    cluster: Cluster, gap_s: float
) -> None:
    (worker,) = await cluster.nodes("a", "--nnodes", "1", "--max-restarts", "0", *NAMED, nproc=1)
    agent = cluster.agents.pop("a")
    await end(worker, "SIGUSR1")
    await asyncio.sleep(gap_s)
    agent.signal(signal.SIGUSR1)
    assert await agent.exit_code() == ExitCode.START_AGAIN


@pytest.mark.parametrize("gap_s", GAPS_S)
@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("program", ["a shell", "a handler"])
async def test_a_worker_that_ends_by_another_code_before_its_agent_gets_the_signal_has_not_failed(
    cluster: Cluster, program: str, signal_name: str, gap_s: float
) -> None:
    """A shell exits with 128 and the number of the signal that killed its program. A handler may exit with any code."""
    wrapped = WRAPPED if program == "a shell" else ()
    (worker,) = await cluster.nodes("a", "--nnodes", "1", "--max-restarts", "0", *NAMED, *wrapped, nproc=1)
    agent = cluster.agents.pop("a")
    if not wrapped:
        await worker.tell(f"heed {signal_name} 3")
        await worker.tell(f"say {READY}")
        await agent.line(READY)
    await end(worker, signal_name)
    await asyncio.sleep(gap_s)
    agent.signal(signal.Signals[signal_name])
    assert await agent.exit_code() == ExitCode.START_AGAIN
    assert (await cluster.server.run())["phase"] == "restarting"


@pytest.mark.parametrize(("is_first", "gap_s"), [(True, 0.0), (True, 0.2), (False, 0.0), (False, 0.2), (False, 1.0)])
@pytest.mark.parametrize("code", ["", "1"], ids=["dies", "exits 1"])
async def test_a_run_survives_the_eviction_of_a_node_while_others_save(
    cluster: Cluster, code: str, is_first: bool, gap_s: float
) -> None:
    """The agent announces its leave, and stays until the workers of all nodes have saved.

    `is_first`: whether the worker gets its signal first.
    """
    flags = ("--nnodes", "1:2", "--max-restarts", "0", "--last-call-timeout", "2", "--notice-timeout", "10")
    workers = await cluster.nodes("ab", *flags, nproc=1)
    agent = cluster.agents.pop("a")
    (evicted,) = (worker for worker in workers if worker.agent_pid == agent.pid)
    for worker in workers:
        await worker.tell("listen")
    if code:
        await evicted.tell(f"heed SIGTERM {code}")
        await evicted.tell(f"say {READY}")
        await agent.line(READY)
    signals = [lambda: os.kill(evicted.pid, signal.SIGTERM), lambda: agent.signal(signal.SIGTERM)]
    for send in signals if is_first else reversed(signals):
        send()
        await asyncio.sleep(gap_s)
    assert await agent.exit_code() == ExitCode.START_AGAIN
    (last,) = await cluster.hub.group(1)
    assert await cluster.restarts() == {"node_left": 1}
    await cluster.finish([last])


@pytest.mark.parametrize("late", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_that_comes_while_an_agent_ends_does_not_change_the_exit_code(
    cluster: Cluster, late: signal.Signals
) -> None:
    (worker,) = await cluster.nodes("a", "--nnodes", "1", nproc=1)
    agent = cluster.agents.pop("a")
    worker.order_exit(0)
    await agent.line(pattern(words.progress.run_succeeded))
    await agent.signal_until_ended(late)
    assert await agent.exit_code() == ExitCode.SUCCEEDED


async def test_a_shell_that_exits_0_after_its_program_was_evicted_has_not_succeeded(hub: WorkerHub) -> None:
    agent = await evicted(hub, "--standalone", "--nproc", "1", *WRAPPED)
    assert await agent.exit_code() == ExitCode.FAILED
    assert has_message(agent.said, words.leaving.leaving_after_success, why="SIGTERM")


async def test_an_agent_with_a_server_in_its_own_process_has_not_succeeded(hub: WorkerHub) -> None:
    agent = await evicted(hub, "--standalone", "--nproc", "1")
    assert await agent.exit_code() == ExitCode.FAILED, "as torchrun's command lines do"
    assert has_message(agent.said, words.leaving.leaving_after_success, why="SIGTERM")


async def test_an_agent_that_hosts_its_server_has_not_succeeded(hub: WorkerHub, unused_tcp_port: int) -> None:
    backend = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{unused_tcp_port}", "--rdzv-id", "job")
    agent = await evicted(hub, "--nnodes", "1", "--nproc", "1", *backend)
    assert await agent.exit_code() == ExitCode.FAILED
    assert has_message(agent.said, words.leaving.leaving_after_success, why="SIGTERM")


async def test_a_run_succeeds_if_only_its_workers_got_a_signal(cluster: Cluster) -> None:
    """The agent waits for a signal of its own, which never comes."""
    (worker,) = await cluster.nodes("a", "--nnodes", "1", nproc=1)
    await heeds(worker)
    await cluster.agents["a"].line(READY)
    await end(worker)
    assert await cluster.agents["a"].exit_code() == ExitCode.SUCCEEDED
