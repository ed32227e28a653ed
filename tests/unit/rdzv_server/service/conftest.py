"""Runs that are checked after every event, and drivers that end with their test."""

from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Any

import pytest

from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.storage.base import MemoryStore
from tests.unit.rdzv_server.service.driven_server import Server, SlowStore, StartServer


@pytest.fixture(autouse=True)
def valid_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no event from the service, and no refusal, makes a run's state contradictory."""

    def checked(change: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(change)
        def change_and_check(machine: RunMachine, *args: Any) -> Any:
            try:
                return change(machine, *args)
            finally:
                machine.run.validate()

        return change_and_check

    for name in ("handle", "renew", "restart"):
        monkeypatch.setattr(RunMachine, name, checked(getattr(RunMachine, name)))


@pytest.fixture
async def started() -> AsyncIterator[StartServer]:
    servers = []

    async def start(store: MemoryStore, **options) -> Server:
        servers.append(Server(store, **options))
        await servers[-1].driver.start()
        return servers[-1]

    yield start
    for server in servers:
        await server.driver.stop()


@pytest.fixture
async def server(started) -> Server:
    return await started(MemoryStore())


@pytest.fixture
async def slow(started) -> Server:
    return await started(SlowStore())
