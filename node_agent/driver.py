"""The sole caller of the agent's machine: carries its effects out and feeds it what happens. One timer."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

from node_agent.config import AgentConfig
from node_agent.console import Console
from node_agent.conversation import Conversation, ServerLost
from node_agent.core.effects import (
    Effect,
    Exit,
    Say,
    SendJoin,
    SendLeave,
    SendPoll,
    SendReport,
    StartWorkers,
    StopWorkers,
)
from node_agent.core.environment import omp_warning
from node_agent.core.events import (
    Answered,
    Event,
    GaveUp,
    Refused,
    Signalled,
    Started,
    TimePassed,
    WorkerFailed,
    WorkersStopped,
    WorkersSucceeded,
)
from node_agent.core.machine import AgentMachine
from node_agent.ports import ReservedPort
from node_agent.scratch import ScratchDir
from node_agent.specs import SpecMaker
from node_agent.store_host import StoreHost
from node_agent.workers import WorkerGroup
from protocol.errors import AgentFenced, ProtocolError, StaleRound
from protocol.messages import Assignment, Failure, JoinRequest, LeaveRequest, PollRequest, Reply, ReportRequest


class Driver:
    """Runs one agent from its start to its exit code."""

    def __init__(
        self, config: AgentConfig, name: str, conversation: Conversation, side_line: Conversation, console: Console
    ) -> None:
        self._config = config
        self._machine = AgentMachine(name)
        self._conversation = conversation
        self._side_line = side_line
        self._console = console
        self._scratch = ScratchDir()
        self._specs = SpecMaker(config, console, self._scratch)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._conversing: set[asyncio.Task[None]] = set()
        self._telling: set[asyncio.Task[None]] = set()
        self._port: ReservedPort | None = None
        self._store_host = StoreHost(config.environment, self._store_broke)
        self._group: WorkerGroup | None = None
        self._assignment: Assignment | None = None
        self._exit_code: asyncio.Future[int] = self._loop.create_future()

    async def run(self) -> int:
        """Join, supervise, and return the process's exit code."""
        for signum in map(signal.Signals.__getitem__, self._config.signals):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup stays nohup
                self._loop.add_signal_handler(signum, self._feed, Signalled(signum.name))
        self._feed(Started())
        try:
            return await self._exit_code
        finally:
            await self._take_leave()

    def _feed(self, event: Event) -> None:
        for effect in self._machine.handle(event, self._loop.time()):
            self._perform(effect)
        self._arm()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendJoin(agent_id, after_round, returning):
                self._spawn(self._join(agent_id, after_round, returning), self._conversing)
            case SendPoll(agent_id, revision, hold):
                poll = PollRequest(run_id=self._config.run_id, agent_id=agent_id, revision=revision, hold=hold)
                self._spawn(self._converse(lambda addr: poll), self._conversing)
            case SendReport(agent_id, round_, failure):
                run_id = self._config.run_id
                report = ReportRequest(run_id=run_id, agent_id=agent_id, round=round_, failure=failure)
                self._spawn(self._tell(report), self._telling)
            case SendLeave(agent_id, reason):
                leave = LeaveRequest(run_id=self._config.run_id, agent_id=agent_id, reason=reason)
                self._spawn(self._tell(leave), self._telling)
            case StartWorkers(assignment):
                self._start_workers(assignment)
            case StopWorkers(signal_name, kill):
                self._stop_workers(signal_name, kill)
            case Say(text):
                self._console.say(text)
            case Exit(code):
                self._exit_code.set_result(code)

    # Workers.

    def _start_workers(self, assignment: Assignment) -> None:
        round_, self._assignment = assignment.round, assignment
        if self._group is None and (warning := omp_warning(self._config.environment, assignment.local_world_size)):
            self._console.say(warning)
        if assignment.agent_store and assignment.group_rank == 0:
            assert self._port
            self._store_host.open(self._port.socket)
        self._group = WorkerGroup(
            self._specs.specs(assignment),
            succeeded=lambda: self._feed(WorkersSucceeded(round_)),
            failed=lambda failure: self._feed(WorkerFailed(round_, failure)),
            stopped=lambda left: self._workers_stopped(round_, left),
        )

    def _stop_workers(self, signal_name: str, kill: bool) -> None:
        assert self._group
        if kill:
            self._group.stop(signal.SIGKILL, 0.0)
        else:
            self._group.stop(signal.Signals[signal_name], self._config.shutdown_timeout_s)

    def _workers_stopped(self, round_: int, left: list[int]) -> None:
        if left:
            self._console.say(f"could not kill: pid {', '.join(map(str, left))}; giving them up")
        self._store_host.shut()
        self._feed(WorkersStopped(round_))

    def _store_broke(self, reason: str) -> None:
        """Without their store the workers cannot go on."""
        assert self._assignment
        failure = Failure(
            node_id=self._config.node_id,
            rank=self._assignment.first_rank,
            local_rank=0,
            pid=0,
            exit_code=1,
            cause=reason,
            failed_at=time.time(),
        )
        self._feed(WorkerFailed(self._assignment.round, failure))

    # Messages.

    async def _join(self, agent_id: str, after_round: int, returning: bool) -> None:
        port = self._reserve_port()
        await self._converse(lambda addr: self._join_request(agent_id, after_round, returning, addr, port))

    def _reserve_port(self) -> int:
        """A fresh port each round, unless the user chose one."""
        if self._port is None or self._config.master_port is None:
            used, self._port = self._port, ReservedPort(self._config.master_port or 0)
            if used:
                used.release()  # after the new one was reserved, so that the two differ
        return self._port.number

    def _join_request(self, agent_id: str, after_round: int, returning: bool, addr: str, port: int) -> JoinRequest:
        config = self._config
        return JoinRequest(
            run_id=config.run_id,
            agent_id=agent_id,
            node_id=config.node_id,
            after_round=after_round,
            addr=config.local_addr or addr,
            port=port,
            local_world_size=config.nproc,
            role=config.role,
            node_rank=config.node_rank,
            settings=config.settings,
            explicit_run_id=config.explicit_run_id,
            rerun=config.rerun,
            returning=returning,
            hosts_store=self._store_host.is_available,
        )

    async def _converse(self, request: Callable[[str], JoinRequest | PollRequest]) -> None:
        try:
            reply = await self._conversation.ask(request)
        except ProtocolError as error:
            self._feed(Refused(error))
        except ServerLost as lost:
            self._feed(GaveUp(str(lost)))
        else:
            assert isinstance(reply, Reply)
            self._feed(Answered(reply))

    async def _tell(self, message: ReportRequest | LeaveRequest) -> None:
        """Deliver a message that needs no answer."""
        try:
            await self._side_line.ask(lambda addr: message)
        except (AgentFenced, StaleRound, ServerLost):
            pass  # the run has gone on without it; the conversation hears what there is to do
        except ProtocolError as error:
            self._feed(GaveUp(f"rdzv-server refused a {type(message).__name__}: {error}"))

    # Time and tasks.

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if (at := self._machine.next_deadline()) is not None:
            self._timer = self._loop.call_at(at, self._feed, TimePassed())

    def _spawn(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) and not self._exit_code.done():
            self._exit_code.set_exception(error)

    async def _take_leave(self) -> None:
        """Deliver what is still to be told, within reason, and let everything go."""
        if self._timer:
            self._timer.cancel()
        if self._telling:
            await asyncio.wait(self._telling, timeout=self._config.farewell_timeout_s)
        leftover = self._telling | self._conversing
        for task in leftover:
            task.cancel()
        await asyncio.gather(*leftover, return_exceptions=True)
        await self._conversation.close()
        await self._side_line.close()
        self._store_host.close()
        if self._port:
            self._port.release()
        self._scratch.remove()
