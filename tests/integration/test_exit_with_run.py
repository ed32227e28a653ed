"""`--exit-with-run`: a process that outlives its agent, and exits with the run's result."""

import asyncio
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent import supervisor, words
from node_agent.cli.command_line import read
from node_agent.cli.plan import plan_launch
from node_agent.features.metrics import words as metrics
from node_agent.features.supervised import Part
from node_agent.kernel.leave_signals import ONE_REQUEST_S
from node_agent.kernel.processes.orphans_helper import MARK
from node_agent.kernel.processes.process import waits_for
from tests.chaos.traces import helpers
from tests.support import leaderless
from tests.support.certificates import Authority
from tests.support.changes import PATIENCE_S
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import pattern
from tests.support.outages import LOST
from tests.support.process_info import ended, is_running, parent, until
from tests.support.programs import Program, refuses, start_agent
from tests.support.worker_hub import Worker, WorkerHub, of_node

FLAGS = ("--exit-with-run", "--nnodes", "1:3", *PATIENT)
ALONE = ("--nnodes", "1", "--lease", "1", "--join-timeout", "1")


@pytest.mark.parametrize(("code", "end"), [(0, "succeeded"), (3, "failed")])
async def test_a_killed_agents_process_exits_as_the_run_that_continues_without_it(
    cluster: Cluster, code: int, end: str
) -> None:
    first = await cluster.nodes("abc", *FLAGS, nproc=1)
    a, b, c = (cluster.agents[name] for name in "abc")
    lost = of_agent_of(first, a)
    os.kill(lost.agent_pid, signal.SIGKILL)
    await a.line(pattern(words.supervisor.agent_killed_run_awaited, signal_name="SIGKILL", run_id="none"))
    await lost.gone()
    second = await cluster.hub.group(2)
    b.signal(signal.SIGTERM)  # reaches its agent, which leaves
    assert await b.exit_code() == ExitCode.START_AGAIN
    (last,) = await cluster.hub.group(1)
    assert a.is_running and is_running(c.pid) and not of_node(second, 2)
    last.order_exit(code)
    assert [await each.exit_code() for each in (a, c)] == [int(code > 0)] * 2
    await a.line(pattern(words.supervisor.run_has_ended, run_id="none", phase=end))


async def test_a_run_whose_only_agent_was_killed_ends_by_its_join_timeout(cluster: Cluster) -> None:
    (worker,) = await cluster.nodes("a", "--exit-with-run", *ALONE, nproc=1)
    a = cluster.agents.pop("a")
    os.kill(worker.agent_pid, signal.SIGKILL)
    await a.line(pattern(words.supervisor.agent_killed_run_awaited, signal_name="SIGKILL", run_id="none"))
    await a.line(pattern(words.supervisor.has_left, run_id="none"))
    await a.line(pattern(words.supervisor.run_has_ended, run_id="none", phase="failed"))
    assert await a.exit_code() == ExitCode.FAILED


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """Write end of a pipe that is full, and that nobody reads. Writers wait."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


async def test_a_console_that_takes_nothing_does_not_keep_a_supervisor_from_the_end_of_the_run(
    cluster: Cluster, full_pipe: int
) -> None:
    command = [sys.executable, "-m", "node_agent", "--endpoint", cluster.endpoint, "--exit-with-run", *ALONE]
    environment = {**os.environ, **cluster.hub.env}
    node = await asyncio.create_subprocess_exec(*command, str(cluster.script), stderr=full_pipe, env=environment)
    try:
        (worker,) = await cluster.hub.group(1)
        os.kill(worker.agent_pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            assert await node.wait() == ExitCode.FAILED
    finally:
        if node.returncode is None:
            node.kill()
            await node.wait()
    assert (await cluster.server.run())["phase"] == "failed"


async def test_a_signal_that_comes_while_a_supervisor_ends_does_not_change_the_exit_code(cluster: Cluster) -> None:
    first = await cluster.nodes("abc", *FLAGS, nproc=1)
    a = cluster.agents.pop("a")
    os.kill(of_agent_of(first, a).agent_pid, signal.SIGKILL)
    await cluster.finish(await cluster.hub.group(2))
    await a.line(pattern(words.supervisor.run_has_ended, run_id="none", phase="succeeded"))
    await a.signal_until_ended(signal.SIGTERM)
    assert await a.exit_code() == ExitCode.SUCCEEDED


INHERITED = """
import os, sys
from signal import SIG_IGN, SIGCHLD, signal
if sys.argv[1] == "ignored":
    signal(SIGCHLD, SIG_IGN)
