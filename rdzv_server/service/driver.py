"""Driver: the sole caller of the core, with one inbox and one timer.

Events are taken in batches. A batch is applied to the core, its records are written in one go, and only then is anybody
woken or answered: what an agent is told to do has always been written down before.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from rdzv_protocol.errors import ProtocolError, ServerUnavailable, UnknownRun
from rdzv_protocol.events import EventKind, RunEvent
from rdzv_protocol.log_lines import Context

from rdzv_server.core import cordons, operations
from rdzv_server.core.cordons import CordonStatus
from rdzv_server.core.effects import Effect, ForgetRun, Happened, QueryClosed, Record, WakeAgents
from rdzv_server.core.events import (
    Event,
    LeaseRenewed,
    LogAsked,
    NodeJoined,
    NodeUncordoned,
    OperatorsFact,
    StacksAsked,
)
from rdzv_server.core.machine import RunMachine
from rdzv_server.core.registry import Registry
from rdzv_server.core.run import Run
from rdzv_server.service.clock import Clock
from rdzv_server.service.fair_scheduler import RoundRobin
from rdzv_server.service.interface import Observer
from rdzv_server.service.long_polls import Key, LongPolls
from rdzv_server.service.measurements import Measurements
from rdzv_server.storage.base import Store, StoreFenced, StoreUnavailable
from rdzv_server.storage.compaction import Compaction
from rdzv_server.storage.outage import Outage

log = logging.getLogger("rdzv_server")

Done = asyncio.Future[RunMachine | None]
"""Result of an event: the machine that took it, if it is about one run."""

LEVELS: Mapping[EventKind, int] = {"run_failed": logging.ERROR, "warning": logging.WARNING}
"""Log levels of events that are more than information."""
UNLOGGED: frozenset[EventKind] = frozenset({"run_created", "node_joined"})
"""Events that are not logged: there are many, and the start of the round says the same."""

STOPPED = "the server is shutting down; workers keep running, and agents try again"

RETRY_S = 0.5
"""Seconds until a failed write to the store is tried again."""
MOST_AT_ONCE = 128
"""Most events in a batch: those of other runs wait meanwhile."""
REPLAY_AT_ONCE = 500
"""Records that are replayed before anything else in the process gets its turn: a leader's lease must be renewed."""


