"""The runs of a server, each attempt with its machine, and the rules for what comes after an end.

A succeeded run is remembered for the retention time: an agent that comes late for its explicit run id is told so,
and `--rerun` starts it again. After a failure, or without an explicit run id, a new agent begins a new attempt. So does
an agent that finds a run which every node has left, if it names no run id, or asks for other settings than the run's;
and if all agents are silent instead (see `unheard`), one without a run id must be of a node of the run, or the run of
one node, since those of many nodes may be alive.
"""

from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush, nsmallest

from rdzv_protocol.errors import (
    AgentFenced,
    OutcomeUnknown,
    ProtocolError,
    RunFailed,
    RunGoesOn,
    RunSucceeded,
    ServerUnavailable,
    UnknownRun,
)
from rdzv_protocol.events import RunEvent
from rdzv_protocol.messages import JoinRequest
from rdzv_protocol.settings import RunSettings

from rdzv_server.core import (
    admission,
    events,
    journals,
    kept_events,
    kept_failures,
    set_apart,
    snapshot,
    unheard,
)
from rdzv_server.core.effects import Answered, Effect, ForgetRun, Happened, Record
from rdzv_server.core.events import Event, Life, NodeJoined, RunCreated, RunSuperseded, TimePassed
from rdzv_server.core.journals import Key
from rdzv_server.core.liveness import Closings, HoldUp
from rdzv_server.core.machine import RunMachine
from rdzv_server.core.nodes.exclusion import ExclusionPolicy
from rdzv_server.core.nodes.facts import CordonsKept, NodeBlamed
from rdzv_server.core.nodes.machine import Nodes
from rdzv_server.core.run import HEARD_OF_S, Run, Stage
from rdzv_server.core.set_apart import SetApart, own_error
from rdzv_server.core.used_numbers import UsedNumbers

RETENTION_S = 3_600.0
"""Seconds that an ended run is remembered: an hour by default, for people to look and late agents to be told."""
MOST_RUNS = 10_000
"""Most runs of a server by default, as many as its memory is meant for."""
MOST_AGENTS = 100_000
"""Most agents of all runs of a server by default: they take about 1.3 GB."""

SPARE_DEADLINES = 64
"""Stale deadlines that are tolerated, beyond one for each run, before they are dropped."""
ROOM = 100
"""Divisor of all attempts: a hundredth is forgotten at once when there is no room, as finding them takes time."""


