"""Stores as tests open them: one server's after another's, on one file or in one part of a real etcd."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rdzv_server.storage.base import MemoryStore, Store
from rdzv_server.storage.sqlite import SqliteStore
from tests.support.etcd import need_etcd

MakeStore = Callable[[], Awaitable[Store]]
"""Return the next server's store."""


class Shared:
    """The part of etcd that the servers of one test share."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client, self.prefix = client, prefix
        self.records = f"{prefix}/records/".encode()

    async def put(self, key: str, value: bytes) -> int:
        """Write a key, and return the revision."""
        from rdzv_server.storage.etcd_client import put

        return (await self.client.transact([], [put(f"{self.prefix}{key}".encode(), value)]))[1]

    async def delete(self, key: str) -> None:
        from rdzv_server.storage.etcd_client import delete

        await self.client.transact([], [delete(f"{self.prefix}{key}".encode())])

    async def lead(self) -> Any:
        """Return the store of a new leader. The previous one leads no more."""
        from rdzv_server.storage.etcd import EtcdStore

        await self.delete("/leader")
        number = await self.put("/leader", b"a:29400")
        return EtcdStore(self.client, self.prefix, f"{self.prefix}/leader".encode(), number)


@pytest.fixture
def shared(client: Any, prefix: str) -> Shared:
    return Shared(client, prefix)


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    if request.param == "etcd":
        need_etcd()
        return request.getfixturevalue("shared").lead

    if request.param == "memory":
        memory = MemoryStore()

        async def same() -> Store:
            return memory

        return same

    async def open_file() -> Store:
        return SqliteStore(str(tmp_path / "state.db"))

    return open_file