class Driver:
    """Driver of the core: feeds it events, and carries its effects out. Time goes on from the server's life before."""

    def __init__(
        self,
        registry: Registry,
        store: Store,
        measurements: Measurements | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.registry = registry
        self._store = store
        self.measurements = measurements or Measurements()
        self.long_polls = LongPolls()
        self._compaction = Compaction(registry, store)
        self._inbox = RoundRobin[tuple[str, Event, Done | None]]()
        self._called = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._unanswered: dict[Done, Event] = {}
        self._questions: dict[str, asyncio.Future[QueryClosed]] = {}
        """Open questions of operators to agents, by token."""
        self._is_written = asyncio.Event()
        self._is_written.set()
        self._unwritten: set[Key] = set()
        """Agents whose new directive is just being written: they may not be told of it before."""
        self._has_stopped = False
        self._observers: list[Observer] = [self.measurements.observe]
        self._late: list[RunEvent] = []
        """Events of recorded facts that the server's life before had not written."""
        self._clock = clock or Clock()
        self.started_at = 0.0
        self._outage = Outage(
            "nothing is decided until it can be written, and workers keep running", "the store can be written again"
        )

    async def start(self) -> None:
        """Replay what the store holds, then take events. Raises `StoreBroken` or `StoreUnavailable`."""
        records, numbers = await self._store.load(), await self._store.event_numbers()
        for count, record in enumerate(records):
            happened = self.registry.replay(record)
            self._late += [event for event in happened if event.number > numbers.get((event.run_id, event.attempt), 0)]
            if count % REPLAY_AT_ONCE == 0:
                await asyncio.sleep(0)
        self.registry.resume_numbers(numbers)
        self._compaction.written(records)
        self._clock.start(records)
        self.started_at = self._clock.now()
        self.registry.restart(self.started_at, self._clock.life)
        self._task = asyncio.create_task(self._run(), name="rdzv-driver")
        self._arm(self.started_at)

    def heard(self) -> None:
        """Begin all leases anew, as agents can be heard from now on."""
        self._clock.hold_up()

    async def crashed(self) -> None:
        """Wait for ever, or raise what made the driver stop: a failed write, or a contradiction in the core."""
        assert self._task is not None
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Stop; refuse with `ServerUnavailable` whoever still waits for an answer."""
        self._has_stopped = True
        self._clock.stop()
        self._is_written.set()
        for done in self._unanswered:
            _answer(done, ServerUnavailable(STOPPED))
        for closed in self._questions.values():
            if not closed.done():
                closed.set_exception(ServerUnavailable(STOPPED))
        if self._timer:
            self._timer.cancel()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._store.close()

    async def submit(self, run_id: str, event: Event) -> RunMachine:
        """Apply an event of a run; returns once its records are written. Raises the `ProtocolError` that refuses it."""
        machine = await self._take(run_id, event)
        assert machine is not None
        return machine

    async def act(self, run_id: str, fact: OperatorsFact) -> str:
        """Carry an operator's action out; return the sentence that answers it. Raises a `ProtocolError`."""
        await self._take(run_id, fact)
        return self.registry.answer_to(run_id, fact.request_id)

    async def ask_agent(self, run_id: str, asked: LogAsked | StacksAsked) -> QueryClosed:
        """Ask agents an operator's question, and return how it ended. Raises the `ProtocolError` that refuses it."""
        closed: asyncio.Future[QueryClosed] = asyncio.get_running_loop().create_future()
        self._questions[asked.token] = closed
        try:
            await self.submit(run_id, asked)
            return await closed
        finally:
            del self._questions[asked.token]

    def cordons(self) -> list[CordonStatus]:
        return [cordons.status(given) for given in self.registry.cordons.by_node.values()]

    async def _take(self, run_id: str, event: Event) -> RunMachine | None:
        if self._has_stopped:
            raise ServerUnavailable(STOPPED)
        if isinstance(event, NodeJoined) and self.unhealthy_reason:
            raise ServerUnavailable(self.unhealthy_reason)
        done: Done = asyncio.get_running_loop().create_future()
        self._unanswered[done] = event
        self._inbox.append(run_id, (run_id, event, done))
        self._called.set()
        try:
            return await done
        finally:
            del self._unanswered[done]

    async def renew(self, run_id: str, event: LeaseRenewed, machine: RunMachine | None) -> RunMachine:
        """Renew an agent's lease, without a batch if nothing else follows: 10,000 idle nodes do nothing else.

        `machine`: that of the agent's attempt; None: it is not known. Raises the `ProtocolError` that refuses it.
        """
        is_all = not self._inbox and self._is_written.is_set() and not self._has_stopped
        if machine and is_all and machine.renew(event, self._clock.now()):
            return machine
        return await self.submit(run_id, event)

    async def written(self, machine: RunMachine, agent_id: str) -> None:
        """Return once everything that the core has for the agent is written down: the agent may not be told before."""
        while not (self._is_written.is_set() or self._is_of_before(machine.run, agent_id)):
            await self._is_written.wait()
        if self._has_stopped:
            raise ServerUnavailable(STOPPED)

    def notify(self, run_id: str, event: Event) -> None:
        """Apply an event that nobody waits for."""
        self._inbox.append(run_id, (run_id, event, None))
        self._called.set()

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of every batch from now on. One that raises is logged and told no more."""
        self._observers.append(observer)

    async def read_events(self, run_id: str, after: int, most: int) -> Sequence[RunEvent]:
        """Events of the run with numbers above `after`, at most so many, the oldest first. Raises `UnknownRun`.

        All that is returned is written; one that has just been written may come before its observers hear of it.
        """
        found: list[RunEvent] = []
        with _refusing():
            for run in self._attempts_of(run_id):
                if run.event_number > after and len(found) < most:
                    found += await self._store.read_events(run_id, run.attempt, after, most - len(found))
        return found

    async def read_delivered(self, run_id: str) -> int:
        """Number of the run's last event that the webhook's receiver has acknowledged. Raises `UnknownRun`."""
        with _refusing():
            return max([await self._store.read_delivered(run_id, run.attempt) for run in self._attempts_of(run_id)])

    async def write_delivered(self, run_id: str, number: int) -> None:
        """Write the number that `read_delivered` returns. Raises `UnknownRun`."""
        with _refusing():
            await self._store.write_delivered(run_id, self._attempts_of(run_id)[-1].attempt, number)

    def _attempts_of(self, run_id: str) -> list[Run]:
        if self._has_stopped:
            raise ServerUnavailable(STOPPED)
        if attempts := self.registry.attempts_of(run_id):
            return attempts
        raise UnknownRun(f"no run {run_id} is known here")

    def runs(self) -> list[Run]:
        return self.registry.runs()

    @property
    def unhealthy_reason(self) -> str | None:
        """Reason why nothing can be decided at present; None as a rule."""
        return self._outage.reason

    def now(self) -> float:
        """The server's time, in seconds."""
        return self._clock.now()

    async def _run(self) -> None:
        if self._late:
            await self._write_at_last(partial(self._append, [], self._late))
            self._late = []
        while True:
            await self._called.wait()
            self._called.clear()
            await self._take_batch()
            # Whoever was answered reads the directive now, before the next batch changes it unwritten.
            await asyncio.sleep(0)

    async def _take_batch(self) -> None:
        effects: list[Effect] = []
        answers: list[tuple[Done | None, RunMachine | ProtocolError | None]] = []
        now, was_held_up = self._clock.now(), self._clock.was_held_up()
        if was_held_up:
            self.registry.resume(now)
        if (wall_at := self._clock.wall_clock_set()) is not None:
            effects += self.registry.set_wall_clock(wall_at, now)
        while self._inbox and len(answers) < MOST_AT_ONCE:
            run_id, event, done = self._inbox.pop()
            try:
                machine, happened = self.registry.handle(run_id, event, now)
                effects += happened
                answers.append((done, machine))
            except ProtocolError as error:
                answers.append((done, error))
        if not was_held_up:  # else what has come in meanwhile has its turn first
            effects += self.registry.pass_time(now)
        with self._clock.writing():
            await self._write(effects)
            await self._act(effects)
        self._tell_observers(effects)
        for done, answer in answers:
            _answer(done, answer)
        if self._inbox:
            self._called.set()
        self._arm(now)
        with self._clock.writing():
            await self._compaction.run(now)

    async def _write(self, effects: Sequence[Effect]) -> None:
        records = [effect for effect in effects if isinstance(effect, Record)]
        if records:
            self._unwritten = set(_concerned(effects))
            self._is_written.clear()
            events = [effect.event for effect in effects if isinstance(effect, Happened)]
            await self._write_at_last(partial(self._append, records, events))
            self._compaction.written(records)
            self._is_written.set()

    async def _append(self, records: Sequence[Record], events: Sequence[RunEvent]) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        await self._store.append(records, events)
        self.measurements.written(records, loop.time() - began_at)

    def _is_of_before(self, run: Run, agent_id: str) -> bool:
        """Whether nothing that is being written is about the agent; False, as unknown, for one that is gone."""
        return (run.run_id, agent_id) not in self._unwritten and agent_id in run.agents

    async def _write_at_last(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write, again until the store can: nobody is told what is not written down.

        An agent that joins meanwhile is refused with the reason; it tries again, and its join is recorded once.
        """

        async def attempt() -> None:
            try:
                await write()
            except StoreUnavailable as error:
                self.measurements.store_failed(is_first=self._outage.reason is None)
                for done, event in self._unanswered.items():
                    if isinstance(event, NodeJoined):  # it has nothing yet that an answer could cost it
                        _answer(done, ServerUnavailable(str(error)))
                raise

        await self._outage.outlast(attempt, RETRY_S)

    async def _act(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case WakeAgents(run_id, agent_ids):
                    for agent_id in agent_ids:
                        self.long_polls.wake((run_id, agent_id))
                case Happened(event) if event.kind not in UNLOGGED:
                    _log(event)
                case Record(fact=NodeUncordoned(by="") as over) if not _is_told(over, effects):
                    log.info("%s", operations.uncordoned(over))
                case QueryClosed(token) if closed := self._questions.get(token):
                    if not closed.done():
                        closed.set_result(effect)
                case ForgetRun(run_id, attempt):
                    await self._write_at_last(partial(self._store.forget, run_id, attempt))
                    self._compaction.forgotten((run_id, attempt))

    def _tell_observers(self, effects: Sequence[Effect]) -> None:
        for observer in list(self._observers) if effects else ():
            try:
                observer(effects)
            except Exception:
                log.exception("%r failed, and is told no more of what happens to runs", observer)
                self._observers.remove(observer)

    def _arm(self, now: float) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if (at := self.registry.next_deadline()) is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._called.set)


def _log(event: RunEvent) -> None:
    about = Context(run_id=event.run_id, attempt=event.attempt, round=event.round, event=event.kind)
    about["node_id"], about["group_rank"] = event.node_id or "", event.group_rank
    text = "run %s round %d: %s"
    log.log(
        LEVELS.get(event.kind, logging.INFO), text, event.run_id, event.round, event.sentence, extra={"about": about}
    )


def _is_told(over: NodeUncordoned, effects: Sequence[Effect]) -> bool:
    """Whether a run has an event for the end of a cordon: there is none if the node is part of no run."""
    told = (effect.event for effect in effects if isinstance(effect, Happened))
    return any((event.kind, event.node_id) == ("node_uncordoned", over.node_id) for event in told)


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn a failure of the store, in work that no decision depends on, into a refusal."""
    try:
        yield
    except (StoreUnavailable, StoreFenced) as error:
        raise ServerUnavailable(str(error)) from None


def _concerned(effects: Sequence[Effect]) -> Iterator[Key]:
    """Agents that get another directive by these effects."""
    for effect in effects:
        match effect:
            case WakeAgents(run_id, agent_ids):
                yield from ((run_id, agent_id) for agent_id in agent_ids)
            case Record(run_id=run_id, fact=NodeJoined(join)):
                yield run_id, join.agent_id


def _answer(done: Done | None, answer: RunMachine | ProtocolError | None) -> None:
    if done is None or done.done():
        return
    if isinstance(answer, ProtocolError):
        done.set_exception(answer)
    else:
        done.set_result(answer)
