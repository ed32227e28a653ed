"""Stores as tests open them: one server's after another's, on one file or in one part of a real etcd."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rdzv_server.storage.base import MemoryStore, Store
from rdzv_server.storage.sqlite import SqliteStore
from tests.support.etcd import need_etcd

MakeStore = Callable[[], Awaitable[Store]]
"""Return the next server's store."""


@pytest.fixture(params=["memory", "sqlite", pytest.param("etcd", marks=pytest.mark.xdist_group("etcd"))])
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
