"""Runner of an agent's machine: feeds it what happens, and carries its effects out. One timer, one poll.

What has to do with workers, ports and people is left to a `Host`, of which there are two: `node_agent.agent` has
workers of its own, `node_agent.compat.torchrun.agent_thread` works for a program that has its own.

An exception that nobody expected, in any callback or task of the event loop, ends the agent: it is reported with its
traceback, the workers are stopped, the agent leaves the run and exits with 1. If that fails as well, it exits anyway.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace
from rdzv_protocol.errors import AgentFenced, ProtocolError, StaleRound
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import (
    Ack,
    AnswerRequest,
    Failure,
    FinishedWorkers,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Progress,
    Reply,
    ReportRequest,
    Request,
    SuspectRequest,
)
from rdzv_protocol.queries import Query
from rdzv_protocol.text import clip, printable

from node_agent import words
from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core import events
from node_agent.kernel.core.backoff import ServerLost, Unreachable
from node_agent.kernel.core.effects import Effect, Exit, Level, Log, OwnEffect
from node_agent.kernel.core.machine import AgentMachine, State
from node_agent.kernel.transport.base import Transport, spawn
from node_agent.kernel.transport.retrying import RetryingClient

CRASH_MARGIN_S = 5.0
"""Time beyond its workers' grace period that an agent has to end in order after an exception."""
UNREACHABLE_S = 0.3
"""Seconds after which an agent gives up a leave that does not reach the server: it would only delay the agent's end."""
ANSWER_TIMEOUT_S = 10.0
"""Longest time for which an answer to a query is tried: then nobody waits for it, and a report may."""
MOST_REPORTS = 3
"""Tracebacks that are logged: the same callback may fail again and again."""


class Host(Protocol):
    """Carries out what the machine wants done in this process."""

    @property
    def has_workers(self) -> bool:
        """Whether any of its workers lives."""

    def open_port(self) -> int | str:
        """The MASTER_PORT of the round to be joined, if this node leads it; or why this agent leaves the run instead.

        Raises `OSError`, after which the agent gives up.
        """

    def progress(self) -> Progress | None:
        """Progress that the agent's workers have told of; None if they have told nothing."""

    def finished(self) -> FinishedWorkers | None:
        """Workers that have exited 0 while others of this node still run; None if there are none."""

    def perform(self, effect: OwnEffect) -> None:
        """Carry out what the machine wants done."""

    def answered(self, answer: Reply | ProtocolError) -> None:
        """Take note of the answer to the last join or poll, or its refusal; the machine is told next."""

    def crashed(self, error: BaseException) -> None:
        """Report an exception that nobody expected; the agent leaves the run next."""

    def abort(self) -> None:
        """Kill whatever workers there are, and end with exit code 1: nothing else can be relied on."""


