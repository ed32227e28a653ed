"""Workers that do not end, and agents in a bad state: every agent exits within its bound, and nothing is left.

The bound: `--shutdown-timeout` for the workers, two seconds for a last message to the server, two for a console that
takes nothing. A worker that survives SIGKILL adds another 30 s, shortened to one here.
"""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from node_agent.kernel.leave_signals import ONE_REQUEST_S
from node_agent.kernel.workers.group import LEFT_S
from rdzv_server.words import completion
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import has_message, pattern
from tests.support.outages import LOST
from tests.support.process_info import children, command_line, ended, is_running, state, until
from tests.support.programs import WORKER, Program, Server, refuses, start_agent
from tests.support.worker_hub import Worker, WorkerHub

GRACE_S = 0.5
LIMIT = "--shutdown-timeout"
GRACE = (LIMIT, str(GRACE_S))
BUSY_S = 5.0
"""Seconds that a busy machine may need in addition to the time that the rules allow."""
LAST_WORD_S, CONSOLE_S = 2.0, 2.0
KILL_S = 1.0
MAIN = "from node_agent.cli.main import main; raise SystemExit(main())"
IMPATIENT = f"from node_agent.kernel.processes import process; process.KILL_TIMEOUT_S = {KILL_S}; {MAIN}"
"""A real agent, except that it waits one second instead of 30 for a worker that survives SIGKILL."""


@asynccontextmanager
async def within(seconds: float, *, at_least: float = 0.0) -> AsyncIterator[None]:
    """Bound the time of a block, also from below if it must wait for something."""
    began = time.monotonic()
    async with asyncio.timeout(seconds + BUSY_S):
        yield
    assert time.monotonic() - began >= at_least


async def leaves(
    agent: Program, within_s: float, signum: signal.Signals = signal.SIGTERM, *, at_least: float = 0.0
) -> None:
    """Check that the agent exits in time after a signal."""
    async with within(within_s, at_least=at_least):
        agent.signal(signum)
        assert await agent.exit_code() == ExitCode.START_AGAIN
    assert not any("Traceback" in line for line in agent.err)


# Workers that ignore a signal.


def names_killed(line: str) -> bool:
    """Return whether the line names workers, of two, that were killed after their grace."""
    return any(
        has_message(line, words.workers.killed_late, ranks=ranks, limit=limit)
        for ranks in ([0], [1], [0, 1])
        for limit in ("", LIMIT)
    )


@pytest.mark.parametrize("signum", ["SIGTERM", "SIGINT"])
async def test_an_agent_kills_workers_that_ignore_its_signal_after_their_grace(cluster: Cluster, signum: str) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", *GRACE)
    for worker in workers:
        await worker.tell(f"ignore {signum}")
    agent = cluster.agents.pop("a")
    await leaves(agent, GRACE_S, signal.Signals[signum], at_least=GRACE_S)
    assert not any(is_running(worker.pid) for worker in workers)
    killed = words.workers.killed_late([0, 1], signum, GRACE_S, LIMIT)
    assert [killed in line for line in agent.err].count(True) == 1


async def test_a_worker_that_ignores_sigterm_holds_up_the_next_round_for_its_grace(cluster: Cluster) -> None:
    first = await cluster.nodes("a", "--nnodes", "1", "--max-restarts", "1", *GRACE)
    await first[0].tell("ignore SIGTERM")
    async with within(GRACE_S, at_least=GRACE_S):
        first[1].order_exit(3)
        second = await cluster.hub.group(2)
    assert not is_running(first[0].pid)
    await cluster.agents["a"].line(
        pattern(words.workers.killed_late, ranks=[0], signal_name="SIGTERM", within_s=GRACE_S, limit=LIMIT)
    )
    await cluster.finish(second)


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_that_a_job_script_forwards_too_leaves_workers_their_grace(
    cluster: Cluster, again: signal.Signals
) -> None:
    """The script's group is signalled, with the agent in it, and the script has a trap that signals the agent."""
    workers = await cluster.nodes("a", "--nnodes", "1", LIMIT, str(ONE_REQUEST_S))
    await workers[0].tell(f"ignore {again.name}")
    await workers[0].tell("ignore SIGTERM")
    agent = cluster.agents.pop("a")
    async with within(ONE_REQUEST_S, at_least=ONE_REQUEST_S):
        agent.signal(signal.SIGTERM)
        await agent.line(pattern(words.leaving.leaving, why="SIGTERM"))
        agent.signal(again)
        assert await agent.exit_code() == ExitCode.START_AGAIN
    assert not any(has_message(line, words.leaving.killing_workers) for line in agent.err)


