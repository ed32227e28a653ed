"""Hosts for a test, with a check that no worker and no namespace is left after it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.hosts.cluster import Hosts
from tests.hosts.namespaces import remove_leftovers, why_impossible
from tests.hosts.network import Network
from tests.hosts.results import Recovery
from tests.support.worker_hub import WorkerHub

Note = Callable[..., None]


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    """Skip if network namespaces are impossible. Remove those of an earlier run."""
    if reason := why_impossible():
        pytest.skip(reason)
    remove_leftovers()


@pytest.fixture
async def hosts(hub: WorkerHub, tmp_path: Path) -> AsyncIterator[Hosts]:
    """Hosts a, b and c, and s with the server."""
    async with _serving(Network("sabc"), hub, tmp_path) as hosts:
        yield hosts


@pytest.fixture
async def ipv6_hosts(hub: WorkerHub, tmp_path: Path) -> AsyncIterator[Hosts]:
    """Hosts a and b, and s with the server, without any IPv4."""
    async with _serving(Network("sab", ipv6=True), hub, tmp_path) as hosts:
        yield hosts


@asynccontextmanager
async def _serving(network: Network, hub: WorkerHub, folder: Path) -> AsyncIterator[Hosts]:
    async with network, Hosts(hub, network, folder) as cluster:
        await cluster.serve()
        yield cluster


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    """Check a recovery, and note it for the table of docs/explanation/failures.md."""

    def check_and_enter(
        fault: str, took_s: float, allowed_s: float, because: str, steps_again: int | None = None
    ) -> None:
        recovery = Recovery(fault, took_s, allowed_s, because, steps_again)
        recovery.check()
        record_property("recovery", recovery.as_property())

    return check_and_enter
