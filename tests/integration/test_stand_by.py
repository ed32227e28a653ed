"""`rdzv-server --stand-by-for`: a server that takes over without etcd, and makes way for the server before it."""

import asyncio
import os
import signal
import sys

import pytest
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.flag_values import address

from rdzv_server.words import startup as words
from tests.support.cluster import PATIENT
from tests.support.launchers import free_port
from tests.support.message_search import pattern
from tests.support.programs import Program, Server, start_agent
from tests.support.worker_hub import WorkerHub

AFTER = ("--take-over-after", "1")


async def stand_by(port: str, earlier: Server, *flags: str) -> Program:
    """Start a server that stands by at this port for another one."""
    command = Server.command("--store", "memory", "--stand-by-for", earlier.endpoint, *flags, port=int(port))
    program = await Program.start(*command)
    await program.line(pattern(words.serves))
    return program


async def taken_over(port: str, *flags: str) -> tuple[Server, Program]:
    """Return a server that was killed, and the one that has taken over from it."""
    first = await Server.listen("--store", "memory", is_forked=False)
    second = await stand_by(port, first, *AFTER, *flags)
    await first.kill()
    await second.line(pattern(words.takes_over))
    return first, second


async def test_agents_form_their_run_on_a_standby_server_and_return_to_the_first(hub: WorkerHub) -> None:
    with free_port() as port:
        first = await Server.listen("--store", "memory")
        second = await stand_by(port, first, *AFTER, "--exit-when-idle", "600")
        endpoints = f"{first.endpoint},{address('127.0.0.1', int(port))}"
        flags = (*PATIENT, "--endpoint", endpoints, "--run-id", "r", "--nnodes", "2", "--nproc", "1")
        agents = [await start_agent(*flags, env=hub.env) for _ in range(2)]
        await hub.group(2)
        await first.kill()
        await second.line(pattern(words.takes_over))
        await hub.group(2)
        await Server.listen("--store", "memory", port=first.port)
        await second.line(pattern(words.steps_back))
        assert await second.exit_code() == ExitCode.START_AGAIN
        for worker in await hub.group(2):
            worker.order_exit(0)
        assert [await agent.exit_code() for agent in agents] == [0, 0]


async def test_a_stand_by_says_by_its_exit_code_how_the_run_has_ended(hub: WorkerHub) -> None:
    with free_port() as port:
        first, second = await taken_over(port, "--exit-when-idle", "600")
        second.signal(signal.SIGUSR2)
        flags = ("--endpoint", f"{first.endpoint},127.0.0.1:{port}", "--nnodes", "1", "--nproc", "1")
        agent = await start_agent(*flags, env=hub.env)
        (worker,) = await hub.group(1)
        worker.order_exit(0)
        assert await agent.exit_code() == 0
        assert await second.exit_code() == 0


async def test_a_stand_by_says_how_the_run_has_ended_though_the_first_server_is_back_then(hub: WorkerHub) -> None:
    """It lingers, because the supervisor of a lost agent may ask for the run's end."""
    with free_port() as port:
        first, second = await taken_over(port, "--exit-when-idle", "600")
        flags = ("--endpoint", f"{first.endpoint},127.0.0.1:{port}", "--nnodes", "1:2", "--nproc", "1", *PATIENT)
        agents = [await start_agent(*flags, "--node-id", name, env=hub.env) for name in "ab"]
        lost = (await hub.group(2))[0].agent_pid
        os.kill(lost, signal.SIGKILL)
        (worker,) = await hub.group(1)
        worker.order_exit(0)
        (left,) = (agent for agent in agents if agent.pid != lost)
        assert await left.exit_code() == 0
        await Server.listen("--store", "memory", port=first.port)
        assert await second.exit_code() == 0


async def test_a_stand_by_takes_over_from_a_server_that_hangs(programs: None) -> None:
    with free_port() as port:
        first = await Server.listen("--store", "memory", is_forked=False)
        second = await stand_by(port, first, *AFTER)
        first.signal(signal.SIGSTOP)
        try:
            await second.line(pattern(words.takes_over))
        finally:
            first.signal(signal.SIGCONT)
        assert await second.exit_code() == ExitCode.START_AGAIN


@pytest.mark.parametrize("late", [signal.SIGTERM, signal.SIGUSR2])
async def test_a_signal_does_not_change_a_decided_exit_code(programs: None, late: signal.Signals) -> None:
    """A job script sends SIGUSR2 to a server that may only stand by."""
    with free_port() as port:
        _, second = await taken_over(port)
        await second.line(pattern(words.listens_at))
        second.signal(signal.SIGTERM)
        await second.signal_until_ended(late)
        assert await second.exit_code() == ExitCode.START_AGAIN


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGUSR2])
async def test_an_unused_standby_server_never_listens_and_ends_on_a_signal(programs: None, how: signal.Signals) -> None:
    with free_port() as port:
        second = await stand_by(port, await Server.listen("--store", "memory"))
        probe = await Program.start(sys.executable, "-m", "rdzv_server", "--probe", "--port", port)
        assert await probe.exit_code() == 1
        second.signal(how)
        async with asyncio.timeout(30):
            assert await second.exit_code() == ExitCode.START_AGAIN
