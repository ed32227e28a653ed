"""A client whose way to etcd can be shut."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.etcd import Etcd
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture
async def gated(etcd: Etcd) -> AsyncIterator[tuple[Any, TcpProxy]]:
    from rdzv_server.storage.etcd_client import EtcdClient

    async with TcpProxy(etcd.addresses[0]) as gate:
        client = EtcdClient([gate.address])
        yield client, gate
        gate.release()
        await client.close()
