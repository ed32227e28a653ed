"""Driver: the only caller of the core, with one inbox and one timer.

The driver takes events in batches. It applies a batch to the core, writes all its records at once, and only then wakes
and answers agents. So an agent gets a directive only after it has been written.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

from msgspec import Struct
from rdzv_protocol.errors import AgentFenced, ProtocolError, ServerUnavailable, UnknownRun
from rdzv_protocol.events import RunEvent
from rdzv_protocol.messages import PollRequest
from rdzv_protocol.timing import hold_s

from rdzv_server.core import journals
from rdzv_server.core.effects import (
    AnswerOperator,
    CloseQuery,
    Effect,
    EmitEvent,
    ForgetRun,
    NotifyReplayed,
    Record,
    WakeAgents,
)
from rdzv_server.core.events import (
    Event,
    LeaseRenewed,
    NodeCordoned,
    NodeJoined,
    NodeLeft,
    NodeUncordoned,
    Operation,
)
from rdzv_server.core.kernel import operations
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.run import Run, Undecided, decides
from rdzv_server.core.nodes import cordons
from rdzv_server.core.nodes.cordons import CordonStatus
from rdzv_server.core.runs import set_apart
from rdzv_server.core.runs.registry import Registry
from rdzv_server.service import store_access
from rdzv_server.service.clock import Clock
from rdzv_server.service.fair_scheduler import scheduler
from rdzv_server.service.inbox import Done, Inbox, OperatorQuery, Pending, Result
from rdzv_server.service.long_polls import AgentKey, LongPolls
from rdzv_server.service.measurements import Measurements
from rdzv_server.service.observers import Observers
from rdzv_server.service.run_log import RunLog
from rdzv_server.service.store_access import StoreAccess
from rdzv_server.storage.base import Store, StoreFenced, StoreUnavailable, changes_of, check_beginnings
from rdzv_server.storage.compaction import Compaction
from rdzv_server.storage.outage import OutageLog
from rdzv_server.words import attempts
from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

MOST_AT_ONCE = 128
"""Most events in a batch: events of other runs wait meanwhile."""
GATHER_S = 0.01
"""Most seconds for which a batch grows while the requests of many agents are read."""
TURNS_TO_READ = 10
"""Turns of the event loop that it takes to read a request and put it into the inbox."""
LATE_S = 0.05
"""If a deadline is noticed this many seconds late, the event loop stood still: a busy loop is faster."""
MOST_UNREAD_S = 10.0
"""Most seconds for which a deadline is delayed while messages that arrived before it are unread."""
READING_S = 0.01
"""Seconds until a passed deadline is checked again while messages that arrived before it are unread."""
AT_ONCE = NodeJoined | OperatorQuery
"""Events whose callers are refused at once while the store fails."""
REPLAY_AT_ONCE = 500
"""Records that are replayed before other tasks of the process run: a leader's lease must be renewed."""


class Caller(Struct, frozen=True):
    """Caller that waits for the result of an event since `since`, in seconds of the event loop."""

    run_id: str | None
    event: Event
    since: float


