"""One agent's side of the protocol, message by message."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rdzv_protocol.actions import StopRequest
from rdzv_protocol.messages import LeaveRequest, PollRequest, Reply, ReportRequest, Request

from rdzv_server.service.interface import OperatorRequest
from rdzv_server.service.rendezvous import Rendezvous
from tests.support.scenario import RUN_ID, Connection, a_failure, a_join, settings_of

PATIENCE_S = 10.0


class AgentSide:
    """An agent that keeps the last reply. `ask` sends a request and returns the answer. `settings`: the run's."""

    reply: Reply

    def __init__(self, name: str, ask: Callable[[Request], Awaitable[Any]], **settings: Any) -> None:
        self.name, self.ask = name, ask
        self._settings = {"last_call_timeout_s": 0.0} | settings
        self._sender = {"run_id": RUN_ID, "agent_id": name}

    async def join(self, nodes: str = "1:2", after_round: int = 0, secret: str = "") -> Reply:
        settings = settings_of(nodes, **self._settings)
        join = a_join(self.name, settings=settings, after_round=after_round, secret=secret)
        self.reply = await self.ask(join)
        return self.reply

    async def poll(self, *, hold: bool = True) -> Reply:
        self.reply = await self.ask(PollRequest(**self._sender, revision=self.reply.revision, hold=hold))
        return self.reply

    async def told(self, kind: type) -> Reply:
        """Poll until the reply has a directive of this kind, and return that reply."""
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance(self.reply.directive, kind):
                await self.poll()
        return self.reply

    async def reports(self, *, success: bool = True, round: int = 1) -> None:
        failure = None if success else a_failure(self.name)
        await self.ask(ReportRequest(**self._sender, round=round, failure=failure))

    async def leaves(self) -> None:
        await self.ask(LeaveRequest(**self._sender, reason="SIGTERM"))


async def come_and_go(rendezvous: Rendezvous, run_id: str, *names: str) -> None:
    """Let nodes join and leave at once: two events each, plus the run's creation."""
    for name in names:
        connection = Connection(name)
        request = a_join(name, run_id=run_id, settings=settings_of("90:100"), explicit_run_id=True)
        join = asyncio.create_task(rendezvous.ask(request, connection))
        await asyncio.sleep(0)
        await rendezvous.ask(LeaveRequest(run_id=run_id, agent_id=name, reason="SIGTERM"), connection)
        join.cancel()
        await asyncio.gather(join, return_exceptions=True)


async def is_forgotten_for_another(rendezvous: Rendezvous, run_id: str) -> None:
    """Make a server that holds one run forget that run at once: stop it, then start another run that needs its room.

    The other run is stopped too, so that there is room again.
    """
    for other in (run_id, "another"):
        await come_and_go(rendezvous, other, f"{other}-last")
        await rendezvous.ask(OperatorRequest(StopRequest(run_id=other), "an operator"), Connection(other))