class Runner:
    """One agent's machine at work, in this event loop. `where` names the server for people, `make_transport` opens a
    connection to it: one for joins and polls, one beside it for reports and leaves.
    """

    def __init__(
        self,
        config: AgentConfig,
        make_transport: Callable[[], Transport],
        where: str,
        host: Host,
        loop: asyncio.AbstractEventLoop,
        *,
        hosts_store: bool,
        queries: tuple[type[Query], ...] = (),
        checks: bool = False,
        has_rules: bool = False,
        notice_s: float | None = None,
        member: Callable[[bool], None] | None = None,
    ) -> None:
        """`queries`: the kinds that the host answers. `checks`, `has_rules`, `notice_s`: see `AgentMachine`.

        `member` is told whether the agent is part of its run, at the start and when that changes.
        """
        self.machine = AgentMachine(
            replace(
                config.join,
                agent_id=f"{config.join.node_id[:64]}-{os.urandom(6).hex()}",
                secret=os.urandom(16).hex(),  # nobody else can speak in its name
                hosts_store=hosts_store,
                command=config.command.fingerprint,
                program=clip(printable(config.command.name), 128),
                drains=True,
                queries=tuple(str(kind.__struct_config__.tag) for kind in queries),
            ),
            server=where,
            connect_timeout_s=config.connect_timeout_s,
            server_lost_timeout_s=config.server_lost_timeout_s,
            checks=checks,
            has_rules=has_rules,
            exits_when_excluded=config.exits_when_excluded,
            notice_s=notice_s,
            stop_s=config.shutdown_timeout_s,
        )
        self._client = RetryingClient(
            make_transport(),
            lambda error: self.feed(events.ConnectionFailed(error)),
            lambda cut: self.feed(events.PollCut(cut)),
        )
        self._side_client = RetryingClient(make_transport(), self._out_of_reach, has_joined=True)
        """Client whose reports must arrive, however late."""
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
        """Whether the latest message beside joins and polls has not reached the server yet."""
        self._closing: asyncio.Timeout | None = None
        loop.set_exception_handler(self._loop_failed)

    @property
    def round(self) -> int:
        """The round of the workers that were started last; 0 for none."""
        return self.machine.round

    async def report(self, failure: Failure) -> None:
        """Report a failure of the last round, whatever was reported before."""
        await self._deliver(self.machine.report(self.round, failure))

    def feed(self, event: events.Event) -> None:
        """Tell the machine what happened."""
        for effect in self.machine.handle(event, self._loop.time()):
            self._perform(effect)
        if self._member and self._was_member is not self.machine.is_member:
            self._was_member = self.machine.is_member
            self._member(self.machine.is_member)
        self._arm()

    def crashed(self, error: BaseException) -> None:
        """End the agent because of an exception that nobody expected."""
        self._crashes += 1
        try:
            if self._crashes <= MOST_REPORTS:
                self._host.crashed(error)
            self.feed(events.Crashed(words.agent.internal_error(type(error).__name__, str(error))))
            if not self._host.has_workers:  # whoever was to say so may be what has failed
                self.feed(events.WorkersStopped(self.machine.round))
            if self.machine.state is State.EXITED:
                self._host.perform(Exit(ExitCode.FAILED))  # its own effect may be lost
            elif self._abort_timer is None:
                self._abort_timer = self._loop.call_later(self._grace_s + CRASH_MARGIN_S, self._host.abort)
        except Exception:
            self._host.abort()
            raise

    async def _deliver(self, message: Request) -> None:
        """Deliver a message whose answer says nothing; among joins that is the one of an unfit node.

        A query is open until it is answered, and nothing depends on it: a server that does not take the answer may be.
        """
        limit_s = ANSWER_TIMEOUT_S if isinstance(message, AnswerRequest) else None
        try:
            async with asyncio.timeout(limit_s):
                await self._side_client.ask(message)
                self._is_out_of_reach = False
        except (AgentFenced, StaleRound, ServerLost, TimeoutError):
            pass  # the run has gone on without it; the answer to the next poll says what to do
        except ProtocolError as error:
            self._not_taken(message, error)
        if isinstance(message, ReportRequest):
            self.feed(events.Reported(message.round))

    def _not_taken(self, message: Request, error: ProtocolError) -> None:
        """Give up over a message that the server refuses, but for those on which nothing depends."""
        if isinstance(message, SuspectRequest):  # an older server knows none
            self._host.perform(Log(words.agent.suspicion_refused(str(error)), Level.WARNING))
        elif not isinstance(message, AnswerRequest):
            self.feed(events.GaveUp(words.agent.message_refused(str(error)), ExitCode.REFUSED))

    async def close(self) -> None:
        """Deliver the last reports, within `close_timeout_s`, or say that it was in vain, and close the connections.

        A leave that cannot reach the server is given up `UNREACHABLE_S` after it was sent.
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
        """Wait less long for the last reports if a leave cannot reach the server."""
        if self._leave and self._closing and self._is_out_of_reach and (until := self._closing.when()):
            self._closing.reschedule(min(until, self._left_at + UNREACHABLE_S))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case JoinRequest():
                self._join(effect)
            case PollRequest():
                poll = replace(effect, progress=self._host.progress(), finished=self._host.finished())
                spawn(self._exchange(poll), self._exchanges)
            case ReportRequest():
                told = replace(effect, progress=self._host.progress())
                spawn(self._deliver(told), self._notifications)
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
        """Exception handler of the loop. A transport's complaint about its peer is logged, and nothing else."""
        error = context.get("exception")
        if error is not None and ("handle" in context or isinstance(context.get("future"), asyncio.Task)):
            self.crashed(error)
        else:
            loop.default_exception_handler(context)