else:
    for descriptor in range(3):
        os.close(descriptor)
os.execv(sys.executable, (sys.executable, "-m", "node_agent", "--exit-with-run", *sys.argv[2:]))
"""
"""Program like a daemon that starts an agent: it ignores the ends of its children, or has no standard streams."""


@pytest.mark.parametrize("state", ["ignored", "closed"])
@pytest.mark.parametrize(("worker", "code"), [("true", ExitCode.SUCCEEDED), ("false", ExitCode.FAILED)])
async def test_the_exit_code_is_known_in_any_inherited_state(state: str, worker: str, code: int) -> None:
    agent = await Program.start(sys.executable, "-c", INHERITED, state, "--standalone", "--no-python", worker)
    assert await agent.exit_code() == code


TWO_OF_ONE_NAME = ("--exit-with-run", "--node-id", "gpu", *PATIENT)


@pytest.mark.parametrize("addresses", ["11", "12"], ids=["one machine", "two machines"])
async def test_two_agents_of_one_name_in_one_run(cluster: Cluster, addresses: str) -> None:
    """One is killed with all of its processes. The other continues, and both supervisors exit with the run's result."""
    for name, last in zip("ab", addresses, strict=True):
        here = ("--endpoint", cluster.endpoint, "--nproc", "1", "--nnodes", "1:2", "--local-addr", f"127.0.0.{last}")
        await cluster.agent(name, *TWO_OF_ONE_NAME, *here)
    workers, (a, b) = await cluster.hub.group(2), cluster.agents.values()
    lost, other = of_agent_of(workers, a), of_agent_of(workers, b)
    left, agent = await leftovers_of(lost), other.agent_pid
    os.kill(lost.agent_pid, signal.SIGKILL)
    await a.line(pattern(words.supervisor.agent_killed_run_awaited, signal_name="SIGKILL", run_id="none"))
    for pid in (lost.pid, *left):
        await ended(pid)
    (last_worker,) = await cluster.hub.group(1)
    kept = await leftovers_of(last_worker)
    assert last_worker.agent_pid == agent and a.is_running and all(map(is_running, kept))
    last_worker.order_exit(3)
    assert [await each.exit_code() for each in (a, b)] == [1, 1]
    await a.line(pattern(words.supervisor.run_has_ended, run_id="none", phase="failed"))
    for pid in kept:
        await ended(pid)


async def test_two_launches_of_one_name_in_two_runs(cluster: Cluster) -> None:
    """Nothing of the other run's agent ends, whether its processes have a mark or not."""
    first, second = ["--nproc", "1", "--run-id", "first"], ["--nproc", "1", "--run-id", "second"]
    for name, flags in (("a", first), ("b", second)):
        await cluster.agent(name, *TWO_OF_ONE_NAME, "--endpoint", cluster.endpoint, "--nnodes", "1", *flags)
    workers, (a, b) = [*await cluster.hub.group(1), *await cluster.hub.group(1)], cluster.agents.values()
    lost, other = of_agent_of(workers, a), of_agent_of(workers, b)
    left, kept = await leftovers_of(lost), await leftovers_of(other)
    os.kill(lost.agent_pid, signal.SIGKILL)
    await a.line(pattern(words.supervisor.agent_killed_run_awaited, signal_name="SIGKILL", run_id="first"))
    for pid in (lost.pid, *left):
        await ended(pid)
    assert all(map(is_running, (other.pid, *kept)))
    other.order_exit(0)
    assert await b.exit_code() == 0 and a.is_running
    await cluster.agent("c", *TWO_OF_ONE_NAME, "--endpoint", cluster.endpoint, *first)
    (again,) = await cluster.hub.group(1)
    again.order_exit(0)
    assert [await cluster.agents[name].exit_code() for name in "ac"] == [0, 0]


async def test_a_later_attempt_of_the_run_is_not_the_agents(cluster: Cluster) -> None:
    """The supervisor is slow: when it asks, the run has failed, and another agent of the node has started it again."""
    place = ("--endpoint", cluster.endpoint, "--run-id", "nightly", "--nproc", "1")
    for name in "ab":
        await cluster.agent(name, *TWO_OF_ONE_NAME, *place, "--nnodes", "1:2")
    workers, (a, b) = await cluster.hub.group(2), cluster.agents.values()
    lost = of_agent_of(workers, a)
    a.signal(signal.SIGSTOP)
    os.kill(lost.agent_pid, signal.SIGKILL)
    (last,) = await cluster.hub.group(1)
    last.order_exit(3)
    assert await b.exit_code() == 1
    again = await cluster.agent("c", *TWO_OF_ONE_NAME, *place, "--nnodes", "1")
    (worker,) = await cluster.hub.group(1)
    a.signal(signal.SIGCONT)
    assert await a.exit_code() == 1
    await a.line(pattern(words.supervisor.run_has_ended, run_id="nightly", phase="failed"))
    worker.order_exit(0)
    assert await again.exit_code() == 0


