"""Runner of an agent's machine: passes events to the machine and carries its effects out, with one timer and one poll.

A `Host` does everything that concerns workers, ports and people. `node_agent.agent` is the host with workers of its
own. `node_agent.compat.torchrun.agent_thread` is the host for a program that starts its own workers.

An unexpected exception in any callback or task of the event loop ends the agent. The agent reports the exception with
its traceback, stops the workers, leaves the run and exits with 1. If that fails too, the agent exits anyway.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace
from rdzv_protocol.errors import AgentFenced, ProtocolError, StaleRound
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import (
    Ack,
    AnswerRequest,
    Failure,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    Request,
    SuspectRequest,
)
from rdzv_protocol.text import clip, printable

from node_agent import words
from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core import events
from node_agent.kernel.core.backoff import ServerLost, Unreachable
from node_agent.kernel.core.effects import Effect, Exit, Level, Log, OwnEffect
from node_agent.kernel.core.machine import AgentMachine, Capabilities, State
from node_agent.kernel.tasks import spawn
from node_agent.kernel.transport.retrying import RetryingClient, Transport

CRASH_MARGIN_S = 5.0
"""Seconds, beyond the workers' grace period, in which the agent must end after an exception."""
UNREACHABLE_S = 0.3
"""Seconds after which an agent abandons a leave that does not reach the server. It would only delay the exit."""
ANSWER_TIMEOUT_S = 10.0
"""Most seconds that the agent tries to deliver an answer to a query. After that the server has stopped waiting."""
MOST_REPORTS = 3
"""Most tracebacks that the agent logs: the same callback may fail again and again."""


Facts = TypeVar("Facts", PollRequest, ReportRequest)
"""Request with facts about the workers."""


class Host(Protocol):
    """Carries out the machine's effects in this process."""

    @property
    def has_workers(self) -> bool:
        """Whether any of its workers lives."""

    def open_port(self) -> int | str:
        """Return the MASTER_PORT of the next round, in case this node leads it, or a reason to leave the run.

        Raises `OSError`, after which the agent exits.
        """

    def filled(self, request: Facts) -> Facts:
        """Return the request with what is known about this agent's workers. It is about to be sent."""

    def perform(self, effect: OwnEffect) -> None:
        """Carry out an effect of the machine."""

    def answered(self, answer: Reply | ProtocolError) -> None:
        """Called with the answer to the last join or poll, or its refusal, before the machine handles it."""

    def crashed(self, error: BaseException) -> None:
        """Report an unexpected exception. The agent leaves the run next."""

    def abort(self) -> None:
        """Kill all workers and exit with code 1. Called when the rest of the process cannot be relied on."""


