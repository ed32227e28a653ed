"""The runs of a server, each attempt with its machine, and how long each is remembered.

`new_attempts` decides which join begins a new attempt, `capacity` limits what all attempts may take together, and
`used_numbers` keeps the numbers of forgotten attempts. The nodes' machine handles what applies to a node in all runs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import nsmallest

from msgspec.structs import replace
from rdzv_protocol.errors import (
    AgentFenced,
    OutcomeUnknown,
    ProtocolError,
    RunFailed,
    RunStillActive,
    ServerUnavailable,
    UnknownRun,
)
from rdzv_protocol.events import RunEvent
from rdzv_protocol.messages import JoinRequest
from rdzv_protocol.settings import RunSettings

from rdzv_server.core import events, journals
from rdzv_server.core.effects import AnswerOperator, Effect, EmitEvent, ForgetRun, Record
from rdzv_server.core.events import Event, Incarnation, NodeJoined, RunCreated, RunSuperseded, TimePassed
from rdzv_server.core.journals import Key
from rdzv_server.core.kernel import admission, kept_failures, operations, snapshot
from rdzv_server.core.kernel.liveness import Closings, HoldUp
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.run import END_DELIVERED_WITHIN_S, Run, Stage, Undecided, decides, writes_nothing
from rdzv_server.core.node_facts import CordonsKept, NodeBlamed
from rdzv_server.core.node_history import Incident
from rdzv_server.core.nodes.exclusion import ExclusionPolicy
from rdzv_server.core.nodes.machine import Nodes
from rdzv_server.core.policies import POLICIES
from rdzv_server.core.runs import kept_events, new_attempts, set_apart
from rdzv_server.core.runs.capacity import Capacity, silent
from rdzv_server.core.runs.deadlines import Deadlines
from rdzv_server.core.runs.set_apart import SetApart, own_error
from rdzv_server.core.runs.used_numbers import UsedNumbers
from rdzv_server.words import attempts as words
from rdzv_server.words import operations as operations_words
from rdzv_server.words import runs

RETENTION_S = 3_600.0
"""Seconds for which an ended run is remembered: an hour by default, so that late agents get an answer."""
MOST_RUNS = 10_000
"""Most runs of a server by default, as many as its memory is sized for."""
MOST_AGENTS = 100_000
"""Most agents of all runs of a server by default: they take about 1.3 GB."""

FORGOTTEN_SHARE = 100
"""Divisor of all attempts for the part to forget at once if there is no room, since the search takes time."""


class Registry:
    """Attempts of all runs: at most `max_runs`, with at most `max_agents` agents and `max_events` events in total.

    `retention_s`: seconds for which an ended attempt is remembered.
    """

    def __init__(
        self,
        retention_s: float,
        max_runs: int = MOST_RUNS,
        max_agents: int = MOST_AGENTS,
        max_events: int = kept_events.MOST_EVENTS,
        *,
        max_evidence: int = kept_failures.MOST_BYTES,
        knows_all_runs: bool = True,
        exclusion: ExclusionPolicy | None = None,
    ) -> None:
        """Begin without runs. `exclusion`: policy by which the server itself excludes nodes; None if it never does."""
        self._retention_s = retention_s
        self._capacity = Capacity(max_runs, max_agents, max_events, max_evidence)
        self._machines: dict[Key, RunMachine] = {}
        self._attempts: dict[str, list[RunMachine]] = {}
        """Remembered attempts of each run, in order: the first is forgotten first, the last has the highest numbers."""
        self._used = UsedNumbers()
        self.unread_since = float("inf")
        """Arrival of the oldest message that the server has not read: see `Leases`."""
        self._closings = Closings()
        self.undecided: Callable[[], Undecided | None] = decides
        self.unwritten_since: Callable[[], float] = writes_nothing
        """Functions that each run gets when it is created: see `Run`."""
        self._deadlines = Deadlines()
        self._incarnation = Incarnation()
        self._wall_ahead_s = 0.0
        self.nodes = Nodes(self, exclusion, knows_all_runs=knows_all_runs)
        self._apart: list[SetApart] = []
        self._newly_apart: list[tuple[SetApart, Exception]] = []

    def runs(self) -> list[Run]:
        """Return all remembered attempts, oldest first."""
        return [machine.run for machine in self._machines.values()]

    def newest(self) -> Iterator[Run]:
        """Yield all remembered attempts, newest first, without a copy of the list."""
        return (machine.run for machine in reversed(self._machines.values()))

    def attempts_of(self, run_id: str) -> list[Run]:
        """Return the remembered attempts of a run, oldest first."""
        return [machine.run for machine in self._attempts.get(run_id, ())]

    def handle(self, run_id: str | None, event: Event, now: float) -> tuple[RunMachine | None, list[Effect]]:
        """Apply an event. Return its effects, and the machine that handled it if the event is about one run.

        `run_id`: None for an action on a node. The last effect of an operator's action is its answer. Raises
        `ProtocolError`, with nothing changed, if the event is refused.
        """
        if type(event) is NodeJoined:
            machine, effects = self._machine_to_join(event, now)
            if event.join.node_id in self.nodes.state.cordons:
                event = self.nodes.with_cordon(event, machine.run)
            effects += self.deliver(machine, event, now)
        elif isinstance(event, events.Operation):
            return self._operate(run_id, event, now)
        else:
            assert run_id is not None
            machine = self._machine_for(run_id, event)
            effects = self.deliver(machine, event, now)
        return machine, effects + self._judge(now) if self.nodes.suspects else effects

    def incidents_of(self, node_id: str) -> list[Incident]:
        """Return the incidents for which runs have blamed a node, also those that count in one run only."""
        own = (machine.history for machine in self._machines.values() if machine.run.is_scoped)
        return [each for history in (self.nodes.state.history, *own) for each in history.by_node.get(node_id, ())]

    def pass_time(self, now: float) -> list[Effect]:
        """Let every run whose deadline has passed act on it."""
        effects = self.nodes.pass_time(now)  # before a round completes without a node that is uncordoned now
        effects += self._pass_due(now)
        return effects + self.nodes.judge(now)

    def _operate(
        self, run_id: str | None, event: events.Operation, now: float
    ) -> tuple[RunMachine | None, list[Effect]]:
        """Carry out an operator's action, unless it was carried out before."""
        machine = None
        was_done = self.answer_to(run_id, event.request_id)
        if not was_done and (idle := event.idle or self._nothing_to_do(run_id, event)):
            event = replace(event, idle=idle)
        if isinstance(event, events.NodeOperation):
            effects = self.nodes.handle(event, now)
        elif isinstance(event, events.RunForgotten):
            effects = self._forget_run(event, now)
        else:
            assert run_id is not None
            machine = self._machine_for(run_id, event)
            effects = self.deliver(machine, event, now)
        if self.nodes.suspects:
            effects = effects + self._judge(now)
        sentence = self.answer_to(run_id, event.request_id)
        is_unreported = bool(sentence) and not (was_done or _has_event(effects, event.request_id))
        has_changed = bool(sentence) and not self._was_idle(run_id, event.request_id)
        return machine, [
            *effects,
            AnswerOperator(sentence or words.over_before(str(run_id)), is_unreported, has_changed),
        ]

    def _nothing_to_do(self, run_id: str | None, event: events.Operation) -> str:
        """Return why the action changes nothing; empty if it changes something, or if this server cannot tell."""
        if isinstance(event, events.NodeUncordoned):
            runs = [machine.run for machine in self.with_node(event.node_id)]
            is_known = not self.nodes.knows_all_runs or event.node_id in self.nodes.state.cordons
            is_cordoned = is_known or any(event.node_id in run.cordons for run in runs)
            return "" if is_cordoned else operations_words.not_cordoned(event.node_id)
        latest = self._latest_machine(run_id)
        return operations.BY_FACT[type(event)].idle(latest.run, event) if latest else ""

    def answer_to(self, run_id: str | None, request_id: str) -> str:
        """Return the sentence that answered an operator's request; empty if the request is unknown."""
        latest = self._latest_machine(run_id)
        answer = latest.run.answers.get(request_id) if latest else None
        return answer or self.nodes.answer_to(request_id)

    def _was_idle(self, run_id: str | None, request_id: str) -> bool:
        """Return whether the known request has changed nothing."""
        latest = self._latest_machine(run_id)
        return request_id in (latest.run.idle if latest else ()) or request_id in self.nodes.state.idle

    def _judge(self, now: float) -> list[Effect]:
        """Judge the nodes that are blamed, together with nodes that other runs lose in the same instant."""
        return self._pass_due(now) + self.nodes.judge(now)

    def with_node(self, node_id: str) -> list[RunMachine]:
        """Return the runs that have not ended and that have agents of the node, or its cordon."""
        return [machine for machine in self._machines.values() if _has_node(machine.run, node_id)]

    def _forget_run(self, event: events.RunForgotten, now: float) -> list[Effect]:
        if self.nodes.answer_to(event.request_id):
            return []
        latest = self._latest_machine(event.run_id)
        if latest is None:
            raise UnknownRun(words.unknown_run(event.run_id))
        if not latest.run.can_be_forgotten:
            raise RunStillActive(words.still_active(event.run_id, latest.run.stage))
        effects: list[Effect] = []
        for machine in list(self._attempts[event.run_id]):
            effects += self.deliver(machine, event, now)
        return effects + self.nodes.forgotten(event, now)

    def deliver(self, machine: RunMachine, event: Event, now: float) -> list[Effect]:
        """Let the machine handle an event, and forget the run if its time has come.

        If the machine raises an exception, the run is set apart and the other runs are not affected.
        """
        machine.run.leases.unread_since = self.unread_since
        try:
            happened = machine.handle(event, now)
        except ProtocolError:
            raise
        except Exception as error:
            self.set_apart(machine, error)
            happened = []
        run = machine.run
        is_beyond = bool(happened) and self._capacity.count(machine.run)  # most polls change nothing
        if run.ended_at is None or not any(isinstance(effect, ForgetRun) for effect in happened):
            self._deadlines.arm(run.key, machine.deadline)
        else:
            happened = [effect for effect in happened if not isinstance(effect, ForgetRun)]
            happened += self._forget(run, now) if self._is_first(run) else []
        if machine.blamed:
            happened = happened + self.nodes.take_blames(machine, now)
        return happened + self._drop_events(machine, now) if is_beyond else happened

    def set_apart(self, machine: RunMachine, error: Exception) -> None:
        """Set a run apart because its core raised this exception; the next `take_set_apart` returns it."""
        self._capacity.leave(machine.run.key)
        set_apart.set_apart(machine, error)
        assert isinstance(machine, SetApart)
        self._deadlines.disarm(machine.run.key)
        self._newly_apart.append((machine, error))
        self._apart.append(machine)

    @property
    def has_newly_apart(self) -> bool:
        """Whether `take_set_apart` has something to return."""
        return bool(self._newly_apart)

    def take_set_apart(self) -> list[tuple[SetApart, Exception]]:
        """Return the runs set apart since the last call, each with its error. They wait for `rebuild`."""
        taken, self._newly_apart = self._newly_apart, []
        return taken

    def rebuild(self, machine: SetApart, records: Sequence[Record], last_event: int, now: float) -> list[Effect]:
        """Rebuild the state of a run that is set apart from its records and the number of its last event."""
        self._capacity.leave(machine.run.key)
        effects = machine.rebuild(records, last_event, now)
        self._capacity.recount(machine.run)
        self._deadlines.arm(machine.run.key, machine.deadline)
        return effects

    @property
    def runs_apart(self) -> list[str]:
        """Ids of the runs that are set apart and have not been stopped."""
        return [machine.run.run_id for machine in self._apart if not machine.run.stage.is_end]

    def _pass_due(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for key in self._deadlines.take_due(now):
            if machine := self._machines.get(key):  # else it was forgotten when another run's events took the room
                effects += self.deliver(machine, TimePassed(), now)
        return effects

    def next_deadline(self) -> float | None:
        """Return the time at which `pass_time` is due next. By then the deadline may have moved."""
        at, uncordoned_at = self._deadlines.next(), self.nodes.next_deadline()
        return at if uncordoned_at is None else uncordoned_at if at is None else min(at, uncordoned_at)

    def machine_of(self, run_id: str, agent_id: str) -> RunMachine:
        """Return the attempt that the agent is part of, or else the run's latest.

        Raises `AgentFenced` if there is none.
        """
        machine = self._machine_with(run_id, agent_id) or self._latest_machine(run_id)
        if machine is None:
            raise AgentFenced(words.unknown_run(run_id))
        return machine

    def replay(self, record: Record) -> list[RunEvent]:
        """Apply a recorded fact; the records of an attempt come in order. Return the run events that follow from it.

        The events of a run's creation come with its next record; a snapshot has none.
        """
        if isinstance(record.fact, events.NumbersUsed):
            self._used.apply(record.fact)
            return []
        key = record.key
        if key == journals.NODES:
            self.nodes.replay(record.fact, record.at)  # type: ignore[arg-type]
            return []
        effects: Sequence[Effect] = ()
        machine = self._create(record.fact, record.at) if isinstance(record.fact, RunCreated) else self._machines[key]
        try:
            if not isinstance(record.fact, RunCreated):
                assert not isinstance(record.fact, CordonsKept | NodeBlamed)
                effects = machine.replay(record.fact, record.at)
                self.nodes.take_replayed_blames(machine, record.at)
            self._capacity.recount(machine.run)
            self._deadlines.arm(key, machine.next_deadline())
        except Exception as error:
            self.set_apart(machine, error)
        return [effect.event for effect in effects if isinstance(effect, EmitEvent)]

    def resume_numbers(self, last: Mapping[Key, int]) -> None:
        """Continue after the last event of each attempt that the store holds, even if another server wrote it."""
        for key, number in last.items():
            if machine := self._machines.get(key):
                machine.run.event_number = max(machine.run.event_number, number)
                self._capacity.count(machine.run)

    def snapshot(self, key: Key, now: float) -> list[Record]:
        """Return records that replace all that led to this attempt; empty if it has ended or is forgotten.

        If the core raises an exception, set the run apart: then there are none, either.
        """
        if key == journals.NODES:
            return self.nodes.snapshot(now)
        if key == journals.NUMBERS:
            return [Record(*key, now, fact) for fact in self._used.snapshot()]
        machine = self._machines.get(key)
        if machine is None or machine.run.stage.is_end or machine.run.set_apart:
            return []
        run = machine.run
        wall_at = run.wall_clock(run.created_at)
        created = RunCreated(run.run_id, run.attempt, run.explicit, run.settings, wall_at, self._incarnation)
        records = [Record(*key, run.created_at, created)]
        try:
            return [*records, *(Record(*key, now, fact) for fact in snapshot.take(run))]
        except Exception as error:
            self.set_apart(machine, error)
            return []

    def restart(self, now: float, incarnation: Incarnation) -> None:
        """Begin an incarnation of the server after the replay. Agents are not penalized for the server's downtime."""
        self._incarnation = incarnation
        self.nodes.begin_incarnation(incarnation)
        for machine in self._machines.values():
            try:
                machine.restart(now)
                self._deadlines.arm(machine.run.key, machine.next_deadline())
            except Exception as error:
                self.set_apart(machine, error)

    def resume(self, now: float, hold_up: HoldUp) -> None:
        """Make up for a time in which the server could not hear agents, or could not answer them."""
        for machine in self._machines.values():
            try:
                machine.run.leases.resume(now, hold_up)
            except Exception as error:
                self.set_apart(machine, error)

    def set_wall_clock(self, wall_at: float, now: float) -> list[Effect]:
        """Tell every run what the server's wall clock shows after it was set."""
        self._wall_ahead_s = wall_at - now
        effects: list[Effect] = []
        for machine in self._machines.values():
            try:
                effects += machine.set_wall_clock(wall_at, now)
            except Exception as error:
                self.set_apart(machine, error)
        return effects

    def _machine_to_join(self, event: NodeJoined, now: float) -> tuple[RunMachine, list[Effect]]:
        join = event.join
        if known := self._machine_with(join.run_id, join.agent_id):
            return known, []
        latest = self._latest_machine(join.run_id)
        if latest and not self._decide_succession(latest, join, now):
            is_full = self._capacity.is_full_of_agents and not _has_place(latest.run, join)
            return latest, self._make_room_for_agent(now, latest) if is_full else []
        if join.after_round > 0:
            raise AgentFenced(words.must_rejoin(join.run_id, join.node_id))
        if latest is None and join.returning and (end := self._used.end_of(join.run_id)):
            raise RunFailed(runs.ended(join.run_id, Stage.FAILED, end))
        if latest is None and join.returning and self._used.has_ended(join.run_id, join.attempt):
            raise OutcomeUnknown(words.outcome_unknown(join.run_id, join.node_id))
        settings = _settings_of(join)  # before anything changes, since it may refuse the join
        effects = self._make_room_for_agent(now)
        if not effects and self._capacity.is_full_of_runs(self._machines.values()):
            effects = self._make_room(now)
        effects += self._supersede(latest, now) if latest else []
        last, number = (latest.run.attempt, latest.run.event_number) if latest else self._used.last(join.run_id)
        wall_at = now + self._wall_ahead_s
        created = RunCreated(join.run_id, last + 1, join.explicit_run_id, settings, wall_at, self._incarnation, number)
        effects.append(Record(join.run_id, last + 1, now, created))
        return self._create(created, now), effects

    def _make_room(self, now: float) -> list[Effect]:
        """Forget attempts that have ended, before their time: first those that never ran, then those that ended first.

        If the agents of none of them can have heard of the end, end the run that has been silent for longest. Raises
        `ServerUnavailable` until new runs have asked for a while, or if there is no silent run.
        """
        if ended := self._forgettable(now):
            return self._forget_some(ended, now)
        giver = self._capacity.ask_for_run(silent(self._machines.values(), now), now)
        return self.deliver(giver, events.RunDeserted(for_room=True), now)

    def _make_room_for_agent(self, now: float, joined: RunMachine | None = None) -> list[Effect]:
        """Forget ended attempts if there are too many agents to admit one more: until then a run keeps its agents.

        If that makes no room, end silent runs, except the one that the agent has `joined`, once new agents have asked
        for a while. Raises `ServerUnavailable` before that, or if there are none.
        """
        if not self._capacity.is_full_of_agents:
            return []
        ended = [each for each in self._forgettable(now) if self._capacity.places_of(each[-1])]
        if self._capacity.agents - sum(self._capacity.places_of(key) for *_, key in ended) >= self._capacity.max_agents:
            return self._have_silent_leave(joined, now)
        effects: list[Effect] = []
        while self._capacity.is_full_of_agents:
            effects += self._forget_some([each for each in ended if each[-1] in self._machines], now)
        return effects

    def _have_silent_leave(self, joined: RunMachine | None, now: float) -> list[Effect]:
        those = [machine for machine in silent(self._machines.values(), now) if machine is not joined]
        effects: list[Effect] = []
        for machine in self._capacity.ask_for_agent(those, now):
            effects += self.deliver(machine, events.RunDeserted(for_agents=True), now)
            self._capacity.count_places(machine.run)
        return effects

    def _forgettable(self, now: float) -> list[tuple[bool, float, Key]]:
        """Return the ended attempts whose agents can have heard of the end, each with its sort key for forgetting."""
        return [
            (run.membership is not None, run.ended_at, run.key)
            for run in self.runs()
            if run.ended_at is not None
            and not run.gave_place
            and self._is_first(run)
            and (run.membership is None or now >= run.ended_at + min(run.settings.lease_s, END_DELIVERED_WITHIN_S))
        ]

    def _forget_some(self, ended: Collection[tuple[bool, float, Key]], now: float) -> list[Effect]:
        forgotten = [key for *_, key in nsmallest(1 + self._capacity.max_runs // FORGOTTEN_SHARE, ended)]
        return [effect for key in forgotten for effect in self._forget(self._machines[key].run, now)]

    def _drop_events(self, machine: RunMachine, now: float) -> list[Effect]:
        """Drop the oldest events of an attempt that has new ones, and of others, while there are too many."""
        effects: list[Effect] = []
        if dropped := kept_events.beyond_own(machine.run):
            effects += self.deliver(machine, dropped, now)
        while drops := self._capacity.surplus(self.runs()):
            for run, dropped in drops:
                if other := self._machines.get(run.key):
                    effects += self.deliver(other, dropped, now)
        return effects

    def _supersede(self, machine: RunMachine, now: float) -> list[Effect]:
        """End a deserted attempt, so that attempts end, and are forgotten, in their order."""
        return [] if machine.run.stage.is_end else self.deliver(machine, RunSuperseded(), now)

    def _decide_succession(self, machine: RunMachine, join: JoinRequest, now: float) -> bool:
        """Return whether the join begins another attempt.

        If the core raises an exception, set the run apart: then the join begins none.
        """
        try:
            return new_attempts.starts_new_attempt(machine.run, join, now)
        except ProtocolError:
            raise
        except Exception as error:
            self.set_apart(machine, error)
            return False

    def _create(self, created: RunCreated, now: float) -> RunMachine:
        machine = RunMachine(created, now, self._retention_s, POLICIES)
        machine.is_judged = self.nodes.excludes
        machine.run.leases.all_closings = self._closings
        machine.run.undecided, machine.run.unwritten_since = self.undecided, self.unwritten_since
        self._machines[machine.run.key] = machine
        self._attempts.setdefault(created.run_id, []).append(machine)
        return machine

    def _machine_for(self, run_id: str, event: Event) -> RunMachine:
        if agent_id := getattr(event, "agent_id", None):
            return self.machine_of(run_id, agent_id)
        if latest := self._latest_machine(run_id):
            return latest
        raise UnknownRun(words.unknown_run(run_id))

    def _machine_with(self, run_id: str, agent_id: str) -> RunMachine | None:
        """Return the attempt that the agent is or was part of: the latest, or one whose end it has not seen yet."""
        for machine in reversed(self._attempts.get(run_id, ())):
            if agent_id in machine.run.agents or agent_id in machine.run.departed_ids:
                return machine
        return None

    def _latest_machine(self, run_id: str | None) -> RunMachine | None:
        attempts = self._attempts.get(run_id or "")  # no run has an empty id
        return attempts[-1] if attempts else None

    def _is_first(self, run: Run) -> bool:
        """Return whether no earlier attempt is remembered."""
        return run.attempt == self._attempts[run.run_id][0].run.attempt

    def let_go(self) -> None:
        """Let go of all runs: another server leads them by now. Then their memory is free without a collection."""
        for machine in self._machines.values():
            machine.forget()
        self._machines.clear()
        self._attempts.clear()
        self._apart.clear()
        self._newly_apart.clear()

    def _forget(self, run: Run, now: float) -> list[Effect]:
        """Forget the first remembered attempt of a run, and keep its numbers if it is the only one."""
        run_id, key = run.run_id, run.key
        self._deadlines.disarm(key)
        machine = self._machines.pop(key)
        machine.forget()
        self._capacity.leave(key)
        is_unended = machine.is_unended
        self._apart = [machine for machine in self._apart if machine.run.key != key]
        attempts = self._attempts[run_id]
        del attempts[0]
        if not attempts:
            del self._attempts[run_id]
            unended = (run_id,) if is_unended else ()
            deserted = {run_id: run.end_reason} if run.gave_place else {}
            last = {run_id: (run.attempt, run.event_number)}
            used = events.NumbersUsed(last, unended=unended, deserted=deserted)
            self._used.apply(used)
            return [Record(*journals.NUMBERS, now, used), ForgetRun(*key)]
        if (then := attempts[0]).run.stage.is_end:  # this attempt may have waited for the forgotten one
            self._deadlines.arm(then.run.key, then.deadline)
        return [ForgetRun(*key)]


def _settings_of(join: JoinRequest) -> RunSettings:
    """Return the settings of the run that this join creates.

    Raises the `ProtocolError` that refuses the join, also after an exception: there is no run yet that could be set
    apart.
    """
    try:
        return admission.settings_of(join)
    except ProtocolError:
        raise
    except Exception as error:
        raise ServerUnavailable(words.cannot_be_created(join.run_id, own_error(error))) from error


def _has_place(run: Run, join: JoinRequest) -> bool:
    """Return whether the run has a place for the newcomer among those of its last round, or the newcomer needs none."""
    return bool(join.unfit) or run.stage.is_end or len(run.agents) < len(run.seats)


def _has_event(effects: Collection[Effect], request_id: str) -> bool:
    """Return whether an event of a run has this request's id."""
    return any(isinstance(effect, EmitEvent) and effect.event.request_id == request_id for effect in effects)


def _has_node(run: Run, node_id: str) -> bool:
    return not run.stage.is_end and (node_id in run.node_ids or node_id in run.cordons)
