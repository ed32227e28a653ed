"""Fixtures of all tests with real programs."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.replicas import Replicas
from tests.support.certificates import Authority
from tests.support.cluster import Cluster
from tests.support.etcd import Etcd, etcd_cluster, need_etcd
from tests.support.worker_hub import WorkerHub


@pytest.fixture(autouse=True)
def programs_end_with_each_test(programs: None) -> None:
    pass


@pytest.fixture
def other_authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "other")


@pytest.fixture
async def durable(hub: WorkerHub, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster whose server keeps its state in a file."""
    async with Cluster(hub, "--store", f"sqlite:{tmp_path}/state.db") as cluster:
        await cluster.serve()
        yield cluster


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member, which ends with the tests of its module: other tests check the children of pytest's own process."""
    need_etcd()
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1) as etcd:
        yield etcd


@pytest.fixture
async def unserved(hub: WorkerHub, etcd: Etcd, tmp_path: Path) -> AsyncIterator[Replicas]:
    """A cluster of servers that share an etcd. None of them has been started."""
    async with Replicas(hub, etcd, tmp_path.name) as replicas:
        yield replicas


@pytest.fixture
async def replicas(unserved: Replicas) -> Replicas:
    """Two servers, the first of which leads."""
    await (await unserved.replicate()).leads()
    await (await unserved.replicate()).line("following")
    return unserved


@pytest.fixture(params=["durable", "replicas"])
def lasting(request: pytest.FixtureRequest) -> Cluster:
    """A cluster whose runs outlive a server, which is started again or followed by another one."""
    cluster = request.getfixturevalue(request.param)
    assert isinstance(cluster, Cluster)
    return cluster