class Runner:
    """Runs one agent's machine in this event loop.

    `where`: the server's name for people. `make_transport`: opens a connection to the server. The runner opens two: one
    for joins and polls, the other for reports and leaves.
    """

    def __init__(
        self,
        config: AgentConfig,
        make_transport: Callable[[], Transport],
        where: str,
        host: Host,
        loop: asyncio.AbstractEventLoop,
        capabilities: Capabilities = Capabilities(),
        *,
        member: Callable[[bool], None] | None = None,
        completed: Callable[[ReportRequest], Awaitable[ReportRequest]] | None = None,
    ) -> None:
        """`member` is called at the start, and when the agent becomes or stops being a member of its run. `completed`
        returns a report with what takes time to find. The machine and the workers do not wait for it.
        """
        self.machine = AgentMachine(
            replace(
                config.join,
                agent_id=f"{config.join.node_id[:64]}-{os.urandom(6).hex()}",
                secret=os.urandom(16).hex(),  # so that only this agent can act under its id
                hosts_store=capabilities.hosts_store,
                command=config.command.fingerprint,
                program=clip(printable(config.command.name), 128),
                drains=True,
                queries=tuple(str(kind.__struct_config__.tag) for kind in capabilities.queries),
            ),
            server=where,
            capabilities=capabilities,
            connect_timeout_s=config.connect_timeout_s,
            server_lost_timeout_s=config.server_lost_timeout_s,
            exits_when_excluded=config.exits_when_excluded,
            exits_with_run=config.exits_with_run,
            stop_s=config.shutdown_timeout_s,
        )
        self._client = RetryingClient(
            make_transport(),
            lambda error: self.feed(events.ConnectionFailed(error)),
            lambda cut: self.feed(events.PollCut(cut)),
            lambda: self.feed(events.ServerRefused()),
        )
        self._side_client = RetryingClient(make_transport(), self._out_of_reach, has_joined=True)
        """Client for reports, which must arrive, however late."""
        self._in_order = asyncio.Lock()
        """Held while a report is completed, so that no leave overtakes it."""
        self._completed = completed
        self._member = member
        self._was_member: bool | None = None
        self._where = where
        self._host = host
        self._loop = loop
        self._close_timeout_s = config.close_timeout_s
        self._grace_s = config.shutdown_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._crashes = 0
        self._exchanges: set[asyncio.Task[None]] = set()
        self._notifications: set[asyncio.Task[None]] = set()
        self._leave: asyncio.Task[None] | None = None
        self._left_at = 0.0
        self._is_out_of_reach = False
        """Whether the latest report or leave has not reached the server yet."""
        self._closing: asyncio.Timeout | None = None
        self._is_closed = False
        loop.set_exception_handler(self._loop_failed)

    @property
    def round(self) -> int:
        """Round of the workers that were started last, 0 if there was none."""
        return self.machine.round

    async def report(self, failure: Failure) -> None:
        """Report a failure of the last round, even if another report was sent."""
        await self._deliver(self.machine.report(self.round, failure))

    def feed(self, event: events.Event) -> None:
        """Pass an event to the machine, unless the runner has closed: then nothing would wait for what follows."""
        if self._is_closed:
            return
        for effect in self.machine.handle(event, self._loop.time()):
            self._perform(effect)
        if self._member and self._was_member is not self.machine.is_member:
            self._was_member = self.machine.is_member
            self._member(self.machine.is_member)
        self._arm()

    def crashed(self, error: BaseException) -> None:
        """End the agent because of an unexpected exception."""
        self._crashes += 1
        try:
            if self._crashes <= MOST_REPORTS:
                self._host.crashed(error)
            self.feed(events.Crashed(words.agent.internal_error(type(error).__name__, str(error))))
            if not self._host.has_workers:  # the code that would report their end may have failed
                self.feed(events.WorkersStopped(self.machine.round))
            if self.machine.state is State.EXITED:
                self._host.perform(Exit(ExitCode.FAILED))  # the machine's own effect may be lost
            elif self._abort_timer is None:
                self._abort_timer = self._loop.call_later(self._grace_s + CRASH_MARGIN_S, self._host.abort)
        except Exception:
            self._host.abort()
            raise

    async def _deliver(self, message: Request) -> None:
        """Deliver a message whose answer does not matter, such as a report, a leave, or the join of an unfit node.

        If the server refuses the answer to a query, the agent ignores that: nothing depends on it.
        """
        limit_s = ANSWER_TIMEOUT_S if isinstance(message, AnswerRequest) else None
        try:
            async with asyncio.timeout(limit_s):
                async with self._in_order:
                    if isinstance(message, ReportRequest) and self._completed:
                        message = await self._completed(message)
                await self._side_client.ask(message)
                self._is_out_of_reach = False
        except (AgentFenced, StaleRound, ServerLost, TimeoutError):
            pass  # the run has continued without this agent, and the next poll's answer says what to do
        except ProtocolError as error:
            self._not_taken(message, error)
        if isinstance(message, ReportRequest):
            self.feed(events.Reported(message.round))

    def _not_taken(self, message: Request, error: ProtocolError) -> None:
        """End the agent because the server refuses the message, unless nothing depends on that message."""
        if isinstance(message, SuspectRequest):  # an older server does not know this request
            self._host.perform(Log(words.agent.suspicion_refused(str(error)), Level.WARNING))
        elif not isinstance(message, AnswerRequest):
            self.feed(events.GaveUp(words.agent.message_refused(str(error)), ExitCode.REFUSED))

    async def close(self) -> None:
        """Deliver the last reports within `close_timeout_s`, log any that could not be delivered, and close the
        connections.

        The agent abandons a leave that does not reach the server within `UNREACHABLE_S`.
        """
        for timer in (self._timer, self._abort_timer):
            if timer:
                timer.cancel()
        if self._notifications:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._close_timeout_s) as self._closing:
                    self._give_up_leave()
                    await asyncio.wait(self._notifications)
            if self._leave in self._notifications and self.machine.outages.is_known:
                self._host.perform(Log(words.connection.leave_not_delivered(self._where), Level.WARNING))
        self._is_closed = True
        leftover = self._notifications | self._exchanges
        for task in leftover:
            task.cancel()
        await asyncio.gather(*leftover, return_exceptions=True)
        await self._client.close()
        await self._side_client.close()

    def _out_of_reach(self, error: Unreachable | ProtocolError) -> None:
        self._is_out_of_reach = isinstance(error, Unreachable)
        self._give_up_leave()

    def _give_up_leave(self) -> None:
        """Shorten the wait for the last reports if a leave cannot reach the server."""
        if self._leave and self._closing and self._is_out_of_reach and (until := self._closing.when()):
            self._closing.reschedule(min(until, self._left_at + UNREACHABLE_S))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case JoinRequest():
                self._join(effect)
            case PollRequest():
                poll = replace(effect, round=self.machine.workers_round)
                spawn(self._exchange(self._host.filled(poll)), self._exchanges)
            case ReportRequest():
                spawn(self._deliver(self._host.filled(effect)), self._notifications)
            case SuspectRequest():
                spawn(self._deliver(effect), self._notifications)
            case LeaveRequest():
                self._leave, self._left_at = spawn(self._deliver(effect), self._notifications), self._loop.time()
            case AnswerRequest():
                spawn(self._deliver(effect), self._exchanges)
            case _:
                self._host.perform(effect)

    def _join(self, join: JoinRequest) -> None:
        try:
            port = self._host.open_port()
        except OSError as error:
            self.feed(events.GaveUp(str(error)))
            return
        if isinstance(port, str):
            self.feed(events.Signalled(port))
        elif join.unfit:
            spawn(self._deliver(replace(join, port=port)), self._notifications)
        else:
            spawn(self._exchange(replace(join, port=port)), self._exchanges)

    async def _exchange(self, request: JoinRequest | PollRequest) -> None:
        answer: Reply | Ack | ProtocolError
        try:
            answer = await self._client.ask(request)
        except ProtocolError as refusal:
            answer = refusal
        except ServerLost as error:
            self.feed(events.GaveUp(str(error), ExitCode.START_AGAIN))
            return
        assert isinstance(answer, Reply | ProtocolError)
        self._host.answered(answer)
        self.feed(events.Answered(answer))

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if (at := self.machine.next_deadline()) is not None:
            self._timer = self._loop.call_at(at, self.feed, events.TimePassed())

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the agent after an error in a callback or task. Only log a transport's complaint about its peer."""
        error = context.get("exception")
        if error is not None and ("handle" in context or isinstance(context.get("future"), asyncio.Task)):
            self.crashed(error)
        else:
            loop.default_exception_handler(context)
