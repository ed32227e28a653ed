"""An etcd of three members, clients whose connection to etcd can be held up, and waits for several servers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.etcd import Etcd, etcd_cluster, need_etcd
from tests.support.tcp_proxy import TcpProxy

PATIENCE_S = 20.0

Gated = tuple[Any, TcpProxy]


async def until(is_so: Callable[[], object]) -> None:
    """Return once the condition is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the three members to one process: they take processor time even while nothing happens."""
    for item in items:
        if "three" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("three"))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A cluster of three members, which end with the module: idle for a minute they take more time than to start."""
    need_etcd()
    with etcd_cluster(tmp_path_factory.mktemp("three"), 3) as etcd:
        yield etcd


@pytest.fixture
async def gates() -> AsyncIterator[Callable[..., Awaitable[Gated]]]:
    """Function that makes clients of etcd members. The first member is behind a gate."""
    from rdzv_server.storage.etcd_client import EtcdClient

    async with AsyncExitStack() as stack:

        async def make(first: str, *others: str) -> Gated:
            gate = await stack.enter_async_context(TcpProxy(first))
            client = EtcdClient([gate.address, *others])
            stack.push_async_callback(client.close)
            stack.callback(gate.release)
            return client, gate

        yield make


@pytest.fixture
async def gated(etcd: Etcd, gates: Callable[..., Awaitable[Gated]]) -> Gated:
    return await gates(etcd.addresses[0])
