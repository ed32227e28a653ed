"""A driver with its registry and a store, which may be slow or full."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rdzv_protocol.events import RunEvent
from rdzv_protocol.messages import PollRequest, Start
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.core.effects import Record
from rdzv_server.core.events import (
    NodeJoined,
)
from rdzv_server.core.runs.registry import Registry
from rdzv_server.service.driver import Driver
from rdzv_server.storage.base import Change, MemoryStore, StoreUnavailable
from tests.support.scenario import RUN_ID, a_join, settings_of

PATIENCE_S = 10.0


class SlowStore(MemoryStore):
    """Store that writes at once, unless the test delays it."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self._may_write = asyncio.Event()
        self._is_writing = asyncio.Event()
        self.release()

    def hold(self) -> None:
        self._may_write.clear()
        self._is_writing.clear()

    def release(self) -> None:
        self._may_write.set()

    async def is_writing(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._is_writing.wait()

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        self._is_writing.set()
        await self._may_write.wait()
        self.batches.append([type(change.fact).__name__ for change in changes if isinstance(change, Record)])
        await super().append(changes, events)


class FullStore(MemoryStore):
    """Store that fails to write, with this error, while it has no room."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.has_room = error is None
        self._error = error or StoreUnavailable("no room")
        self.refused = asyncio.Event()
        self.checks = 0

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        self._accept()
        await super().append(changes, events)

    async def check(self) -> None:
        self.checks += 1
        self._accept()

    def _accept(self) -> None:
        if not self.has_room:
            self.refused.set()
            raise self._error


class Server:
    """A driver with its registry, store and long polls."""

    def __init__(self, store: MemoryStore, retention_s: float = 3_600.0) -> None:
        self.store = store
        self.registry = Registry(retention_s)
        self.driver = Driver(self.registry, store)
        self.long_polls = self.driver.long_polls

    async def join(self, *names: str, nodes: str = "2", **settings) -> None:
        for name in names:
            asked = settings_of(nodes, **settings) if nodes else RequestedSettings()
            join = NodeJoined(a_join(name, settings=asked, explicit_run_id=True), "10.0.0.9")
            await self.driver.submit(RUN_ID, join)

    def directive(self, name: str):
        return self.registry.machine_of(RUN_ID, name).directive_for(name, self.driver.now())[1]

    def revision(self, name: str) -> int:
        return self.registry.machine_of(RUN_ID, name).directive_for(name, self.driver.now())[0]

    def polls(self, names: str, ahead: int = 0) -> dict[str, PollRequest]:
        """Return the next poll of each agent, with revisions that are `ahead` of those it was told."""
        agents = {name: self.registry.machine_of(RUN_ID, name).agent(name) for name in names}
        return {
            name: PollRequest(
                run_id=RUN_ID,
                agent_id=name,
                revision=self.revision(name) + ahead,
                round=0 if agent.has_joined else agent.round,
            )
            for name, agent in agents.items()
        }

    def runs_on(self, names: str) -> bool:
        return {type(self.directive(name)) for name in names} == {Start}

    async def told(self, name: str, kind: type) -> None:
        """Return once the agent has a directive of this kind, which wakes its poll."""
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance(self.directive(name), kind):
                await self.long_polls.park((RUN_ID, name), PATIENCE_S)


StartServer = Callable[..., Awaitable[Server]]