async def test_the_supervisor_waits_over_tls_with_a_token_and_survives_a_server_restart(
    hub: WorkerHub, authority: Authority, tmp_path: Path
) -> None:
    """The server is lost and returns. Meanwhile the agents' token is replaced, in its file and at the server."""
    pair, tokens, token = authority.issue("server"), tmp_path / "agents", tmp_path / "token"
    for file in (tokens, token):
        file.write_text("first\n")
    store = ("--store", f"sqlite:{tmp_path}/runs.db", "--token-file", str(tokens))
    async with Cluster(hub, *store, "--tls-cert", pair.cert, "--tls-key", pair.key) as cluster:
        await cluster.serve()
        credentials = ("--tls-ca", authority.ca, "--token-file", str(token))
        a, b = "ab"
        workers = await cluster.nodes(a + b, "--exit-with-run", "--nnodes", "1:2", *PATIENT, *credentials, nproc=1)
        lost = of_agent_of(workers, cluster.agents[a])
        os.kill(lost.agent_pid, signal.SIGKILL)
        await cluster.agents[a].line(pattern(words.supervisor.agent_killed_run_awaited, run_id="none"))
        (last,) = await hub.group(1)
        await cluster.lose_server()
        await cluster.agents[b].line(LOST)
        for file in (tokens, token):
            file.write_text("second\n")
        await cluster.regain_server()
        last.order_exit(0)
        assert [await agent.exit_code() for agent in cluster.agents.values()] == [0, 0]
        await cluster.agents[a].line(pattern(words.supervisor.run_has_ended, run_id="none", phase="succeeded"))


async def test_if_no_server_knows_the_run_the_supervisor_reports_a_kill(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "PATIENCE_S", 1.0)
    command = ("--endpoint", cluster.endpoint, "--run-id", "gone", "-m", "this")
    assert await asyncio.to_thread(supervisor._end_of_run, plan_launch(read(command, {}), {}), Part(), "SIGKILL") == ""
    assert words.supervisor.run_unknown("gone", 1.0) in capfd.readouterr().err


async def test_a_run_that_dies_with_its_agent_is_reported_as_a_kill(hub: WorkerHub) -> None:
    alone = await start_agent("--exit-with-run", "--standalone", env=hub.env)
    (worker,) = await hub.group(1)
    os.kill(worker.agent_pid, signal.SIGKILL)
    assert await alone.exit_code() == 128 + signal.SIGKILL
    await worker.gone()


async def test_an_agents_own_error_is_reported_and_does_not_count_as_a_kill() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = await start_agent("--exit-with-run", "--standalone", "--metrics-port", str(port))
        await refuses(agent, metrics.no_port("127.0.0.1", port, "Address already in use"))


@pytest.mark.parametrize("first", ["supervisor", "agent"])
async def test_a_signal_to_every_process_of_a_step_is_one_signal(hub: WorkerHub, first: str) -> None:
    """Slurm signals supervisor and agent, and the supervisor forwards. The worker keeps its whole grace period.

    The second one comes so late that it would be another request if it came by the same way.
    """
    alone = await start_agent("--exit-with-run", "--standalone", "--shutdown-timeout", "3", env=hub.env)
    (worker,) = await hub.group(1)
    await worker.tell("ignore SIGTERM")
    pids = [alone.pid, worker.agent_pid]
    sooner, later = pids if first == "supervisor" else reversed(pids)
    os.kill(sooner, signal.SIGTERM)
    await alone.line(pattern(words.leaving.leaving, why="SIGTERM"))
    await asyncio.sleep(ONE_REQUEST_S)
    os.kill(later, signal.SIGTERM)
    assert await alone.exit_code() == ExitCode.FAILED
    assert not any(words.leaving.killing_workers("SIGTERM") in line for line in alone.err)


async def test_the_supervisor_waits_for_signals_and_has_no_handler(hub: WorkerHub) -> None:
    """A handler does not run if its signal comes just before a wait for the agent begins. A SIGTERM would be lost."""
    alone = await start_agent("--exit-with-run", "--standalone", env=hub.env)
    (worker,) = await hub.group(1)
    assert waits_for(alone.pid, signal.SIGTERM) is False, (
        "the kernel shows a signal as blocked only while no thread waits for it"
    )
    worker.order_exit(0)
    assert await alone.exit_code() == 0


