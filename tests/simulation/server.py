"""The real service on the simulated clock: driver, long polls and connections as in `rdzv-server`, without HTTP."""

import asyncio
from asyncio import events
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from rdzv_protocol.actions import ActionRequest, WorkerLog
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.errors import ProtocolError, ServerUnavailable
from rdzv_protocol.events import RunEvent
from rdzv_protocol.messages import (
    ErrorReply,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    ReportRequest,
    Request,
    SuspectRequest,
)

from rdzv_server.core.effects import Record
from rdzv_server.core.kernel.liveness import Leases
from rdzv_server.core.kernel.run import Run, RunState
from rdzv_server.core.node_facts import NodeBlamed
from rdzv_server.core.nodes.exclusion import ExclusionPolicy
from rdzv_server.core.runs.registry import Registry
from rdzv_server.service.clock import Clock as ServerClock
from rdzv_server.service.driver import Driver
from rdzv_server.service.interface import OperatorRequest
from rdzv_server.service.long_polls import AgentKey
from rdzv_server.service.rendezvous import Rendezvous
from rdzv_server.storage.base import Change, MemoryStore
from simulation.clock import Clock, Timer
from simulation.network import Connection, Host

RETENTION_S = 86_400.0
BEGAN_AT = 1_750_000_000.0
"""Wall-clock time at which the simulation begins, in seconds since 1970."""
OPERATOR = "operator"
EPSILON = 1e-6

_Told = JoinRequest | ReportRequest | SuspectRequest | LeaveRequest
Respond = Callable[[bool, bytes], None]
"""Callback that sends an answer or a refusal: whether it is an answer, and its bytes."""


class _TimerHandle(asyncio.TimerHandle):
    """Handle of a timer that is removed from the clock when cancelled."""

    timer: Timer

    def cancel(self) -> None:
        super().cancel()
        self.timer.cancel()


class Loop(asyncio.BaseEventLoop):
    """An event loop whose timers are on the clock, or on a host. It has no files to wait for."""

    def __init__(self, clock: Clock | Host) -> None:
        super().__init__()
        self.errors: list[BaseException] = []
        self.is_dead = False
        """Whether the process was killed: then nothing happens in it any more."""
        self._clock = clock
        self._selector = self
        self.set_exception_handler(lambda loop, context: None)  # for tasks that remain at the end of a story

    def time(self) -> float:
        return self._clock.now

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        handle = _TimerHandle(when, callback, args, self, context)
        handle.timer = self._clock.at(when, lambda: self.do(callback, *args))
        return handle

    def start(self, work: Any) -> "asyncio.Task[Any]":
        """Start a task whose error `do` raises."""
        task = self.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def do(self, callback: Callable[..., object], *args: Any) -> None:
        """Call it inside the loop, and return when nothing is left to do at this instant."""
        if self.is_dead:
            return
        self.call_soon(callback, *args)
        ready = self._ready
        events._set_running_loop(self)
        try:
            while ready:  # like run_forever, which takes several times as long to begin and to end
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            events._set_running_loop(None)
        for error in self.errors:
            raise error

    def select(self, timeout: float) -> list[Any]:
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)

    def __del__(self) -> None:
        """Close nothing."""


class TracedStore(MemoryStore):
    """Store that reports all writes, and so all changes of a run."""

    def __init__(self, trace: Callable[[str, Any], None]) -> None:
        super().__init__()
        self.events: list[RunEvent] = []
        """All written events, in order."""
        self.blames: list[NodeBlamed] = []
        """All blame on nodes, in order."""
        self._trace = trace

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        await super().append(changes, events)
        self.events += events
        for change in changes:
            if isinstance(change, Record):
                self._trace("server", change.fact)
                if isinstance(change.fact, NodeBlamed):
                    self.blames.append(change.fact)