class Registry:
    """Attempts of all runs, at most `max_runs`, with at most `max_agents` agents and `max_events` events together.

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
        """Begin without runs. `exclusion`: policy by which the server keeps a node out by itself; None: never."""
        self._retention_s = retention_s
        self._max_runs, self._max_agents, self._max_events = max_runs, max_agents, max_events
        self._max_evidence = max_evidence
        self._all_places = self._all_events = self._all_evidence = 0
        """Sums of the machines' places, events and bytes of evidence."""
        self._evident: dict[Key, None] = {}
        """Attempts that keep evidence which they may drop."""
        self._machines: dict[Key, RunMachine] = {}
        self._attempts: dict[str, list[int]] = {}
        """Numbers of the attempts of each run that are remembered, in their order: the first is forgotten first, and
        the last has the run's highest numbers."""
        self._used = UsedNumbers()
        self.unread_since = float("inf")
        """Arrival of the oldest message that the server has not read: see `Leases`."""
        self._closings = Closings()
        self._deadlines: list[tuple[float, Key]] = []
        self._armed: dict[Key, float] = {}
        self._life = Life()
        self._wall_ahead_s = 0.0
        self.nodes = Nodes(self, exclusion, knows_all_runs=knows_all_runs)
        self._apart: list[SetApart] = []
        self._newly_apart: list[tuple[SetApart, Exception]] = []
        self._asked_for_place = float("-inf"), float("-inf")
        """Times at which new runs or agents began to ask for a place, one after the other, and asked last: a sign."""

    def runs(self) -> list[Run]:
        """Every attempt that is remembered, oldest first."""
        return [machine.run for machine in self._machines.values()]

    def attempts_of(self, run_id: str) -> list[Run]:
        """The attempts of a run that are remembered, oldest first."""
        return [self._machines[run_id, attempt].run for attempt in self._attempts.get(run_id, ())]

    def handle(self, run_id: str | None, event: Event, now: float) -> tuple[RunMachine | None, list[Effect]]:
        """Apply an event; return its effects, and the machine that took it if it is about one run.

        `run_id`: None for an action on a node. The last effect of an operator's action is its answer. Raises
        `ProtocolError`, with nothing changed, if it is refused.
        """
        if isinstance(event, events.Operation):
            return self._operate(run_id, event, now)
        assert run_id is not None
        effects: list[Effect] = []
        if isinstance(event, NodeJoined):
            machine, effects = self._machine_to_join(event, now)
            if event.join.node_id in self.nodes.state.cordons:
                event = self.nodes.with_cordon(event, machine.run)
        else:
            machine = self._machine_for(run_id, event)
        effects += self.tell(machine, event, now)
        return machine, effects + self._judge(now) if self.nodes.suspects else effects

    def pass_time(self, now: float) -> list[Effect]:
        """Let every run whose deadline has come draw its conclusions."""
        effects = self.nodes.pass_time(now)  # before a round is completed without a node that is uncordoned now
        effects += self._pass_due(now)
        return effects + self.nodes.judge(now)

    def _operate(
        self, run_id: str | None, event: events.Operation, now: float
    ) -> tuple[RunMachine | None, list[Effect]]:
        """Carry an operator's action out, unless it has been before."""
        machine = None
        was_done = self.answer_to(run_id, event.request_id)
        if isinstance(event, events.NodeOperation):
            effects = self.nodes.handle(event, now)
        elif isinstance(event, events.RunForgotten):
            effects = self._forget_run(event, now)
        else:
            assert run_id is not None
            machine = self._machine_for(run_id, event)
            effects = self.tell(machine, event, now)
        if self.nodes.suspects:
            effects = effects + self._judge(now)
        sentence = self.answer_to(run_id, event.request_id)
        is_untold = bool(sentence) and not (was_done or _has_event(effects, event.request_id))
        return machine, [*effects, Answered(sentence or f"run {run_id} was over before", is_untold)]

    def answer_to(self, run_id: str | None, request_id: str) -> str:
        """Sentence that answered an operator's request; empty if the request is not known."""
        latest = self._latest_machine(run_id) if run_id is not None else None
        answer = latest.run.answers.get(request_id) if latest else None
        return answer or self.nodes.answer_to(request_id)

    def _judge(self, now: float) -> list[Effect]:
        """Judge the nodes that are blamed, with those that other runs lose in the same instant."""
        return self._pass_due(now) + self.nodes.judge(now)

    def with_node(self, node_id: str) -> list[RunMachine]:
        """Runs that have not ended and have agents of the node, or its cordon."""
        return [machine for machine in self._machines.values() if _has_node(machine.run, node_id)]

    def _forget_run(self, event: events.RunForgotten, now: float) -> list[Effect]:
        if self.nodes.answer_to(event.request_id):
            return []
        latest = self._latest_machine(event.run_id)
        if latest is None:
            raise UnknownRun(f"no run {event.run_id} is known here")
        if not (latest.run.stage.is_end or latest.run.set_apart):
            raise RunGoesOn(f"run {event.run_id} goes on ({latest.run.stage}): stop it first (POST /v1/runs/stop)")
        effects: list[Effect] = []
        for attempt in list(self._attempts[event.run_id]):
            effects += self.tell(self._machines[event.run_id, attempt], event, now)
        return effects + self.nodes.forgotten(event, now)

    def tell(self, machine: RunMachine, event: Event, now: float) -> list[Effect]:
        """Let the machine handle an event, and forget the run if its time has come.

        If an exception is raised, the run is set apart, and the others notice nothing.
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
        if len(run.agents) != machine.places:
            self._count_places(machine)
        kept = run.event_number - run.first_event + 1
        is_beyond = kept > machine.events and (
            kept > kept_events.MOST_OF_ATTEMPT or self._all_events + kept - machine.events > self._max_events
        )
        if kept != machine.events:
            self._count_events(machine)
        if run.failures and run.failures[-1] is not machine.last_failure:
            self._count_evidence(machine)
        if run.ended_at is None or not any(isinstance(effect, ForgetRun) for effect in happened):
            self._arm(machine, machine.deadline)
        else:
            happened = [effect for effect in happened if not isinstance(effect, ForgetRun)]
            happened += self._forget(run, now) if self._is_first(run) else []
        if machine.blamed:
            happened = happened + self.nodes.take_blames(machine, now)
        return happened + self._drop_events(machine, now) if is_beyond else happened

    def set_apart(self, machine: RunMachine, error: Exception) -> None:
        """Set a run apart because its core raised this exception; `take_set_apart` returns it next."""
        self._all_places -= machine.places
        self._all_events -= machine.events
        self._all_evidence -= machine.evidence
        set_apart.set_apart(machine, error)
        assert isinstance(machine, SetApart)
        self._armed.pop((machine.run.run_id, machine.run.attempt), None)
        self._newly_apart.append((machine, error))
        self._apart.append(machine)

    @property
    def has_newly_apart(self) -> bool:
        """Whether `take_set_apart` has something to return."""
        return bool(self._newly_apart)

    def take_set_apart(self) -> list[tuple[SetApart, Exception]]:
        """Return the runs that have been set apart since the last call, each with its error: they await `rebuild`."""
        taken, self._newly_apart = self._newly_apart, []
        return taken

    def rebuild(self, machine: SetApart, records: Sequence[Record], last_event: int, now: float) -> list[Effect]:
        """Make the state of a run that is set apart anew from its records and the number of its last event."""
        self._all_events -= machine.events
        machine.events = 0
        self._all_evidence -= machine.evidence
        effects = machine.rebuild(records, last_event, now)
        self._count_places(machine)
        self._count_events(machine)
        self._count_evidence(machine)
        self._arm(machine, machine.deadline)
        return effects

    @property
    def runs_apart(self) -> list[str]:
        """Ids of the runs that are set apart, and have not been stopped."""
        return [machine.run.run_id for machine in self._apart if not machine.run.stage.is_end]

    def _pass_due(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for key in self._due(now):
            if machine := self._machines.get(key):  # else it was forgotten as another one's events took the room
                effects += self.tell(machine, TimePassed(), now)
        return effects

    def _due(self, now: float) -> list[Key]:
        """Attempts whose deadline has come, each once, those of a run in their order.

        A machine that has more to do than it does in one go sets a new deadline.
        """
        due: list[Key] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            at, key = heappop(self._deadlines)
            if self._armed.get(key) == at:  # else an earlier deadline was set after this one
                del self._armed[key]
                due.append(key)
        return sorted(due)

    def next_deadline(self) -> float | None:
        """Time at which `pass_time` is due next; it may turn out then that the deadline has moved on."""
        at, uncordoned_at = self._deadlines[0][0] if self._deadlines else None, self.nodes.next_deadline()
        return at if uncordoned_at is None else uncordoned_at if at is None else min(at, uncordoned_at)

    def machine_of(self, run_id: str, agent_id: str) -> RunMachine:
        """Attempt that the agent is part of, else the run's latest. Raises `AgentFenced` if there is none."""
        machine = self._machine_with(run_id, agent_id) or self._latest_machine(run_id)
        if machine is None:
            raise AgentFenced(f"run {run_id} is not known here")
        return machine

    def replay(self, record: Record) -> list[RunEvent]:
        """Apply a recorded fact; the records of an attempt come in their order. Returns the run events that it led to.

        The events of a run's creation come with its next record; a snapshot has none.
        """
        if isinstance(record.fact, events.NumbersUsed):
            self._used.apply(record.fact)
            return []
        key = (record.run_id, record.attempt)
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
            self._count_places(machine)
            self._count_events(machine)
            if machine.run.failures and machine.run.failures[-1] is not machine.last_failure:
                self._count_evidence(machine)
            self._arm(machine, machine.next_deadline())
        except Exception as error:
            self.set_apart(machine, error)
        return [effect.event for effect in effects if isinstance(effect, Happened)]

    def resume_numbers(self, last: Mapping[Key, int]) -> None:
        """Go on after the last event of each attempt that the store holds, whatever has written it."""
        for key, number in last.items():
            if machine := self._machines.get(key):
                machine.run.event_number = max(machine.run.event_number, number)
                self._count_events(machine)

    def snapshot(self, key: Key, now: float) -> list[Record]:
        """Records to replay in place of all that led to this attempt; none if it has ended, or is forgotten."""
        if key == journals.NODES:
            return self.nodes.snapshot(now)
        if key == journals.NUMBERS:
            return [Record(*key, now, fact) for fact in self._used.snapshot()]
        machine = self._machines.get(key)
        if machine is None or machine.run.stage.is_end or machine.run.set_apart:
            return []
        run = machine.run
        wall_at = run.wall_clock(run.created_at)
        created = RunCreated(run.run_id, run.attempt, run.explicit, run.settings, wall_at, self._life)
        records = [Record(run.run_id, run.attempt, run.created_at, created)]
        try:
            return [*records, *(Record(run.run_id, run.attempt, now, fact) for fact in snapshot.take(run))]
        except Exception as error:
            self.set_apart(machine, error)
            return []

    def restart(self, now: float, life: Life) -> None:
        """Begin a life of the server, once all has been replayed: nobody is missed for what happened meanwhile."""
        self._life = life
        self.nodes.begin_life(life)
        for machine in self._machines.values():
            try:
                machine.restart(now)
                self._arm(machine, machine.next_deadline())
            except Exception as error:
                self.set_apart(machine, error)

    def resume(self, now: float, hold_up: HoldUp) -> None:
        """Make up for a time in which the server could not hear agents, or not answer them."""
        for machine in self._machines.values():
            try:
                machine.run.leases.resume(now, hold_up)
            except Exception as error:
                self.set_apart(machine, error)

    def set_wall_clock(self, wall_at: float, now: float) -> list[Effect]:
        """Let every run know what the server's wall clock shows, which has been set."""
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
        if latest and not self._is_followed(latest, join, now):
            is_full = self._all_places >= self._max_agents and not _has_place(latest.run, join)
            return latest, self._make_room_for_agent(now, latest) if is_full else []
        if join.after_round > 0:
            raise AgentFenced(f"run {join.run_id} is not known here: node {join.node_id} must join it anew")
        if latest is None and join.returning and (end := self._used.end_of(join.run_id)):
            raise RunFailed(f"run {join.run_id} has failed: {end}")
        if latest is None and join.returning and self._used.has_ended(join.run_id, join.attempt):
            raise OutcomeUnknown(
                f"run {join.run_id} ended while node {join.node_id} was away, and how it ended is not remembered here: "
                "the node does not begin it again. To run it again, start its agents again"
            )
        settings = _settings_of(join)  # before anything changes: it may refuse the join
        effects = self._make_room_for_agent(now)
        if not effects and len(self._machines) >= self._max_runs and self._is_full:
            effects = self._make_room(now)
        effects += self._supersede(latest, now) if latest else []
        last, number = (latest.run.attempt, latest.run.event_number) if latest else self._used.last(join.run_id)
        wall_at = now + self._wall_ahead_s
        created = RunCreated(join.run_id, last + 1, join.explicit_run_id, settings, wall_at, self._life, number)
        effects.append(Record(join.run_id, last + 1, now, created))
        return self._create(created, now), effects

    def _make_room(self, now: float) -> list[Effect]:
        """Forget attempts that have ended before their time: first those that never ran, then the oldest ends.

        If there is none whose agents can have heard of the end, end the run that has been silent for longest, once new
        runs have asked for a while. Raises `ServerUnavailable` if there is no such run, or before.
        """
        if ended := self._forgettable(now):
            return self._forget_some(ended, now)
        full = f"this server holds {self._max_runs} runs, as many as --max-runs allows, and none of them has ended; "
        longest = next(iter(self._silent(now)), None)
        self._want_place(longest, f"{full}there is room when one has", full, now)
        assert longest
        return self.tell(longest, events.RunDeserted(for_room=True), now)

    def _silent(self, now: float) -> list[RunMachine]:
        """Attempts that may give their places, the one that has been silent for longest first."""
        silent = [machine for machine in self._machines.values() if unheard.may_give_place(machine.run, now)]
        return sorted(silent, key=lambda machine: machine.run.unheard_since or 0.0)

    def _want_place(self, giver: RunMachine | None, refusal: str, full: str, now: float) -> None:
        """Note that a newcomer asks for a place. Raises `ServerUnavailable` unless there is an attempt that gives its
        own, and newcomers have asked for a while.
        """
        since, last = self._asked_for_place
        since = since if now <= last + unheard.ASKED_AGAIN_S else now
        self._asked_for_place = since, now
        if giver is None:
            raise ServerUnavailable(refusal)
        if now < since + unheard.WANTED_S:
            gives = f"run {giver.run.run_id} is silent, and gives its place in {unheard.WANTED_S:g} s"
            raise ServerUnavailable(f"{full}{gives}")

    @property
    def _is_full(self) -> bool:
        """Whether there is no place for a new run. A run that gave its place is remembered for a minute at most."""
        return sum(not machine.run.gave_place for machine in self._machines.values()) >= self._max_runs

    def _make_room_for_agent(self, now: float, joined: RunMachine | None = None) -> list[Effect]:
        """Forget attempts that have ended, if there are too many agents for one more: a run keeps its agents till then.

        If that makes no room, end silent runs, other than the one that the agent has `joined`, once new agents have
        asked for a while. Raises `ServerUnavailable` if there are none, or before.
        """
        if self._all_places < self._max_agents:
            return []
        ended = [each for each in self._forgettable(now) if self._machines[each[-1]].places]
        if self._all_places - sum(self._machines[key].places for *_, key in ended) >= self._max_agents:
            return self._have_silent_leave(joined, now)
        effects: list[Effect] = []
        while self._all_places >= self._max_agents:
            effects += self._forget_some([each for each in ended if each[-1] in self._machines], now)
        return effects

    def _have_silent_leave(self, joined: RunMachine | None, now: float) -> list[Effect]:
        full = f"this server holds {self._all_places} agents, and --max-agents is {self._max_agents}"
        silent = [machine for machine in self._silent(now) if machine is not joined]
        surplus, givers = self._all_places - self._max_agents, list[RunMachine]()
        while silent and surplus >= 0:
            givers.append(silent.pop(0))
            surplus -= givers[-1].places
        giver = givers[0] if surplus < 0 else None
        self._want_place(giver, f"{full}: there is room when some have left", f"{full}; ", now)
        effects: list[Effect] = []
        for machine in givers:
            effects += self.tell(machine, events.RunDeserted(for_agents=True), now)
            self._count_places(machine)
        return effects

    def _forgettable(self, now: float) -> list[tuple[bool, float, Key]]:
        """Ended attempts whose agents can have heard of the end, each with what they are forgotten in the order of."""
        return [
            (run.membership is not None, run.ended_at, (run.run_id, run.attempt))
            for run in self.runs()
            if run.ended_at is not None
            and not run.gave_place
            and self._is_first(run)
            and (run.membership is None or now >= run.ended_at + min(run.settings.lease_s, HEARD_OF_S))
        ]

    def _forget_some(self, ended: Collection[tuple[bool, float, Key]], now: float) -> list[Effect]:
        forgotten = [key for *_, key in nsmallest(1 + self._max_runs // ROOM, ended)]
        return [effect for key in forgotten for effect in self._forget(self._machines[key].run, now)]

    def _count_places(self, machine: RunMachine) -> None:
        """Count the agents of an attempt; one that goes on keeps the places of its last round.

        So newcomers that fill the server keep no run from replacing the nodes that it loses.
        """
        run, places = machine.run, 0 if machine.run.gave_place else len(machine.run.agents)
        if run.membership is not None and run.ended_at is None:
            places = max(places, len(run.membership.seats))
        self._all_places += places - machine.places
        machine.places = places

    def _count_events(self, machine: RunMachine) -> None:
        kept = machine.run.events_kept
        self._all_events += kept - machine.events
        machine.events = kept

    def _count_evidence(self, machine: RunMachine) -> None:
        """Count the evidence of an attempt that has a new failure, and drop that of some if there is too much."""
        self._weigh(machine)
        if self._all_evidence > self._max_evidence:
            keeping = [(self._machines[key].run, self._machines[key].evidence) for key in self._evident]
            for run in kept_failures.to_drop(keeping, self._all_evidence, self._max_evidence):
                kept_failures.drop_evidence(run)
                self._weigh(self._machines[run.run_id, run.attempt])

    def _weigh(self, machine: RunMachine) -> None:
        run = machine.run
        key, size = (run.run_id, run.attempt), kept_failures.size(run)
        machine.last_failure = run.failures[-1] if run.failures else None
        self._all_evidence += size - machine.evidence
        machine.evidence = size
        if size > kept_failures.LEAST_BYTES:
            self._evident[key] = None
        else:
            self._evident.pop(key, None)

    def _drop_events(self, machine: RunMachine, now: float) -> list[Effect]:
        """Drop the oldest events of an attempt that has new ones, and of others, as far as there are too many."""
        effects: list[Effect] = []
        if dropped := kept_events.beyond_own(machine.run):
            effects += self.tell(machine, dropped, now)
        while self._all_events > self._max_events:
            drops = list(kept_events.beyond_total(self.runs(), self._all_events, self._max_events))
            if not drops:
                break
            for run, dropped in drops:
                if other := self._machines.get((run.run_id, run.attempt)):
                    effects += self.tell(other, dropped, now)
        return effects

    def _supersede(self, machine: RunMachine, now: float) -> list[Effect]:
        """End a deserted attempt, so that attempts end, and are forgotten, in their order."""
        return [] if machine.run.stage.is_end else self.tell(machine, RunSuperseded(), now)

    def _is_followed(self, machine: RunMachine, join: JoinRequest, now: float) -> bool:
        """Whether the join begins another attempt; no, if the core raises an exception over it."""
        try:
            return self._begins_anew(machine.run, join, now)
        except ProtocolError:
            raise
        except Exception as error:
            self.set_apart(machine, error)
            return False

    def _begins_anew(self, run: Run, join: JoinRequest, now: float) -> bool:
        if (join.returning or join.unfit) and run.stage.is_end:  # it has no place, and learns how the run ended
            end = RunSucceeded if run.stage is Stage.SUCCEEDED else RunFailed
            raise end(f"run {run.run_id} has {run.stage}: {run.end_reason}")
        if join.returning or (run.set_apart and not run.stage.is_end):
            return False
        if run.stage is Stage.SUCCEEDED and run.explicit and join.explicit_run_id and not join.rerun:
            admission.check_program(run, join)
            raise RunSucceeded(f"run {run.run_id} has already succeeded: {run.end_reason}. --rerun starts it again")
        if run.stage.is_end:
            return True
        if run.agents:
            if not run.leases.uncertain:
                return False  # nearly always
            is_deserted = join.node_id in run.node_ids or len(run.seats) <= 1
            are_gone = run.unheard_since is not None or run.leases.are_gone(now)
        else:
            is_deserted, are_gone = bool(run.departures), True  # else only unfit nodes have come so far
        return are_gone and ((is_deserted and not join.explicit_run_id) or bool(admission.conflicts(run, join)))

    def _create(self, created: RunCreated, now: float) -> RunMachine:
        machine = RunMachine(created, now, self._retention_s)
        machine.is_judged = self.nodes.excludes
        machine.run.leases.all_closings = self._closings
        self._machines[created.run_id, created.attempt] = machine
        self._attempts.setdefault(created.run_id, []).append(created.attempt)
        return machine

    def _machine_for(self, run_id: str, event: Event) -> RunMachine:
        if agent_id := getattr(event, "agent_id", None):
            return self.machine_of(run_id, agent_id)
        if latest := self._latest_machine(run_id):
            return latest
        raise UnknownRun(f"no run {run_id} is known here")

    def _machine_with(self, run_id: str, agent_id: str) -> RunMachine | None:
        """Attempt that the agent is, or was, part of: the latest, or one whose end it has not seen yet."""
        for attempt in reversed(self._attempts.get(run_id, ())):
            machine = self._machines[run_id, attempt]
            if agent_id in machine.run.agents or agent_id in machine.run.departed_ids:
                return machine
        return None

    def _latest_machine(self, run_id: str) -> RunMachine | None:
        attempts = self._attempts.get(run_id)
        return self._machines[run_id, attempts[-1]] if attempts else None

    def _is_first(self, run: Run) -> bool:
        """Whether no earlier attempt is remembered."""
        return run.attempt == self._attempts[run.run_id][0]

    def _arm(self, machine: RunMachine, at: float | None) -> None:
        key = (machine.run.run_id, machine.run.attempt)
        if at is not None and at < self._armed.get(key, float("inf")):
            self._armed[key] = at
            heappush(self._deadlines, (at, key))
            self._drop_stale()

    def _drop_stale(self) -> None:
        """Drop deadlines that an earlier one has replaced, or whose run is forgotten: some lie days ahead."""
        if len(self._deadlines) > 2 * len(self._armed) + SPARE_DEADLINES:
            self._deadlines = [(at, key) for key, at in self._armed.items()]
            heapify(self._deadlines)

    def _forget(self, run: Run, now: float) -> list[Effect]:
        """Forget the first attempt of a run that is remembered, and keep its numbers if there is no other one."""
        run_id, key = run.run_id, (run.run_id, run.attempt)
        self._armed.pop(key, None)
        self._drop_stale()
        machine = self._machines.pop(key)
        self._all_places -= machine.places
        self._all_events -= machine.events
        self._all_evidence -= machine.evidence
        self._evident.pop(key, None)
        is_unended = machine.is_unended
        self._apart = [machine for machine in self._apart if (machine.run.run_id, machine.run.attempt) != key]
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
        if (then := self._machines[run_id, attempts[0]]).run.stage.is_end:  # it may have waited for this one
            self._arm(then, then.deadline)
        return [ForgetRun(*key)]


def _settings_of(join: JoinRequest) -> RunSettings:
    """Settings of the run that this join creates. Raises the `ProtocolError` that refuses it, also after an exception:
    there is no run yet that could be set apart.
    """
    try:
        return admission.settings_of(join)
    except ProtocolError:
        raise
    except Exception as error:
        why = f"run {join.run_id} cannot be created after {own_error(error)}. Report this with the server's log"
        raise ServerUnavailable(why) from error


def _has_place(run: Run, join: JoinRequest) -> bool:
    """Whether the run has a place for this newcomer among those of its last round, or it needs none."""
    return bool(join.unfit) or run.stage.is_end or len(run.agents) < len(run.seats)


def _has_event(effects: Collection[Effect], request_id: str) -> bool:
    """Whether an event of a run tells of this request."""
    return any(isinstance(effect, Happened) and effect.event.request_id == request_id for effect in effects)


def _has_node(run: Run, node_id: str) -> bool:
    return not run.stage.is_end and (node_id in run.node_ids or node_id in run.cordons)