def environment(pid: int) -> bytes:
    """Return the process's environment, empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


async def test_a_process_that_drops_its_mark_before_the_guardian_looks_is_ended(hub: WorkerHub, tmp_path: Path) -> None:
    """It has the mark when the supervisor looks, and no longer when the guardian does."""
    go = tmp_path / "go"
    os.mkfifo(go)
    alone = await start_agent("--exit-with-run", "--standalone", env=hub.env)
    (worker,) = await hub.group(1)
    waits = f"setsid sh -c 'read line < {go}; exec env -i sleep 1000'"
    pid = int(await worker.tell(f"shell {waits} >&- 2>&- & echo $!"))
    (guardian,) = helpers(worker.agent_pid, "guardian")
    os.kill(guardian, signal.SIGSTOP)
    os.kill(worker.agent_pid, signal.SIGKILL)
    await until(lambda: parent(guardian) == alone.pid)
    go.write_text("go\n")
    await until(lambda: not environment(pid))  # a supervisor that still looks ends it
    os.kill(guardian, signal.SIGCONT)
    assert await alone.exit_code() == 128 + signal.SIGKILL
    await ended(pid)


async def test_processes_that_a_killed_agent_has_not_seen_are_ended_too(hub: WorkerHub) -> None:
    """A daemon has cleared its environment, and the agent could not see it because it was stopped."""
    alone = await start_agent("--exit-with-run", "--standalone", env=hub.env)
    (worker,) = await hub.group(1)
    os.kill(worker.agent_pid, signal.SIGSTOP)
    await worker.tell(f"unset {MARK}")
    leaderless_one = f"shell env -i setsid {shlex.join(leaderless.COMMAND)} >&- 2>&- & echo $!"
    orders = ("double-fork", "shell env -i setsid sleep 1000 >&- 2>&- & echo $!", leaderless_one)
    pids = [int(await worker.tell(order)) for order in orders]
    await until(lambda: leaderless.is_leaderless(pids[-1]))
    os.kill(worker.agent_pid, signal.SIGKILL)
    assert await alone.exit_code() == 128 + signal.SIGKILL
    for pid in pids:
        await ended(pid)


async def test_a_supervisor_ends_remaining_processes_if_the_guardian_was_killed_with_its_agent(hub: WorkerHub) -> None:
    alone = await start_agent("--exit-with-run", "--standalone", env=hub.env)
    (worker,) = await hub.group(1)
    pids = [int(await worker.tell(order)) for order in ("fork", "daemon", "double-fork")]
    (guardian,) = helpers(worker.agent_pid, "guardian")
    os.kill(worker.agent_pid, signal.SIGSTOP)  # it does not replace a guardian
    for pid in (guardian, worker.agent_pid):
        os.kill(pid, signal.SIGKILL)
    assert await alone.exit_code() == 128 + signal.SIGKILL
    for pid in pids:
        await ended(pid)


async def test_a_second_signal_is_forwarded_as_one(hub: WorkerHub) -> None:
    alone = await start_agent("--exit-with-run", "--standalone", "--shutdown-timeout", "100", env=hub.env)
    (worker,) = await hub.group(1)
    await worker.tell("ignore SIGTERM")
    alone.signal(signal.SIGTERM)
    await alone.line("SIGTERM")
    await alone.signal_again(signal.SIGTERM)
    await alone.line(words.leaving.killing_workers("SIGTERM"))
    assert await alone.exit_code() == ExitCode.FAILED


async def test_an_agent_never_outlives_its_supervisor(hub: WorkerHub) -> None:
    alone = await start_agent("--exit-with-run", "--standalone", env=hub.env)
    (worker,) = await hub.group(1)
    await alone.kill()
    await worker.gone()


async def leftovers_of(worker: Worker) -> list[int]:
    """Return daemons that the worker has started: one with the agent's mark, and one found only by its parents."""
    marked = await worker.tell("double-fork")
    unmarked = int(await worker.tell("shell env -i setsid sleep 1000 >&- 2>&- & echo $!"))
    await until(lambda: os.getsid(unmarked) == unmarked)  # it is `setsid` that has cleared its environment
    return [int(marked), unmarked]


def of_agent_of(workers: list[Worker], supervisor: Program) -> Worker:
    """Return the worker whose agent this process supervises."""
    (found,) = (worker for worker in workers if parent(worker.agent_pid) == supervisor.pid)
    return found
