"""The sole caller of the agent's machine: feeds it what happens, and carries its effects out. One timer, one poll.

What has to do with workers, ports and people is left to an `Actor`, of which there are two: `node_agent.agent` has
workers of its own, `node_agent.torchrun.agent_thread` works for a program that has its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from rdzv_protocol.errors import AgentFenced, ProtocolError, StaleRound
from rdzv_protocol.messages import Assignment, Reply

from node_agent.core.effects import (
    Effect,
    Exit,
    LeaveEvidence,
    Say,
    SendJoin,
    SendLeave,
    SendPoll,
    SendReport,
    StartWorkers,
    StopWorkers,
)
from node_agent.core.events import Answered, Event, GaveUp, Refused, Signalled, TimePassed
from node_agent.core.machine import AgentMachine
from node_agent.transport.retrying import ServerLost
from node_agent.transport.session import RunLine


class Actor(Protocol):
    """Does what the machine wants done in this process."""

    hosts_store: bool
    """Whether this agent can host the workers' store."""

    def open_port(self) -> int | None:
        """The MASTER_PORT of the round to be joined, if this node leads it; None to leave the run instead.

        Raises `OSError`, after which the agent gives up.
        """

    def start_workers(self, assignment: Assignment) -> None: ...

    def stop_workers(self, signal_name: str, kill: bool) -> None: ...

    def say(self, text: str) -> None:
        """One line for the person who watches."""

    def leave_evidence(self, effect: LeaveEvidence) -> None:
        """The run has failed, or this agent has."""

    def heard(self, answer: Reply | ProtocolError | ServerLost) -> None:
        """What came of the last join or poll; the machine is told next."""

    def ended(self, exit_code: int) -> None:
        """The machine has come to its end."""

    def crashed(self, error: BaseException) -> None:
        """Something went wrong that nobody expected."""


class MachineLoop:
    """One agent's machine at work, in this event loop."""

    def __init__(
        self, machine: AgentMachine, line: RunLine, actor: Actor, loop: asyncio.AbstractEventLoop, farewell_s: float
    ) -> None:
        self._machine = machine
        self._line = line
        self._actor = actor
        self._loop = loop
        self._farewell_s = farewell_s
        self._timer: asyncio.TimerHandle | None = None
        self._conversing: set[asyncio.Task[None]] = set()
        self._telling: set[asyncio.Task[None]] = set()

    def feed(self, event: Event) -> None:
        """Tell the machine what happened."""
        for effect in self._machine.handle(event, self._loop.time()):
            self._perform(effect)
        self._arm()

    async def tell(self, effect: SendReport | SendLeave) -> None:
        """Deliver what needs no answer."""
        try:
            await self._line.tell(effect)
        except (AgentFenced, StaleRound, ServerLost):
            pass  # the run has gone on without it; the conversation hears what there is to do
        except ProtocolError as error:
            self.feed(GaveUp(f"rdzv-server refused what this node had to say: {error}"))

    async def take_leave(self) -> None:
        """Deliver what is still to be told, within reason, and let the lines go."""
        if self._timer:
            self._timer.cancel()
        if self._telling:
            await asyncio.wait(self._telling, timeout=self._farewell_s)
        leftover = self._telling | self._conversing
        for task in leftover:
            task.cancel()
        await asyncio.gather(*leftover, return_exceptions=True)
        await self._line.close()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendJoin():
                self._join(effect)
            case SendPoll():
                self._spawn(self._converse(partial(self._line.poll, effect)), self._conversing)
            case SendReport() | SendLeave():
                self._spawn(self.tell(effect), self._telling)
            case StartWorkers(assignment):
                self._actor.start_workers(assignment)
            case StopWorkers(signal_name, kill):
                self._actor.stop_workers(signal_name, kill)
            case Say(text):
                self._actor.say(text)
            case LeaveEvidence():
                self._actor.leave_evidence(effect)
            case Exit(code):
                self._actor.ended(code)

    def _join(self, effect: SendJoin) -> None:
        try:
            port = self._actor.open_port()
        except OSError as error:
            self.feed(GaveUp(str(error)))
            return
        if port is None:
            self.feed(Signalled("its work is done"))
        else:
            join = partial(self._line.join, effect, port, hosts_store=self._actor.hosts_store)
            self._spawn(self._converse(join), self._conversing)

    async def _converse(self, ask: Callable[[], Awaitable[Reply]]) -> None:
        answer: Reply | ProtocolError | ServerLost
        try:
            answer = await ask()
        except (ProtocolError, ServerLost) as error:
            answer = error
        self._actor.heard(answer)
        match answer:
            case Reply():
                self.feed(Answered(answer))
            case ProtocolError():
                self.feed(Refused(answer))
            case ServerLost():
                self.feed(GaveUp(str(answer)))

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if (at := self._machine.next_deadline()) is not None:
            self._timer = self._loop.call_at(at, self.feed, TimePassed())

    def _spawn(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            self._actor.crashed(error)
