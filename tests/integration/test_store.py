"""The workers' store: beside group rank 0's agent, fresh each round, and available as long as workers need it."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from node_agent.features.store.host import PROGRAM
from tests.support import process_info
from tests.support.changes import PATIENCE_S
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import pattern
from tests.support.process_info import children, command_line, ended, state, until
from tests.support.programs import STORE_WORKER, WORKERS, Program
from tests.support.worker_hub import Worker

STAND_IN = Path(__file__).parents[1] / "support" / "stand_in"
helpers = partial(process_info.helpers, script="store_helper.py")


@pytest.fixture
def stores(cluster: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Workers that use the store, with torch itself in the tests that are marked so."""
    if not request.node.get_closest_marker("torch"):
        monkeypatch.setenv("PYTHONPATH", str(STAND_IN), prepend=os.pathsep)
    cluster.script = STORE_WORKER
    return cluster


def host(cluster: Cluster) -> tuple[str, Program, int]:
    """Return the agent that hosts the store, with its name and the store's process."""
    ((name, agent, (helper,)),) = [
        (name, agent, found) for name, agent in cluster.agents.items() if (found := helpers(agent.pid))
    ]
    return name, agent, helper


async def leave_in_turn(*workers: Worker) -> None:
    for worker in workers:
        worker.order_exit(0)
        await worker.gone()


async def share(writer: Worker, reader: Worker) -> None:
    """Check that one worker sets a value and the other one gets it."""
    await writer.tell("set key 1")
    assert await reader.tell("get key") == "1"


@pytest.mark.torch
async def test_the_store_outlives_the_worker_of_rank_0_and_every_other_of_its_node(stores: Cluster) -> None:
    a, b, c, d = await stores.nodes("ab", "--nnodes", "2", "--preload", "torch.distributed", *PATIENT)
    assert {worker.env["TORCHELASTIC_USE_AGENT_STORE"] for worker in (a, b, c, d)} == {"True"}
    await a.tell("set key 0")
    await leave_in_turn(a)
    assert await b.tell("get key") == "0"
    await share(b, c)
    await leave_in_turn(b)
    assert await d.tell("get key") == "1"
    await stores.finish([c, d])


@pytest.mark.torch
async def test_each_round_has_a_fresh_store_from_one_helper(stores: Cluster) -> None:
    (first,) = await stores.nodes("a", "--nnodes", "1", "--max-restarts", "1", nproc=1)
    *_, helper = host(stores)
    await first.tell("set key 1")
    os.kill(first.pid, signal.SIGKILL)
    (second,) = await stores.hub.group(1)
    assert await second.tell("has key") == "False"
    assert host(stores)[-1] == helper, "it has torch already"
    assert "--import-torch" not in command_line(helper), "it has no more of it than it needs"
    await stores.finish([second])


async def test_the_store_of_a_torch_whose_usual_server_does_not_take_a_listening_socket(stores: Cluster) -> None:
    await stores.node("a", "--nnodes", "1", env={"STAND_IN_VERSION": "2.7.1+cu126"})
    workers = await stores.hub.group(2)
    await share(*workers)
    await stores.finish(workers)


async def test_a_node_that_becomes_group_rank_0_hosts_the_store(stores: Cluster) -> None:
    workers = await stores.nodes("ab", "--nnodes", "1:2", *PATIENT)
    name, *_ = host(stores)
    await stores.agents.pop(name).kill()
    survivors = await stores.hub.group(2)
    assert host(stores)
    await share(survivors[1], survivors[0])
    for worker in workers:
        await worker.gone()
    await stores.finish(survivors)


async def test_the_store_survives_a_signal_that_a_scheduler_sends_to_every_process(stores: Cluster) -> None:
    workers = await stores.nodes("a", "--nnodes", "1", "--signals-to-handle", "SIGTERM,SIGUSR1", "--max-restarts", "0")
    *_, helper = host(stores)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(helper, signum)
    await share(*workers)
    assert host(stores)[-1] == helper
    await stores.finish(workers)


async def test_a_store_that_breaks_restarts_the_round_and_says_why(stores: Cluster) -> None:
    await stores.nodes("a", "--nnodes", "1", "--max-restarts", "1")
    _, agent, helper = host(stores)
    os.kill(helper, signal.SIGKILL)
    second = await stores.hub.group(2)
    await share(*second)
    assert await agent.line(pattern(words.workers.store_ended, pid=helper))
    await stores.finish(second)