class ObservedRendezvous(Rendezvous):
    """Rendezvous that knows since when agents have no connection."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.closed_at: dict[str, float] = {}
        self.closings: list[tuple[float, str]] = []
        """Time and agent of each close under a parked poll."""
        self.closed_last: set[str] = set()
        """Agents whose connections closed when all others of their run were away."""

    def _disconnected(self, key: AgentKey, was_parked: bool) -> None:
        if was_parked and key[1] not in self.closed_at:
            self.closed_at[key[1]] = self.now()
            self.closed_last -= {key[1]}
            self.closed_last |= {key[1]} if self._is_last(key) else set()
        self.closings += [(self.now(), key[1])] * was_parked
        super()._disconnected(key, was_parked)

    def _is_last(self, key: AgentKey) -> bool:
        """Return whether the agent is the last certain one of its run."""
        return any(
            key[1] in run.agents and run.agents.keys() - run.leases.uncertain <= {key[1]}
            for run in self._driver.registry.runs()
        )


class Server:
    """The simulated server. `trace` is called with what is recorded. `exclusion`: its rule for excluding nodes.

    It can be killed and started again: only its store stays.
    """

    def __init__(
        self, clock: Clock, trace: Callable[[str, Any], None], exclusion: ExclusionPolicy | None = None
    ) -> None:
        self.renewed_at: dict[str, float] = {}
        """Time at which each agent was truly last heard, or got a fresh lease from a restarted server."""
        self.heard_at: dict[str, float] = {}
        """Time at which each agent was truly last heard."""
        self.restarted_at = 0.0
        """Time of the last start."""
        self.is_down = False
        self._clock, self._exclusion = clock, exclusion
        self._unheard: set[str] = set()
        """Agents that the server has not heard since its last restart."""
        self._heard: list[tuple[float, str]] = []
        self._waiting = 0
        self._waits: list[tuple[float, bool]] = [(0.0, False)]
        """Times at which the number of waiting requests changed, and whether any waited then."""
        self._operators = Host(clock, "operators", "10.0.1.1")
        self._questions: list[Callable[[ProtocolError], None]] = []
        """Callbacks of operators' open questions."""
        self._store = TracedStore(trace)
        self._starts = 0
        self._start()

    def _start(self) -> None:
        self._starts += 1
        self.registry = Registry(RETENTION_S, exclusion=self._exclusion)
        self._loop = Loop(self._clock)
        self._polls: dict[Connection, list[asyncio.Task[None]]] = {}
        driver = Driver(self.registry, self._store, clock=ServerClock(lambda: BEGAN_AT + self._clock.now))
        self._rendezvous = ObservedRendezvous(driver)
        self._rendezvous.epoch = f"epoch-{self._starts}"
        self._loop.do(self._loop.start, driver.start())
        self._loop.do(self._loop.start, driver.crashed())

    def close(self) -> None:
        """Answer all parked polls, as a server does on SIGTERM."""
        self._loop.do(self._rendezvous.close)

    def die(self) -> None:
        """Send SIGKILL. The operators' questions break."""
        self.is_down = True
        self._loop.do(self._cancel_all)  # nothing of it is heard, and no task is left to be destroyed
        self._loop.is_dead = True
        self._wait(-self._waiting)
        questions, self._questions = self._questions, []
        for ended in questions:
            ended(ServerUnavailable("the server is gone"))

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def restart(self) -> None:
        """Start another process with the store. Check that it knows what the one before knew."""
        before = {run.key: _state_of(run) for run in self.registry.runs()}
        self._start()
        self.is_down, self.restarted_at = False, self._clock.now
        for run in self.registry.runs():
            known, now = before.pop(run.key), _state_of(run)
            changed = {name: (known[name], now[name]) for name in known if known[name] != now[name]}
            assert not changed, f"a restarted server knows it otherwise: {changed}"
            self.renewed_at |= dict.fromkeys(run.agents, self._clock.now)
            self._unheard |= run.agents.keys()
        assert not before, f"a restarted server has forgotten {before}"

    @property
    def closed_at(self) -> dict[str, float]:
        """Time at which each agent's last connection truly closed."""
        return self._rendezvous.closed_at

    @property
    def closings(self) -> list[tuple[float, str]]:
        """Time and agent of each connection that truly closed with a parked poll."""
        return self._rendezvous.closings

    @property
    def closed_last(self) -> set[str]:
        """Agents whose connections closed when all others of their run were away."""
        return self._rendezvous.closed_last

    @property
    def events(self) -> list[RunEvent]:
        """Events of all attempts, as they are recorded."""
        return self._store.events

    @property
    def blames(self) -> list[NodeBlamed]:
        """Blame on nodes, as it is recorded."""
        return self._store.blames

    def act(self, request: ActionRequest) -> None:
        """Carry out or refuse an operator's request."""
        if not self.is_down:
            self._loop.do(self._loop.start, self._act(OperatorRequest(request, OPERATOR)))

    async def _act(self, action: OperatorRequest) -> None:
        with suppress(ProtocolError):
            await self._rendezvous.ask(action, Connection(self._operators))

    def receive(self, kind: type[Request], body: bytes, connection: Connection, respond: Respond) -> None:
        """Take a request and answer it, now or when its hold ends."""
        if self.is_down:
            return
        try:
            request = decode(kind, body)
        except ProtocolError as error:
            _refuse(error, respond)
            return
        if isinstance(request, PollRequest):
            self._hear(request.agent_id)
        self._loop.do(self._begin, request, connection, respond)
        for run in self.registry.runs():
            if isinstance(request, _Told) and request.agent_id in run.agents:
                self._hear_what_counts(request, run.leases)

    def ask(self, question: OperatorRequest, ended: Callable[[WorkerLog | ProtocolError], None]) -> None:
        """Let an operator ask. `ended` is called with the result."""
        if self.is_down:
            ended(ServerUnavailable("the server is gone"))
        else:
            self._loop.do(self._loop.start, self._ask(question, ended))

    async def _ask(self, question: OperatorRequest, ended: Callable[[WorkerLog | ProtocolError], None]) -> None:
        self._questions.append(ended)
        answer: WorkerLog | ProtocolError
        try:
            told = await self._rendezvous.ask(question, Connection(self._operators))
        except ProtocolError as error:
            answer = error
        else:
            assert isinstance(told, WorkerLog)
            answer = told
        if not self.is_down:
            self._questions.remove(ended)
            ended(answer)

    def lost(self, connection: Connection) -> None:
        """The connection closed: its requests are dropped, and agents without another one are absent."""
        connection.is_closed = True
        self._loop.do(self._rendezvous.lost, connection)
        for task in self._polls.pop(connection, []):
            self._loop.do(task.cancel)

    def is_any_heard(self, agent_ids: Collection[str], after: float, until: float) -> bool:
        """Return whether one of these agents was truly heard in that time."""
        return any(after < at <= until + EPSILON and agent_id in agent_ids for at, agent_id in self._heard)

    def waits_at(self, at: float) -> set[bool]:
        """Return whether a request waited for its answer at that time: both, if that changed then."""
        before = [is_any for since, is_any in self._waits if since < at - EPSILON]
        return {*before[-1:], *(is_any for since, is_any in self._waits if abs(since - at) <= EPSILON)}

    def _begin(self, request: Request, connection: Connection, respond: Respond) -> None:
        task = self._loop.start(self._serve(request, connection, respond))
        self._polls.setdefault(connection, []).append(task)

    async def _serve(self, request: Request, connection: Connection, respond: Respond) -> None:
        self._wait(1)
        refusal: ProtocolError | None = None
        try:
            answer = await self._rendezvous.ask(request, connection)
        except ProtocolError as error:
            refusal = error
        finally:
            if not self.is_down:
                self._wait(-1)
        if not self.is_down:
            _refuse(refusal, respond) if refusal else respond(True, encode(answer))

    def _wait(self, change: int) -> None:
        self._waiting += change
        self._waits.append((self._clock.now, self._waiting > 0))

    def _hear_what_counts(self, request: _Told, leases: Leases) -> None:
        """Count signs of life. A copy of a join or a report is not one, for an agent that owes a sign of life."""
        agent_id, owes = request.agent_id, leases.uncertain.keys() - leases.absent_since.keys()
        if isinstance(request, JoinRequest) and agent_id not in self._unheard:
            counts = agent_id not in leases.probed_until.keys() | leases.spared.keys() | owes
        else:
            counts = leases.renewed_at.get(agent_id) == self._clock.now
        if counts:
            self._hear(agent_id)

    def _hear(self, agent_id: str) -> None:
        self.renewed_at[agent_id] = self.heard_at[agent_id] = self._clock.now
        self._unheard.discard(agent_id)
        self._heard.append((self._clock.now, agent_id))
        self.closed_at.pop(agent_id, None)


def _refuse(error: ProtocolError, respond: Respond) -> None:
    respond(False, encode(ErrorReply(code=error.code, message=str(error))))


def _state_of(run: Run) -> dict[str, Any]:
    """Return the state of the run that survives a restart."""
    return {name: getattr(run, name) for name in RunState.__struct_fields__}
