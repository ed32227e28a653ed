"""An etcd of three members, and each test's part of an etcd."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.etcd import Etcd, etcd_cluster, need_etcd


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
async def client(etcd: Etcd) -> AsyncIterator:
    from rdzv_server.storage.etcd_client import EtcdClient

    client = EtcdClient(etcd.addresses)
    yield client
    await client.close()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}"
