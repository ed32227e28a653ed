"""When the helper that hosts the workers' store is started, with a helper that needs no torch. The real one is tested
in tests/integration/test_store.py."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent.workers import store
from node_agent.workers.store import StoreHost
from tests.unit.node_agent.sheet import PATIENCE_S

HELPER = """
import os, socket
orders = socket.socket(fileno=os.dup(0))
serial = 0
while True:
    order, fds, _, _ = socket.recv_fds(orders, 16, maxfds=1)
    if not order:
        break
    if fds:
        serial += 1
        listener = socket.socket(fileno=fds[0])
        connection, _ = listener.accept()
        connection.sendall(f"{os.getpid()} {serial}".encode())
        if connection.recv(1):
            os._exit(7)
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that passes for torch's, and a helper that does without it."""
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "version.py").touch()
    program = tmp_path / "helper.py"
    program.write_text(HELPER)
    monkeypatch.setattr(store, "torch_folder", lambda: str(folder))
    monkeypatch.setattr(store, "PROGRAM", str(program))
    return folder


class Host:
    def __init__(self) -> None:
        self.broken: asyncio.Queue[str] = asyncio.Queue()
        self.host = StoreHost({}, self.broken.put_nowait)
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
    host.host.close()
    for listener in host.listeners:
        listener.close()


class Client:
    @classmethod
    async def connect(cls, port: int) -> "Client":
        client = cls()
        client.reader, client.writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE_S):
            client.pid, client.serial = map(int, (await client.reader.read(100)).split())
        return client

    async def close(self, word: bytes = b"") -> None:
        self.writer.write(word)
        self.writer.close()
        await self.writer.wait_closed()


def has_helper(host: Host) -> bool:
    return host.host._helper is not None


async def test_nothing_is_started_while_nobody_needs_the_store(host):
    host.open()
    assert not has_helper(host)


async def test_the_helper_starts_when_somebody_begins_to_import_torch(host, torch):
    host.open()
    (torch / "version.py").read_text()
    async with asyncio.timeout(PATIENCE_S):
        while not has_helper(host):  # noqa: ASYNC110 - the loop has to look at its descriptors
            await asyncio.sleep(0)


async def test_the_helper_starts_at_the_latest_when_somebody_connects(host):
    client = await Client.connect(host.open())
    assert client.serial == 1
    await client.close()


async def test_it_starts_at_once_where_nothing_can_be_watched(host, monkeypatch):
    monkeypatch.setattr(store, "torch_folder", lambda: "/nowhere")
    host.host = StoreHost({}, host.broken.put_nowait)
    host.open()
    assert has_helper(host)


async def test_one_helper_serves_round_after_round(host):
    first = await Client.connect(host.open())
    await first.close()
    host.host.shut()
    second = await Client.connect(host.open())
    assert (second.pid, second.serial) == (first.pid, 2)
    await second.close()


async def test_a_helper_that_ends_by_itself_is_told_and_replaced(host):
    client = await Client.connect(host.open())
    await client.close(b"!")
    async with asyncio.timeout(PATIENCE_S):
        assert (await host.broken.get()) == (
            f"the workers' store (process {client.pid}) ended by itself with exit code 7"
        )
    successor = await Client.connect(host.open())
    assert (successor.serial, successor.pid != client.pid) == (1, True)
    await successor.close()


async def test_without_torch_there_is_no_host(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [])
    assert not StoreHost({}, print).is_available


@pytest.mark.parametrize(("value", "available"), [("1", False), ("0", True)])
async def test_the_user_may_keep_the_store_to_the_workers(torch, value, available):
    assert StoreHost({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": value}, print).is_available is available
