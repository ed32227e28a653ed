"""Server modes: in the agent's process, at endpoints, or hosted by this node."""

import asyncio
import errno
import os
import socket
import sys

import pytest
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.messages import Reply, Start
from rdzv_protocol.settings import RequestedSettings

from node_agent import words
from node_agent.kernel.config import AgentConfig, LaunchPlan, Target, UsageError
from node_agent.kernel.core.backoff import ServerLost, Unreachable
from node_agent.kernel.core.command import Command
from node_agent.servers.hosted import STARTS, HostedServer
from node_agent.servers.modes import server_of
from tests.support.console import FakeConsole
from tests.support.message_search import has_message, pattern
from tests.unit.node_agent.rig import PATIENCE_S
from tests.unit.node_agent.story import join


def a_plan(target: Target, *notes: str, status_page: bool = True) -> LaunchPlan:
    config = AgentConfig(command=Command(("true",)), join=join(), signals=(), status_page=status_page)
    return LaunchPlan(config, target, Credentials(), notes)


async def test_a_server_in_this_process_answers_and_the_plans_notes_are_printed_first():
    console = FakeConsole()
    async with server_of(a_plan(Target(), "a note", status_page=False), console) as (make_transport, where):
        transport = make_transport()
        settings = RequestedSettings(min_nodes=1, max_nodes=1)
        address = await transport.connect()
        reply = await transport.exchange(join(addr=address, port=29_500, settings=settings))
        assert isinstance(reply, Reply) and isinstance(reply.directive, Start)
        await transport.close()
    assert (console.lines, where) == (["a note"], "localhost")


async def test_a_run_continues_without_a_status_page_that_cannot_be_opened(monkeypatch):
    def refuse(*args: object) -> None:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

    monkeypatch.setattr("node_agent.servers.standalone.bind", refuse)
    console = FakeConsole()
    async with server_of(a_plan(Target()), console) as (make_transport, _):
        transport = make_transport()
        settings = RequestedSettings(min_nodes=1, max_nodes=1)
        await transport.exchange(join(addr="127.0.0.1", port=29_500, settings=settings))
        await asyncio.wait({task for task in asyncio.all_tasks() if "_open_page" in repr(task)}, timeout=PATIENCE_S)
    (line,) = console.lines
    assert has_message(line, words.progress.no_status_page)


async def test_every_endpoint_is_tried_and_named(unused_tcp_port_factory):
    ports = unused_tcp_port_factory(), unused_tcp_port_factory()
    one, other = (("127.0.0.1", port) for port in ports)
    async with server_of(a_plan(Target(endpoint=one, others=(other,))), FakeConsole()) as (make_transport, where):
        transport = make_transport()
        with pytest.raises(Unreachable) as nobody:
            await transport.connect()
        await transport.close()
    assert where == f"127.0.0.1:{ports[0]}, 127.0.0.1:{ports[1]}"
    assert all(f"127.0.0.1:{port}: " in str(nobody.value) for port in ports)


async def test_an_ipv6_address_is_in_brackets(unused_tcp_port):
    console = FakeConsole()
    async with server_of(a_plan(Target(endpoint=("::1", unused_tcp_port))), console) as (_, where):
        assert (console.lines, where) == ([words.progress.joining("run", where, "a")], f"[::1]:{unused_tcp_port}")


async def test_a_port_that_cannot_be_had_is_a_usage_error(monkeypatch):
    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("node_agent.servers.hosted._listen", refuse)
    with pytest.raises(UsageError, match=words.rendezvous.cannot_host(1, "Permission denied")):
        async with server_of(a_plan(Target(endpoint=("127.0.0.1", 1), hosts=True)), FakeConsole()):
            pass


async def test_a_program_that_already_listens_is_taken_for_the_server():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        console, port = FakeConsole(), taken.getsockname()[1]
        async with server_of(a_plan(Target(endpoint=("127.0.0.1", port), hosts=True)), console):
            pass
    assert console.lines == [words.progress.joining("run", f"127.0.0.1:{port}", "a")]


async def test_a_server_that_fails_before_it_ever_answered_is_hosted_thrice(monkeypatch, unused_tcp_port):
    monkeypatch.setattr(HostedServer, "_command", lambda self, listener: [sys.executable, "-c", "raise SystemExit(3)"])
    console = FakeConsole()
    server = HostedServer("127.0.0.1", unused_tcp_port, Credentials(), console)
    for _ in range(STARTS):
        server.ensure()
        async with asyncio.timeout(PATIENCE_S):
            while server._process.exit_code is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    with pytest.raises(ServerLost, match=pattern(words.hosting.hosting_fails, port=unused_tcp_port)):
        server.ensure()
    assert len(console.lines) == STARTS