class Driver:
    """Driver of the core: gives it events, and carries out its effects.

    Time continues from the server's earlier incarnation.
    """

    def __init__(
        self,
        registry: Registry,
        store: Store,
        measurements: Measurements | None = None,
        clock: Clock | None = None,
        outages: OutageLog | None = None,
    ) -> None:
        """Set up, without reading. `outages`: log of the outages of this server's drivers, if it has several."""
        self.registry = registry
        self._store = store
        self.measurements = measurements or Measurements()
        self.long_polls = LongPolls()
        self._run_log = RunLog()
        self._compaction = Compaction(registry, store)
        self._inbox = Inbox(self.now)
        self._called = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._unanswered: dict[Done, Caller] = {}
        self._operator_queries: dict[str, asyncio.Future[CloseQuery]] = {}
        """Open queries of operators to agents, by token."""
        self._is_written = asyncio.Event()
        self._is_written.set()
        self._unwritten: set[AgentKey] = set()
        """Agents whose new directive is being written: they must not get it before that is done."""
        self._unwritten_since = inf
        """Time of the facts that are being written: people must not learn of them before that is done."""
        self._stopped = ""
        """Reason why the driver accepts no more events; empty while it does."""
        self.observers = Observers(self.measurements)
        self._late: list[RunEvent] = []
        """Events of recorded facts that the earlier incarnation of the server did not write."""
        self._clock = clock or Clock()
        self._clock.noticed = self._called.set
        self.may_decide: Callable[[], bool] = lambda: True
        """Function that returns whether this server may decide now. Once it may again, it calls `heard`."""
        self.lapsed: Callable[[], Undecided | None] = decides
        """Function that returns why and since when this server may not decide; None if it may."""
        self.started_at = 0.0
        self._revisions_at_start: dict[AgentKey, int] = {}
        """Revisions of agents as the store had them at the start, until this server tells an agent its directive."""
        self._held_up_at = float("-inf")
        """End of the last long time in which the server was held up."""
        self._access = StoreAccess(store, self.measurements, self.now, self._refuse_waiting, outages)
        registry.undecided, registry.unwritten_since = self.undecided, lambda: self._unwritten_since
        self._refusing: asyncio.TimerHandle | None = None
        """Timer that refuses waiting agents during an outage."""

    async def start(self) -> None:
        """Replay what the store holds, then accept events. Raises `StoreBroken` or `StoreUnavailable`."""
        with self._access.noticing_hangs():
            records, numbers = await self._store.load(), await self._store.event_numbers()
        check_beginnings(records)
        replayed: list[NotifyReplayed] = []
        for count, record in enumerate(records):
            happened = self.registry.replay(record)
            if isinstance(record.fact, NodeCordoned | NodeUncordoned) and record.key == journals.NODES:
                replayed.append(NotifyReplayed(record.fact))
            self._late += [event for event in happened if event.number > numbers.get((event.run_id, event.attempt), 0)]
            if count % REPLAY_AT_ONCE == 0:
                await asyncio.sleep(0)
        self.registry.resume_numbers(numbers)
        self._compaction.written(records)
        self._clock.start(records)
        self.started_at = self._clock.now()
        self._access.accepts()
        self.registry.restart(self.started_at, self._clock.incarnation)
        self._late += [each.event for each in await self._rebuilt(self.started_at) if isinstance(each, EmitEvent)]
        self._revisions_at_start = {
            (run.run_id, agent.agent_id): agent.revision
            for run in self.registry.runs()
            if not run.set_apart
            for agent in run.agents.values()
        }
        self._task = asyncio.create_task(self._run(), name="rdzv-driver")
        self._task.add_done_callback(self._ended)
        self.observers.begin(replayed)
        self._arm()

    def heard(self, unheard_s: float = 0.0) -> None:
        """Do not penalize agents for silence until now: for `unheard_s` seconds this server was not there for them."""
        self._clock.answered_nobody(unheard_s)

    async def crashed(self) -> None:
        """Wait forever, or raise what made the driver stop: a failed write, or a contradiction in the core."""
        assert self._task is not None
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Stop, and refuse with `ServerUnavailable` all requests that still wait."""
        self._refuse_all(words.SHUTTING_DOWN)
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._run_log.close()
        self._access.outage.close()
        await self._store.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Refuse all requests, present and later, after an error has ended the driver; `crashed` raises the error.

        After a fenced write, the replica stops the driver when it no longer counts as the leader. Requests are refused
        then.
        """
        error = None if task.cancelled() else task.exception()
        if error and not isinstance(error, StoreFenced):
            self._refuse_all(words.cannot_continue(type(error).__name__, error))

    def _refuse_all(self, why: str) -> None:
        self._stopped = self._stopped or why
        self._clock.stop()
        self._is_written.set()
        for done in self._unanswered:
            _answer(done, ServerUnavailable(why))
        for closed in self._operator_queries.values():
            if not closed.done():
                closed.set_exception(ServerUnavailable(why))
        for timer in (self._timer, self._refusing):
            if timer:
                timer.cancel()

    async def submit(self, run_id: str, event: Event) -> RunMachine:
        """Apply an event of a run. Return once its records are written. Raises the `ProtocolError` that refuses it."""
        machine = await self._take(run_id, event)
        assert isinstance(machine, RunMachine)
        return machine

    async def act(self, run_id: str | None, fact: Operation) -> AnswerOperator:
        """Carry out an operator's action, and return its answer. `run_id`: None for an action on a node.

        Raises the `ProtocolError` that refuses it.
        """
        answered = await self._take(run_id, fact)
        assert isinstance(answered, AnswerOperator)
        return answered

    async def ask_agent(self, run_id: str, asked: OperatorQuery) -> CloseQuery:
        """Ask agents an operator's query, and return how it ended. Raises the `ProtocolError` that refuses it."""
        closed: asyncio.Future[CloseQuery] = asyncio.get_running_loop().create_future()
        self._operator_queries[asked.token] = closed
        try:
            await self.submit(run_id, asked)
            return await closed
        finally:
            del self._operator_queries[asked.token]

    def cordons(self) -> list[CordonStatus]:
        return [cordons.status(given) for given in self.registry.nodes.state.cordons.values()]

    async def _take(self, run_id: str | None, event: Event) -> Result:
        if self._stopped:
            raise ServerUnavailable(self._stopped)
        if self.unhealthy_reason and isinstance(event, AT_ONCE):
            raise ServerUnavailable(self.unhealthy_reason)
        loop = asyncio.get_running_loop()
        done: Done = loop.create_future()
        self._unanswered[done] = Caller(run_id, event, loop.time())
        pending = self._inbox.put(run_id, event, done)
        self._called.set()
        try:
            return await done
        finally:
            del self._unanswered[done]
            self._inbox.leave(pending, done)
            del done  # the frames of a refusal would keep the future, which keeps the refusal

    def renew(self, event: LeaseRenewed, machine: RunMachine) -> bool:
        """Renew an agent's lease if nothing else follows; else return False, and the caller must `submit` the event.

        Idle nodes, of which there may be 10,000, send nothing else. `machine`: machine of the agent's attempt.
        """
        is_all = not self._inbox and self._is_written.is_set() and not self._stopped
        return is_all and _renews(machine, event, self._clock.now())

    async def written(self, machine: RunMachine, agent_id: str) -> None:
        """Return once everything that the core has for the agent is written: the agent must not get it before that.

        Raises `ServerUnavailable` if it cannot be written now.
        """
        while not (self._is_written.is_set() or self._is_of_before(machine.run, agent_id)):
            if self.unhealthy_reason:
                raise ServerUnavailable(self.unhealthy_reason)
            await self._is_written.wait()
        if self._stopped:
            raise ServerUnavailable(self._stopped)

    async def check_revision(self, poll: PollRequest) -> None:
        """Check whether an agent knows a later directive than this server has found in the store or told it.

        Raises `AgentFenced` if the agent waits, or if its workers are of another round: the store has lost changes, or
        is an older copy. The agent then joins again; otherwise its workers and this server would be in different rounds
        forever. If the rounds agree, another version of the server has written the records, and has numbered
        directives otherwise.
        """
        run_id, agent_id = poll.run_id, poll.agent_id
        if poll.revision <= self._revisions_at_start.get((run_id, agent_id), poll.revision):
            return
        if self.registry.machine_of(run_id, agent_id).catch_up(agent_id, poll.revision, _round_of(poll)):
            return
        reason = attempts.records_are_older(run_id)
        await self.submit(run_id, NodeLeft(agent_id, reason))
        raise AgentFenced(reason)

    def told(self, key: AgentKey) -> None:
        """Note that this server has told the agent its directive, which may be later than the store's at the start."""
        if self._revisions_at_start:
            self._revisions_at_start.pop(key, None)

    def set_apart(self, machine: RunMachine, error: Exception) -> None:
        """Set a run apart because its core raised this exception instead of returning an agent's directive."""
        self.registry.set_apart(machine, error)
        self._called.set()

    def notify(self, run_id: str, event: Event) -> None:
        """Apply an event without waiting for the result."""
        self._inbox.put(run_id, event)
        self._called.set()

    def attempt_of(self, run_id: str) -> Run:
        """Return the last attempt of the run. Raises `UnknownRun`."""
        with _refusing():
            return self._attempts_of(run_id)[-1]

    async def read_events(self, run_id: str, after: int, most: int) -> Sequence[RunEvent]:
        """Return up to `most` events of the run with numbers above `after`, the oldest first. Raises `UnknownRun`.

        All returned events are written. An event that has just been written may be returned before observers hear of
        it.
        """
        found: list[RunEvent] = []
        with _refusing():
            for run in self._attempts_of(run_id):
                if run.event_number > after and len(found) < most:
                    seen = max(after, run.first_event - 1)
                    found += await self._store.read_events(run_id, run.attempt, seen, most - len(found))
        return found

    async def read_delivered(self, run_id: str) -> int:
        """Return the number of the run's last event that the webhook's receiver has acknowledged.

        Raises `UnknownRun`.
        """
        with _refusing():
            return max([await self._store.read_delivered(run_id, run.attempt) for run in self._attempts_of(run_id)])

    async def write_delivered(self, run_id: str, number: int) -> None:
        """Write the number that `read_delivered` returns. Raises `UnknownRun`."""
        with _refusing():
            await self._store.write_delivered(run_id, self._attempts_of(run_id)[-1].attempt, number)

    def _attempts_of(self, run_id: str) -> list[Run]:
        if self._stopped:
            raise ServerUnavailable(self._stopped)
        if known := self.registry.attempts_of(run_id):
            return known
        raise UnknownRun(attempts.unknown_run(run_id))

    def runs(self) -> list[Run]:
        return self.registry.runs()

    @property
    def unhealthy_reason(self) -> str | None:
        """Reason why the server can decide nothing now; usually None."""
        return self._access.outage.reason

    def undecided(self) -> Undecided | None:
        """Return why and since when the server can decide nothing now; None if it can."""
        if lapsed := self.lapsed():
            return lapsed
        return Undecided(self._access.outage.reason, self._access.outage.since) if self._access.outage.reason else None

    def now(self) -> float:
        """Return the server's time, in seconds."""
        return self._clock.now()

    async def _run(self) -> None:
        if self._late:
            await self._access.write([], self._late)
            self._late = []
        while True:
            await self._called.wait()
            self._called.clear()
            await self._read_on()
            await self._gather()
            if self.may_decide():
                await self._take_batch()
            # Agents that were just answered read their directives now, before the next batch changes them unwritten.
            await asyncio.sleep(0)

    async def _read_on(self) -> None:
        """Read what has arrived before a late deadline passes: the server may have stood still without reading."""
        at = self.registry.next_deadline()
        if at is not None and self._clock.now() > at + LATE_S:
            for _ in range(TURNS_TO_READ):
                await asyncio.sleep(0)

    async def _gather(self) -> None:
        """Let the batch grow while the requests of many agents are read: each batch is one transaction of the store."""
        clock, turns = asyncio.get_running_loop().time, scheduler()
        over_at = clock() + GATHER_S
        while turns.agents_wait and clock() < over_at:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def _take_batch(self) -> None:
        effects: list[Effect] = []
        answers: list[tuple[Pending, Result | ProtocolError]] = []
        now, hold_up = self._clock.now(), self._clock.held_up()
        if hold_up:
            if hold_up.silent_s > MOST_UNREAD_S / 2:
                self._held_up_at = now
            self.registry.resume(now, hold_up)
        if (wall_at := self._clock.wall_clock_set()) is not None:
            effects += self.registry.set_wall_clock(wall_at, now)
        self.registry.unread_since = self._judged_at(now)
        while self._inbox and len(answers) < MOST_AT_ONCE:
            pending = self._inbox.pop()
            try:
                machine, happened = self.registry.handle(pending.run_id, pending.event, now)
                effects += happened
                refusal = set_apart.refusal(machine, pending.event) if machine else None
                answered = happened[-1] if happened and isinstance(happened[-1], AnswerOperator) else None
                answers.append((pending, refusal or answered or machine))
            except ProtocolError as error:
                if error.__cause__ and self._run_log.take(pending.run_id or "", now):
                    log.error("%s", error, exc_info=error.__cause__)
                answers.append((pending, error))
        self.registry.unread_since = self._judged_at(now)
        effects += self.registry.pass_time(now)
        with self._clock.writing():
            await self._write(effects, now)
            effects += await self._tell_of_set_apart(now)
        self._act(effects)
        self._tell_observers(effects)
        _answer_all(answers)
        if self._inbox:
            self._called.set()
        self._arm()
        with self._clock.writing(), self._access.noticing_hangs():
            await self._compaction.run(now)
        if self.registry.has_newly_apart:  # its snapshot failed
            self._called.set()

    async def _write(self, effects: Sequence[Effect], now: float) -> None:
        changes, events = changes_of(effects)
        if changes:
            self._unwritten, self._unwritten_since = _concerned(effects), now
            self._is_written.clear()
            await self._access.write(changes, events)
            self._compaction.written(changes)
            self._unwritten_since = inf
            self._is_written.set()
        elif self.now() >= self._access.check_at:
            await self._access.check()

    async def _tell_of_set_apart(self, now: float) -> list[Effect]:
        """Rebuild the state of runs that have just been set apart, and record that they were."""
        effects = await self._rebuilt(now)
        if events := [effect.event for effect in effects if isinstance(effect, EmitEvent)]:
            await self._access.write([], events)
        return effects

    async def _rebuilt(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for machine, error in self.registry.take_set_apart():
            log.error("%s", words.of_run(machine.run.run_id, machine.sentence), exc_info=error)
            records, event_number = await self._access.read_attempt(*machine.run.key)
            effects += self.registry.rebuild(machine, records, event_number, now)
        return effects

    def _is_of_before(self, run: Run, agent_id: str) -> bool:
        """Return whether nothing that is being written concerns the agent.

        False for an agent that is gone, since it is unknown.
        """
        return (run.run_id, agent_id) not in self._unwritten and agent_id in run.agents

    def _refuse_waiting(self) -> None:
        """Refuse callers with the reason of the outage.

        It refuses newcomers and operators' queries at once, and other agents after the time for which a poll is held.
        Their events stay in the inbox. It does not refuse an operator's action, since that may be carried out.
        """
        self._refusing = None
        if (reason := self._access.outage.reason) is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        for done, caller in self._unanswered.items():
            if now >= caller.since + self._patience_s(caller):
                _answer(done, ServerUnavailable(reason))
        if not self._is_written.is_set():  # wake those that wait in `written`
            waiting, self._is_written = self._is_written, asyncio.Event()
            waiting.set()
        self._refusing = loop.call_later(store_access.RETRY_S, self._refuse_waiting)

    def _patience_s(self, caller: Caller) -> float:
        """Return the most seconds for which a caller waits during an outage."""
        if isinstance(caller.event, AT_ONCE):  # a newcomer loses nothing by the refusal, and repeats its join
            return 0.0
        if caller.run_id is None or not getattr(caller.event, "agent_id", ""):
            return inf
        known = self.registry.attempts_of(caller.run_id)
        return hold_s(known[-1].settings.lease_s) if known else 0.0

    def warn(self, run_id: str, sentence: str) -> None:
        """Log a warning about a run, unless the log has too many lines about it."""
        if self._run_log.take(run_id, self.now()):
            log.warning("%s", words.of_run(run_id, sentence))

    def _act(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Record(fact=fact):
                    if isinstance(fact, NodeUncordoned) and not (fact.by or _is_told(fact, effects)):
                        log.info("%s", operations.uncordoned(fact))
                case EmitEvent(event):
                    self._run_log.note(event, self.now())
                case WakeAgents(run_id, agent_ids):
                    self.long_polls.wake_each(run_id, agent_ids)
                case CloseQuery(token):
                    if (closed := self._operator_queries.get(token)) and not closed.done():
                        closed.set_result(effect)

    def _tell_observers(self, effects: Sequence[Effect]) -> None:
        self.observers.tell_all(effects)
        for effect in effects:
            if isinstance(effect, ForgetRun) and not self.registry.attempts_of(effect.run_id):
                self.observers.forget(effect.run_id)
                self._run_log.forget(effect.run_id)

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        at, now = self.registry.next_deadline(), self._clock.now()
        soonest_s = 0.0 if self._unread_since() > now else READING_S
        after_s = max(soonest_s, min(inf if at is None else at, self._access.check_at) - now)
        self._timer = asyncio.get_running_loop().call_later(after_s, self._called.set)

    def _judged_at(self, now: float) -> float:
        """Return the time as of which deadlines pass now: everything that arrived before it has been read.

        It is at most `MOST_UNREAD_S` ago: otherwise a run that floods the server could keep lost agents of other runs.
        What arrived while the server was held up for long is always read first.
        """
        since = self._unread_since()
        return since if since <= self._held_up_at else max(since, now - MOST_UNREAD_S)

    def _unread_since(self) -> float:
        """Return the arrival of the oldest message that is not applied yet; infinite if there is none."""
        return min(self._inbox.unread_since(), self._clock.unread_since())


def _renews(machine: RunMachine, event: LeaseRenewed, now: float) -> bool:
    """Return whether the event only renewed a lease; False if an exception was raised."""
    try:
        return machine.renew(event, now)
    except Exception:
        return False


def _round_of(poll: PollRequest) -> int | None:
    """Return the round of an agent's workers, 0 if it waits. None if an older agent does not report it."""
    report = poll.progress or poll.finished
    return report.round if poll.round is None and report else poll.round


def _is_told(over: NodeUncordoned, effects: Sequence[Effect]) -> bool:
    """Return whether a run has an event for the end of a cordon. There is none if the node is part of no run."""
    events = (effect.event for effect in effects if isinstance(effect, EmitEvent))
    return any((event.kind, event.node_id) == ("node_uncordoned", over.node_id) for event in events)


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn a failure of the store into a refusal, in work that no decision depends on."""
    try:
        yield
    except (StoreUnavailable, StoreFenced) as error:
        raise ServerUnavailable(str(error)) from None


def _concerned(effects: Sequence[Effect]) -> set[AgentKey]:
    """Return the agents that get another directive by these effects."""
    concerned: set[AgentKey] = set()
    for effect in effects:
        if isinstance(effect, Record):
            if isinstance(effect.fact, NodeJoined):
                concerned.add((effect.run_id, effect.fact.join.agent_id))
        elif isinstance(effect, WakeAgents):
            concerned.update((effect.run_id, agent_id) for agent_id in effect.agent_ids)
    return concerned


def _answer_all(answers: list[tuple[Pending, Result | ProtocolError]]) -> None:
    """Answer the callers, and empty the lists: the frames of a refusal keep them, and they would keep the refusal."""
    for pending, answer in answers:
        for done in pending.callers:
            _answer(done, answer)
        pending.callers.clear()
    answers.clear()


def _answer(done: Done, answer: Result | ProtocolError) -> None:
    if done.done():
        return
    if isinstance(answer, ProtocolError):
        done.set_exception(answer)
    else:
        done.set_result(answer)