async def test_a_scheduler_that_ends_all_nodes_of_a_failed_run_leaves_workers_their_grace(cluster: Cluster) -> None:
    """A job's first failed process often makes its scheduler signal all others."""
    grace_s = 3.0  # the signal must come in this time
    workers = await cluster.nodes("ab", "--nnodes", "2", LIMIT, str(grace_s))
    agent = cluster.agents.pop("b")
    saves = next(worker for worker in workers if worker.agent_pid == agent.pid)
    await saves.tell("ignore SIGTERM")
    async with within(grace_s, at_least=grace_s):
        next(worker for worker in workers if worker.agent_pid != agent.pid).order_exit(3)
        await agent.line(pattern(words.progress.run_failed))
        agent.signal(signal.SIGTERM)
        await agent.line(words.leaving.workers_end_already("SIGTERM"))
        assert await agent.exit_code() == ExitCode.FAILED


async def test_a_second_signal_ends_the_grace_and_a_third_changes_nothing(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", "--shutdown-timeout", "500")
    await workers[0].tell("ignore SIGTERM")
    agent = cluster.agents.pop("a")
    agent.signal(signal.SIGTERM)
    await agent.line(pattern(words.leaving.leaving, why="SIGTERM"))
    assert is_running(workers[0].pid)
    await asyncio.sleep(ONE_REQUEST_S)
    async with within(0.0):
        agent.signal(signal.SIGTERM)
        await agent.line(words.leaving.killing_workers("SIGTERM"))
        if agent.process.returncode is None:
            agent.signal(signal.SIGTERM)
        assert await agent.exit_code() == ExitCode.START_AGAIN
    assert not any("Traceback" in line or names_killed(line) for line in agent.err)


async def test_an_agent_does_not_name_workers_that_end_in_their_grace(cluster: Cluster) -> None:
    await cluster.nodes("a", "--nnodes", "1", "--shutdown-timeout", "500")
    agent = cluster.agents.pop("a")
    await leaves(agent, 0.0)
    assert not any(map(names_killed, agent.err))


# Workers that close their pipes.


async def test_a_worker_that_closes_its_pipes_is_watched_and_stopped_like_any_other(cluster: Cluster) -> None:
    first = await cluster.nodes("a", "--nnodes", "1", "--max-restarts", "1", *GRACE)
    for worker in first:
        await worker.tell("close")
    first[1].order_exit(3)
    second = await cluster.hub.group(2)
    for worker in second:
        await worker.tell("close")
        await worker.tell("ignore SIGTERM")
    await leaves(cluster.agents.pop("a"), GRACE_S)
    assert not any(is_running(worker.pid) for worker in second)


# Processes that SIGKILL does not end.


class Freezer:
    """A cgroup of frozen processes: they are in uninterruptible sleep, where SIGKILL waits until they are thawed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def freeze(self, *pids: int) -> None:
        for pid in pids:
            (self.folder / "cgroup.procs").write_text(str(pid))
        (self.folder / "freezer.state").write_text("FROZEN")
        while (self.folder / "freezer.state").read_text() != "FROZEN\n":  # each must run to notice it
            time.sleep(0.001)

    def thaw(self) -> None:
        (self.folder / "freezer.state").write_text("THAWED")

    def is_empty(self) -> bool:
        return not (self.folder / "cgroup.procs").read_text()


@pytest.fixture
async def freezer(tmp_path: Path) -> AsyncIterator[Freezer]:
    """A separate freezer, in a hierarchy that is mounted here temporarily."""
    mount = tmp_path / "freezer"
    mount.mkdir()
    command = ("mount", "-t", "cgroup", "-o", "freezer", "freezer", str(mount))
    if subprocess.run(command, capture_output=True).returncode:  # noqa: ASYNC221
        pytest.skip("this user, or this kernel, has no cgroup freezer (version 1)")
    try:
        freezer = Freezer(mount / f"rdzv{os.getpid()}-{os.urandom(3).hex()}")
        try:
            yield freezer
        finally:
            freezer.thaw()
            await until(freezer.is_empty)  # processes that were killed meanwhile
            freezer.folder.rmdir()
    finally:
        subprocess.run(["umount", "-l", mount], check=True)  # noqa: ASYNC221


class Impatient(Cluster):
    """A cluster whose agents wait one second where others wait half a minute."""

    python = ("-c", IMPATIENT)


@pytest.fixture
async def impatient(hub: WorkerHub, freezer: Freezer) -> AsyncIterator[Impatient]:
    async with Impatient(hub) as cluster:
        await cluster.serve()
        try:
            yield cluster
        finally:
            freezer.thaw()


def names_as_stuck(line: str, pid: int) -> bool:
    """Return whether the line says that this process survives SIGKILL, in uninterruptible sleep."""
    match = re.search(pattern(words.workers.outlives_kill, pid=pid), line)
    return bool(match and match["why"].startswith(words.workers.in_state("D", "")))


async def test_an_agent_gives_up_a_worker_in_uninterruptible_sleep_and_names_it(
    impatient: Impatient, freezer: Freezer
) -> None:
    """Further signals do not make it wait longer."""
    workers = await impatient.nodes("a", "--nnodes", "1", LIMIT, "500")
    freezer.freeze(workers[1].pid)
    agent = impatient.agents.pop("a")
    agent.signal(signal.SIGTERM)
    await agent.line(pattern(words.leaving.leaving, why="SIGTERM"))
    await asyncio.sleep(ONE_REQUEST_S)
    async with within(KILL_S, at_least=KILL_S):
        agent.signal(signal.SIGTERM)
        await agent.line(words.leaving.killing_workers("SIGTERM"))
        agent.signal(signal.SIGTERM)
        assert await agent.exit_code() == ExitCode.START_AGAIN
    assert (state(workers[0].pid), state(workers[1].pid)) == ("", "D")
    (line,) = [line for line in agent.err if has_message(line, words.workers.outlives_kill)]
    assert names_as_stuck(line, workers[1].pid)
    freezer.thaw()
    await workers[1].gone()


async def test_the_next_round_continues_without_a_worker_that_cannot_be_killed(
    impatient: Impatient, freezer: Freezer
) -> None:
    first = await impatient.nodes("a", "--nnodes", "1", "--max-restarts", "1", *GRACE)
    freezer.freeze(first[1].pid)
    async with within(GRACE_S + KILL_S, at_least=GRACE_S + KILL_S):
        os.kill(first[0].pid, signal.SIGKILL)
        second = await impatient.hub.group(2)
    freezer.thaw()
    await first[1].gone()
    await until(lambda: state(first[1].pid) == "")  # no zombie either
    await impatient.finish(second)


async def test_an_agent_names_a_daemon_that_it_could_not_end(impatient: Impatient, freezer: Freezer) -> None:
    (worker,) = await impatient.nodes("a", "--nnodes", "1", *GRACE, nproc=1)
    daemon = int(await worker.tell("double-fork"))
    freezer.freeze(daemon)
    agent = impatient.agents.pop("a")
    async with within(LEFT_S + KILL_S, at_least=LEFT_S + KILL_S):
        worker.order_exit(0)
        assert await agent.exit_code() == 0
    assert any(names_as_stuck(line, daemon) for line in agent.err)


async def test_an_agent_gives_up_helpers_in_uninterruptible_sleep_and_names_them(
    impatient: Impatient, freezer: Freezer
) -> None:
    """Helpers: its guardian, the process that forks warm workers, and processes that this has forked in advance."""
    (worker,) = await impatient.nodes("a", "--nnodes", "1", *GRACE, "--preload", "json", nproc=1)
    agent = impatient.agents.pop("a")
    await until(lambda: len(children(agent.pid)) == 4)
    helpers = children(agent.pid) - {worker.pid}
    freezer.freeze(*helpers)
    async with within(3 * KILL_S, at_least=KILL_S):
        worker.order_exit(0)
        await ended(agent.pid)
    for pid in helpers:
        assert names_as_stuck((await agent.line(pattern(words.workers.outlives_kill, pid=pid))).string, pid)
    freezer.thaw()  # they have the agent's stderr
    assert await agent.exit_code() == 0


async def test_a_torch_that_hangs_in_a_driver_does_not_hold_up_the_agent(freezer: Freezer, tmp_path: Path) -> None:
    """A process asks torch for the number of GPUs, and then sleeps uninterruptibly."""
    os.mkfifo(tmp_path / "driver")
    (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'driver')!r}).read()")
    limits = f"devices.NOTICE_S, devices.TIMEOUT_S = 0.0, {KILL_S}"
    python = ("-c", f"from node_agent.kernel.workers import devices; {limits}; {MAIN}")
    agent = await start_agent("--nproc", "gpu", python=python, env={"PYTHONPATH": str(tmp_path)})
    await agent.line(words.devices.ASKING_TORCH)
    freezer.freeze(*children(agent.pid))
    async with within(2 * KILL_S):
        await refuses(agent, words.devices.torch_too_slow(1.0))


# Agents in a bad state.


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP"])
async def test_an_agent_whose_server_is_gone_exits_within_its_bound(cluster: Cluster, fault: str) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", *GRACE)
    cluster.server.signal(signal.Signals[fault])
    agent = cluster.agents.pop("a")
    if fault == "SIGKILL":
        await agent.line(LOST)
    await leaves(agent, GRACE_S + LAST_WORD_S)
    assert not any(is_running(worker.pid) for worker in workers)


async def test_an_agent_with_an_unread_console_exits_within_its_bound(cluster: Cluster) -> None:
    reads, writes = os.pipe()
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "node_agent", "--endpoint", cluster.server.endpoint, *GRACE, WORKER,
        env={**os.environ, **cluster.hub.env}, stdout=writes, stderr=writes,
    )  # fmt: skip
    os.close(writes)
    (worker,) = await cluster.hub.group(1)
    for _ in range(40):
        await worker.tell(f"say {'x' * 50_000}")  # more than the pipe has room for
    async with within(GRACE_S + LAST_WORD_S + 2 * CONSOLE_S):
        agent.send_signal(signal.SIGTERM)
        assert await agent.wait() == ExitCode.START_AGAIN
    assert not is_running(worker.pid)
    os.close(reads)


async def test_an_agent_whose_terminal_hangs_up_leaves_the_run(cluster: Cluster) -> None:
    terminal, its_side = pty.openpty()
    agent = await asyncio.create_subprocess_exec(
        "setsid", "--ctty", sys.executable, "-m", "node_agent", "--endpoint", cluster.server.endpoint, *GRACE, WORKER,
        env={**os.environ, **cluster.hub.env}, stdin=its_side, stdout=its_side, stderr=its_side,
    )  # fmt: skip
    os.close(its_side)
    workers = await cluster.hub.group(1)
    async with within(GRACE_S + LAST_WORD_S):
        os.close(terminal)
        assert await agent.wait() == ExitCode.START_AGAIN
    assert not is_running(workers[0].pid)
    assert [gone["cause"] for gone in (await cluster.server.run())["departures"]] == ["SIGHUP"]


async def test_a_signal_while_it_waits_for_the_others_ends_an_agent_at_once(cluster: Cluster) -> None:
    agent = await cluster.node("a", "--nnodes", "2", *PATIENT)
    await agent.line(completion.waiting_for(1))
    await leaves(cluster.agents.pop("a"), 0.0)
    assert (await cluster.server.run())["nodes"] == []


async def test_a_signal_while_it_looks_for_its_server_ends_an_agent_at_once(
    hub: WorkerHub, unused_tcp_port: int
) -> None:
    agent = await start_agent("--endpoint", f"127.0.0.1:{unused_tcp_port}", env=hub.env)
    await agent.line("cannot reach rdzv-server")
    await leaves(agent, LAST_WORD_S, signal.SIGINT)


# No zombies.

ROUNDS = 4


async def test_after_many_rounds_an_agents_only_children_are_its_workers_and_helpers(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", "--max-restarts", str(ROUNDS), *GRACE)
    agent = cluster.agents["a"]
    for _ in range(ROUNDS):
        for order in ("fork", "daemon", "double-fork"):
            await workers[0].tell(order)
        os.kill(workers[1].pid, signal.SIGKILL)
        workers = await cluster.hub.group(2)
        await until(partial(has_helpers_alone, agent, {worker.pid for worker in workers}))
    await cluster.finish(workers)


def has_helpers_alone(agent: Program, workers: set[int]) -> bool:
    """Return whether the agent's only children are these workers, its guardian and the workers' store helper."""
    family = children(agent.pid)
    others = [command_line(pid) for pid in family - workers]  # empty for a zombie
    return workers < family and len(others) <= 2 and all("\0guardian\0" in o or "store_helper.py" in o for o in others)


async def test_an_agent_with_its_own_server_that_is_killed_leaves_nothing(hub: WorkerHub) -> None:
    agent = await start_agent("--standalone", "--nproc", "2", env=hub.env)
    workers: list[Worker] = await hub.group(2)
    port = urlsplit((await agent.line(pattern(words.progress.status_page)))["url"]).port
    assert port
    family = children(agent.pid) | {int(await workers[0].tell("double-fork"))}
    agent.signal(signal.SIGKILL)
    assert await agent.exit_code() == -signal.SIGKILL
    for pid in family:
        await ended(pid)
    server = await Server.listen(port=port)  # no other process has it any more
    await server.end()
