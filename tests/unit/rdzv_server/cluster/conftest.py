"""A client whose way to etcd can be shut."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.etcd import Etcd, Gate


@pytest.fixture
async def gated(etcd: Etcd) -> AsyncIterator[tuple[Any, Gate]]:
    from rdzv_server.storage.etcd_client import EtcdClient

    async with Gate(etcd.addresses[0]) as gate:
        client = EtcdClient([gate.address])
        yield client, gate
        gate.open()
        await client.close()
