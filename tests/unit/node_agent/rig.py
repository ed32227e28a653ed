"""A real agent with real workers, a simulated server, and a console that keeps its output."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import (
    Ack,
    Directive,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    Request,
)

from node_agent.agent import Agent
from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.core.command import Command
from node_agent.kernel.processes.orphans import reap
from tests.support.changes import PATIENCE_S, Changes
from tests.support.console import FakeConsole
from tests.support.process_info import subreaper
from tests.unit.node_agent.story import join

F = TypeVar("F")
Fate = Directive | ProtocolError | Unreachable


class PlayedServer:
    """Transport whose joins and polls wait until the test answers them. Reports and leaves are accepted at once."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.error: Exception | None = None
        """If set, no request succeeds."""
        self.refusal: ProtocolError | None = None
        """Refusal of reports, suspicions and answers to queries, None to accept them."""
        self._revision = 0
        self._directive: Directive | None = None
        self._asked: asyncio.Future[Fate] | None = None
        self._changed = Changes()

    def transport(self) -> "PlayedServer":
        return self

    async def connect(self) -> str:
        if self.error:
            raise self.error
        return "127.0.0.1"

    async def exchange(self, request: Request) -> Reply | Ack:
        self.requests.append(request)
        self._changed.set()
        if self.refusal and not isinstance(request, JoinRequest | PollRequest | LeaveRequest):
            raise self.refusal
        if isinstance(request, ReportRequest | LeaveRequest):
            return Ack(epoch="e")
        if isinstance(request, PollRequest) and not request.hold:
            return self._reply()
        self._asked = asked = asyncio.get_running_loop().create_future()
        fate = await asked
        if isinstance(fate, Exception):
            raise fate
        self._revision += 1
        self._directive = fate
        return self._reply()

    def _reply(self) -> Reply:
        assert self._directive
        return Reply(epoch="e", revision=self._revision, lease_s=9.0, directive=self._directive)

    async def close(self) -> None:
        pass

    async def answers(self, fate: Fate) -> None:
        """Answer the current or next join or poll."""
        await self.until(lambda: self._asked and not self._asked.done())
        assert self._asked
        self._asked.set_result(fate)

    async def hears(self, kind: type, number: int = 1) -> Any:
        """Return the latest request of this kind, once there are `number` of them."""
        await self.until(lambda: len(self.of(kind)) >= number)
        return self.of(kind)[-1]

    def of(self, kind: type) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]

    async def until(self, holds: Callable[[], object]) -> None:
        await self._changed.until(holds)


class Rig:
    """One agent whose workers execute a shell script."""

    def __init__(
        self, script: str = "exec sleep 60", make: Callable[..., Agent] = Agent, workers: int = 1, **config: Any
    ) -> None:
        given = {
            "command": Command(("sh", "-c", script)),
            "join": join(local_world_size=workers),
            "signals": (),
            "shutdown_timeout_s": 5.0,
            "close_timeout_s": 1.0,
            "environment": {"PATH": os.environ["PATH"]},
        }
        self.server = PlayedServer()
        self.console = FakeConsole()
        self.config = AgentConfig(**(given | config))
        self.agent = make(self.config, self.console)
        self.end = asyncio.create_task(self.agent.run(self.server.transport, "server:1"))

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.end

    @property
    def pids(self) -> list[int]:
        """Pids of the running workers."""
        started = self.agent.started
        return started.group.pids if started else []

    def feature(self, kind: type[F]) -> F:
        """Return the agent's feature of this kind."""
        return next(each for each in self.agent._features if isinstance(each, kind))

    async def close(self) -> None:
        if not self.end.done():
            self.end.cancel()
            self.agent.abort()
        await asyncio.gather(self.end, return_exceptions=True)


@asynccontextmanager
async def rig(*args: Any, **config: Any) -> AsyncIterator[Rig]:
    """Yield a rig that ends all its processes."""
    with subreaper():
        made = Rig(*args, **config)
        try:
            yield made
        finally:
            await made.close()
            reap()
