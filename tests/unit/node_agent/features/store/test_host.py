"""Start of the helper that hosts the workers' store, with a helper that needs no torch.

tests/integration/test_store.py tests the real helper.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent import words
from node_agent.features.store import host as module
from node_agent.features.store.host import StoreHost
from tests.support.changes import PATIENCE_S
from tests.support.message_search import has_message
from tests.support.process_info import kill_unnoticed

HELPER = """
import os, socket
orders = socket.socket(fileno=os.dup(0))
while True:
    order, fds, _, _ = socket.recv_fds(orders, 64, maxfds=1)
    if not order:
        break
    if fds:
        orders.send(order)
        listener = socket.socket(fileno=fds[0])
        connection, _ = listener.accept()
        connection.sendall(str(os.getpid()).encode())
        if connection.recv(1):
            os._exit(7)
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an installed torch, with a helper that does not need it."""
    program = tmp_path / "helper.py"
    program.write_text(HELPER)
    monkeypatch.setattr(module, "has_torch", lambda: True)
    monkeypatch.setattr(module, "PROGRAM", str(program))


class Host:
    def __init__(self) -> None:
        self.errors: asyncio.Queue[str] = asyncio.Queue()
        self.host = StoreHost({}, self.errors.put_nowait)
        self.listeners: list[socket.socket] = []

    def open(self) -> int:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.listeners.append(listener)
        self.host.open(listener)
        return int(listener.getsockname()[1])


@pytest.fixture
async def host(torch: Path) -> AsyncIterator[Host]:
    host = Host()
    yield host
    host.host.shutdown()
    for listener in host.listeners:
        listener.close()


class Client:
    @classmethod
    async def connect(cls, port: int) -> "Client":
        client = cls()
        client.reader, client.writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE_S):
            client.pid = int(await client.reader.read(100))
        return client

    async def close(self, word: bytes = b"") -> None:
        self.writer.write(word)
        self.writer.close()
        await self.writer.wait_closed()


def has_helper(host: Host) -> bool:
    return host.host._helper is not None


async def test_the_helper_is_not_started_before_the_store_is_needed(host):
    host.open()
    assert not has_helper(host)


async def test_the_helper_starts_at_the_first_connection(host):
    client = await Client.connect(host.open())
    await client.close()


async def test_the_store_starts_at_once_if_workers_have_imported_torch(host):
    host.host = StoreHost({}, host.errors.put_nowait, at_once=True)
    host.open()
    assert has_helper(host)


@pytest.mark.parametrize("when", ["at the end of a round", "between two rounds"])
async def test_a_dead_helper_is_replaced_without_an_error(host, when):
    client = await Client.connect(host.open())
    if when == "between two rounds":
        host.host.close()
    kill_unnoticed(client.pid)
    host.host.close()
    successor = await Client.connect(host.open())
    assert successor.pid != client.pid
    assert host.errors.empty(), "no worker needed the store any more"
    await client.close()
    await successor.close()


async def test_a_helper_that_was_dying_when_a_round_began_is_replaced(host):
    """The order arrives in its socket, and it never reads it."""
    client = await Client.connect(host.open())
    host.host.close()
    os.kill(client.pid, signal.SIGSTOP)
    port = host.open()
    os.kill(client.pid, signal.SIGKILL)
    successor = await Client.connect(port)
    assert successor.pid != client.pid
    assert host.errors.empty(), "the round's workers have lost nothing"
    await client.close()
    await successor.close()


async def test_helpers_that_die_before_their_first_request_are_logged(host, tmp_path):
    (tmp_path / "helper.py").write_text("raise SystemExit(5)")
    _, writer = await asyncio.open_connection("127.0.0.1", host.open())
    async with asyncio.timeout(PATIENCE_S):
        assert has_message(await host.errors.get(), words.workers.store_ended, exit_code=5)
    writer.close()


async def test_a_helper_that_exits_is_reported_with_its_exit_code(host):
    client = await Client.connect(host.open())
    await client.close(b"!")
    async with asyncio.timeout(PATIENCE_S):
        assert await host.errors.get() == words.workers.store_ended(client.pid, 7)


async def test_a_store_that_was_not_closed_ends_when_the_next_one_opens(host):
    """Other code may reuse the descriptor of such a store. For example, this node's workers succeed and another node's
    fail.
    """
    host.open()
    listener = host.listeners.pop()
    number = listener.fileno()
    host.open()
    listener.close()
    reads, writes = os.pipe()
    os.dup2(reads, number)  # what the worker's pipe may get
    has_read = asyncio.Event()
    asyncio.get_running_loop().add_reader(number, has_read.set)
    os.write(writes, b"output")
    async with asyncio.timeout(PATIENCE_S):
        await has_read.wait()
    assert not has_helper(host), "no worker has used the store"
    asyncio.get_running_loop().remove_reader(number)
    for descriptor in {reads, writes, number}:
        os.close(descriptor)


async def test_a_helper_that_cannot_be_started_is_reported(host, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    port = host.open()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE_S):
        assert await host.errors.get() == words.workers.store_not_started("No such file or directory")
    writer.close()


async def test_a_port_at_which_the_store_cannot_listen_is_reported(host):
    listener = socket.socket()
    listener.close()
    host.host.open(listener)
    async with asyncio.timeout(PATIENCE_S):
        assert await host.errors.get() == words.workers.store_cannot_listen("Bad file descriptor")


async def test_without_torch_there_is_no_host(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [])
    assert not StoreHost({}, print).is_available


@pytest.mark.parametrize(("value", "available"), [("1", False), ("0", True)])
async def test_the_user_can_have_rank_0_host_the_store(torch, value, available):
    assert StoreHost({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": value}, print).is_available is available