async def test_a_store_ends_with_its_agent(stores: Cluster) -> None:
    workers = await stores.nodes("a", "--nnodes", "1")
    *_, helper = host(stores)
    await stores.agents.pop("a").kill()
    await ended(helper)
    for worker in workers:
        await worker.gone()


async def test_rank_0_hosts_the_store_itself_when_the_user_does_not_share_it(stores: Cluster) -> None:
    await stores.node("a", "--nnodes", "1", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    workers = await stores.hub.group(2)
    assert workers[0].env["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    await share(*workers)
    assert helpers(stores.agents["a"].pid) == []
    await stores.finish(workers)


async def test_an_agent_leaves_when_its_last_worker_and_the_helper_end_in_the_same_instant(stores: Cluster) -> None:
    (worker,) = await stores.nodes("a", "--nnodes", "1", nproc=1)
    await worker.tell("ignore SIGTERM")
    _, agent, helper = host(stores)
    agent.signal(signal.SIGTERM)
    await agent.line(pattern(words.leaving.leaving, why="SIGTERM"))
    agent.signal(signal.SIGSTOP)  # so that it notices both ends at once
    for pid in (worker.pid, helper):
        os.kill(pid, signal.SIGKILL)
        await until(lambda pid=pid: state(pid) == "Z")
    agent.signal(signal.SIGCONT)
    assert await agent.exit_code() == ExitCode.START_AGAIN


async def test_a_scheduler_may_send_sigterm_to_every_process_of_a_node(stores: Cluster) -> None:
    workers = await stores.nodes("ab", "--nnodes", "1:2", *PATIENT)
    name, agent, _ = host(stores)
    del stores.agents[name]
    rest = [worker for worker in workers if worker.agent_pid != agent.pid]
    for pid in [agent.pid, *children(agent.pid)]:
        with suppress(ProcessLookupError):  # the agent, which was told first, has ended it
            os.kill(pid, signal.SIGTERM)
    assert await agent.exit_code() == ExitCode.START_AGAIN
    assert not [line for line in agent.err if "store" in line]
    for worker in rest:
        await worker.gone()
    await stores.finish(await stores.hub.group(2))
    assert [entry["cause"] for entry in (await stores.server.run())["history"] if entry["charged"]] == []


async def test_a_store_follows_a_round_whose_rank_0_succeeded_without_it(stores: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "torch_at_last.py"
    script.write_text(
        f"import os, runpy, sys\nsys.path.insert(0, {str(WORKERS)!r})\n"
        "name = 'worker' if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 'store_worker'\n"
        "runpy.run_module(name, run_name='__main__')\n"
    )
    stores.script = script
    workers = await stores.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    await leave_in_turn(*workers[:2])
    workers[3].order_exit(5)
    second = await stores.hub.group(4)
    await share(second[0], second[3])
    assert host(stores)
    await stores.finish(second)


NAMELESS = """
: > "$1/empty" && echo "hosts: files" > "$1/files" || exit 1
mount --bind "$1/empty" /etc/hosts && mount --bind "$1/files" /etc/nsswitch.conf || exit 1
shift
exec "$@"
"""


@pytest.mark.torch
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take a process's names away")
async def test_a_store_is_served_after_another_on_a_machine_that_does_not_know_localhost(tmp_path: Path) -> None:
    """A container without /etc/hosts. If the helper waited for the name, it would never read the second order."""
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = ("unshare", "--mount", "sh", "-c", NAMELESS, "sh", str(tmp_path), sys.executable, "-P", PROGRAM)
    helper = await asyncio.create_subprocess_exec(*command, stdin=theirs)
    orders.setblocking(False)
    try:
        with orders, theirs:
            for order in (b"open 1", b"open 2"):
                with socket.create_server(("127.0.0.1", 0)) as listener:
                    socket.send_fds(orders, [order], [listener.fileno()])
                    async with asyncio.timeout(PATIENCE_S):
                        assert await asyncio.get_running_loop().sock_recv(orders, 64) == order
        async with asyncio.timeout(PATIENCE_S):
            assert await helper.wait() == 0
    finally:
        if helper.returncode is None:
            helper.kill()
