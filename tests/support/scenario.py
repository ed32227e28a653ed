"""A run told as a story: `run.join("a", "b"); run.fails("a"); assert run.restarting`.

Stories refer to an agent by its name, which is also its node's unless a test says otherwise. Time is a number of
seconds that moves only when a test moves it. Every deadline on the way fires.
"""

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from msgspec import Struct
from rdzv_protocol.errors import AgentFenced, ProtocolError
from rdzv_protocol.events import RunEvent
from rdzv_protocol.evidence import Evidence, ProcessState, StackGroup
from rdzv_protocol.messages import Assignment, EndedScript, Failure, Finish, JoinRequest, Progress, Start, Stop, Wait
from rdzv_protocol.queries import Examine, Notice, Noticed, PairTest, PairTested, Query, Refused
from rdzv_protocol.settings import LAST_CALL_QUIET_S, RequestedSettings, RunSettings

from rdzv_server.core.effects import Effect, EmitEvent, ForgetRun, Record, WakeAgents
from rdzv_server.core.events import (
    AgentDisconnected,
    ArrivalsAdmitted,
    Event,
    Incarnation,
    LeaseRenewed,
    LeaveAnnounced,
    NodeCordoned,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeUncordoned,
    QueryAnswered,
    RunCreated,
    RunStopped,
    TimePassed,
    WorkersFailed,
    WorkersSucceeded,
)
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.operations import RunResized, RunRestarted
from rdzv_server.core.kernel.policy import Policies
from rdzv_server.core.kernel.run import Run, Stage
from rdzv_server.core.kernel.snapshot import take
from rdzv_server.core.nodes.exclusion import ExclusionPolicy
from rdzv_server.core.policies import POLICIES
from rdzv_server.core.policies.hangs.hang_policy import SETTLE_S
from rdzv_server.core.policies.hangs.suspicions import HangSuspected
from rdzv_server.core.runs.registry import Registry
from rdzv_server.service.run_log import UNLOGGED
from rdzv_server.storage.record_codec import pack, unpack

RUN_ID = "run"
NEVER = 86_400.0
RETENTION_S = 3_600.0
WALL_AT = 1_750_000_000.0
"""Wall-clock time at 0 s."""
MOST_CALLS = 1_000
"""Calls in a row after whose deadline no time passes: more than any run needs to record what is due."""
Asked = TypeVar("Asked", bound=Query)
SERVER_ADDR = "10.0.0.100"
HUNG = "no progress for 20 s at step 7 (limit 10 s)"
"""Reason of a suspicion."""
OPERATOR: dict[str, Any] = {"by": "admin 10.0.0.7"}


@dataclass(frozen=True)
class Connection:
    """A connection to the server, identified by its name."""

    name: Hashable
    server_addr: str = SERVER_ADDR
    is_scoped: bool = False
    is_closed: bool = False

    def held(self, seconds: float) -> None:
        pass


def a_join(agent: str, *, node: str | None = None, after_round: int = 0, **changes: Any) -> JoinRequest:
    """Return a join of `agent`, on the node of the same name."""
    node_id = node or agent
    place = {"addr": f"host-{node_id}", "port": 29_500 + after_round}
    known = ("tail_log", "examine", "notice")
    given = {"run_id": RUN_ID, "local_world_size": 1, "drains": True, "queries": known, **place}
    return JoinRequest(agent_id=agent, node_id=node_id, after_round=after_round, **(given | changes))


def a_failure(node: str, *, rank: int = 0, exit_code: int = 1, cause: str = "", **changes: Any) -> Failure:
    given = {"local_rank": 0, "pid": 100, "stderr_tail": ("Traceback", f"Boom on {node}")}
    cause = cause or f"exit code {exit_code}"
    return Failure(node_id=node, rank=rank, exit_code=exit_code, cause=cause, **(given | changes))


def nnodes(text: str) -> dict[str, int]:
    """Parse `--nnodes`: "2:3" or "2"."""
    low, _, high = text.partition(":")
    return {"min_nodes": int(low), "max_nodes": int(high or low)}


class Scenario:
    """One run and its agents. The lease never ends unless a test sets `lease_s`."""

    def __init__(self, nodes: str = "1", *, policies: Policies = POLICIES, **settings: Any) -> None:
        self._done: dict[str, float] = {}
        """Steps that the workers of each agent have made: see `steps`."""
        self.policies = policies
        self.settings = RunSettings(**({"lease_s": NEVER} | nnodes(nodes) | settings))
        self.created = RunCreated(RUN_ID, 1, explicit=True, settings=self.settings, wall_at=WALL_AT)
        self.machine = RunMachine(self.created, 0.0, RETENTION_S, self.policies)
        self.now = 0.0
        self.effects: list[Effect] = []
        """Effects of the latest event."""
        self.records: list[Record] = []
        self.events: list[RunEvent] = []
        """All events of the run."""
        self.refusal: ProtocolError | None = None
        """Refusal of the last refused request in a story."""

    # Events.

    def join(self, *names: str, **changes: Any) -> None:
        """Each agent joins. A known agent thereby reports that its workers of the last round have stopped."""
        for name in names:
            known = self.run.agents.get(name)
            joined: dict[str, Any] = {}
            if known:
                joined = {"node": known.node_id, "after_round": known.round, "sort_key": known.join.sort_key}
            self.handle(NodeJoined(a_join(name, **(joined | changes)), SERVER_ADDR))

    def fails(self, name: str, *, round: int | None = None, ago_s: float = 0.0, **evidence: Any) -> None:
        agent, seat = self.run.agents.get(name), self.run.seat_of(name)
        failure = a_failure(agent.node_id if agent else name, rank=seat.first_rank if seat else 0, **evidence)
        self.handle(WorkersFailed(name, self._round_of(name, round), failure, ago_s=float(ago_s)))

    def succeeds(self, *names: str, round: int | None = None) -> None:
        for name in names:
            self.handle(WorkersSucceeded(name, self._round_of(name, round)))

    def leaves(self, name: str, reason: str = "SIGTERM") -> None:
        self.handle(NodeLeft(name, reason))

    def tells(self, name: str, **progress: Any) -> None:
        """The agent reports its workers' progress in the running round."""
        self.handle(LeaseRenewed(name, Progress(**({"round": self.run.round} | progress))))

    def steps(self, seconds: float, *, poll_s: float = 5.0, work: Mapping[str, float] = {}, **step_s: float) -> None:
        """Let time pass while agents report, twice in a lease, new steps and the seconds of each.

        `work`: the part of it that is own work.
        """
        for _ in range(int(float(seconds) / poll_s)):
            self.passes(poll_s)
            for name, taken_s in step_s.items():
                done = self._done[name] = self._done.get(name, 0.0) + poll_s / (taken_s or 1.0)
                if name in self.run.agents:
                    self.tells(name, lowest_step=int(done), step_s=taken_s, work_s=work.get(name))

    def suspects(
        self,
        name: str,
        *ranks: int,
        source: str = "progress",
        round: int | None = None,
        silent_s: float = 0.0,
        limit_s: float | None = None,
        number: int = 0,
        is_untold: bool = False,
    ) -> None:
        """The agent suspects that its workers with these ranks hang. Without ranks it retracts the suspicion."""
        round_, hung = self.run.round if round is None else round, tuple(map(int, ranks))
        self.handle(
            HangSuspected(name, round_, source, HUNG, hung, float(silent_s), limit_s, number, is_untold=is_untold)
        )

    def ends_rules(self, name: str, number: int = 0) -> None:
        """A worker of this node writes that all work is done."""
        self.handle(HangSuspected(name, self.run.round, "log rule 1: done", "done", (), number=number, ends_rules=True))

    def asked(self, kind: type[Asked]) -> dict[str, Asked]:
        """Return the agents that have an open query of this kind, each with the query."""
        asked = [(name, query) for name in self.run.agents for query in self.run.queries.of(name, self.now)]
        return {name: query for name, query in asked if isinstance(query, kind)}

    def examined(self) -> dict[str, Examine]:
        """Return the agents that are asked what their workers do, each with its query."""
        return self.asked(Examine)

    def retracts(self, name: str) -> None:
        """The agent leaves because of a signal, and retracts the success that it has just reported."""
        self.handle(NodeLeft(name, "SIGTERM", retracts_success=True))

    def leaves_unfit(self, name: str) -> None:
        """The agent leaves because a check has found its node unfit."""
        node_id = self.run.agents[name].node_id
        self.handle(NodeLeft(name, f"node {node_id} is unfit: no GPU 3", unfit=True))

    def joins_unfit(self, name: str) -> None:
        """A check has found the node unfit before its agent joined, so the agent does not take part."""
        with suppress(AgentFenced):
            self.handle(NodeJoined(a_join(name, unfit=f"node {name} is unfit: no GPU 3"), SERVER_ADDR))

    def tests_network(self, *, bad: str = "", times: int = 1) -> None:
        """All agents that are asked answer, `times` times. Tests with the bad nodes, one letter each, fail."""
        for _ in range(times):
            for name, query in self.asked(PairTest).items():
                fails = name in bad or query.peer in bad
                fine = PairTested(mb_per_s=900.0, latency_s=0.0001)
                answer = PairTested(problem="0.3 MB/s, fewer than 10") if fails else fine
                self.handle(QueryAnswered(name, query.number, answer))

    def announces(self, name: str, *, notice_s: float = 24.0, stop_s: float = 30.0) -> None:
        """The agent announces that it leaves soon."""
        self.handle(LeaveAnnounced(name, "SIGTERM", notice_s, stop_s))

    def acknowledges(self, *names: str, listening: int = 1, acknowledged: int = 1) -> None:
        """The workers of each node have received the notice of the round's end."""
        for name in names:
            answer = Noticed(listening=listening, acknowledged=acknowledged)
            self.handle(QueryAnswered(name, self.asked(Notice)[name].number, answer))

    def judges(self, **states: str) -> None:
        """All agents that are asked answer, with their workers' states if given. Then the hang is judged."""
        for name, query in self.examined().items():
            seat = self.run.seats[name]
            state = ProcessState[states.get(name, "ALIVE")]
            answer = Evidence(groups=(StackGroup(ranks=tuple(seat.ranks), state=state),))
            self.handle(QueryAnswered(name, query.number, answer if states else Refused(reason="no stacks")))
        self.passes(SETTLE_S)

    def is_stopped(self, **operation: Any) -> None:
        self.handle(RunStopped(**(OPERATOR | operation)))

    def admits(self, **operation: Any) -> None:
        """An operator admits the spares."""
        self.handle(ArrivalsAdmitted(**(OPERATOR | operation)))

    def is_restarted(self, **operation: Any) -> None:
        self.handle(RunRestarted(**(OPERATOR | operation)))

    def is_resized(self, nodes: str, **operation: Any) -> None:
        self.handle(RunResized(**(OPERATOR | nnodes(nodes) | operation)))

    def drains(self, node: str, *, deadline_s: float = 60.0, **operation: Any) -> None:
        self.handle(NodeDrained(node_id=node, deadline_s=deadline_s, **(OPERATOR | operation)))

    def cordons(self, node: str, **operation: Any) -> None:
        self.handle(NodeCordoned(node_id=node, **(OPERATOR | operation)))

    def uncordons(self, node: str) -> None:
        self.handle(NodeUncordoned(node_id=node, **OPERATOR))

    def disconnects(self, name: str) -> None:
        """The agent's connection closes while its poll is parked."""
        self.handle(AgentDisconnected(name))

    def is_lost(self, name: str) -> None:
        """The agent's connection closes, and its grace period ends."""
        self.disconnects(name)
        self.passes(self.settings.disconnect_grace_s)

    def restarts(self) -> None:
        """The server restarts."""
        self.machine = RunMachine(self.created, 0.0, RETENTION_S, self.policies)
        for record in self.records:
            self.machine.replay(record.fact, record.at)
            self.machine.next_deadline()  # as the registry does
        self.machine.restart(self.now)
        self.run.validate()

    def restarts_from_a_snapshot(self) -> None:
        """The server restarts from a snapshot that replaces its records."""
        parts = list(take(self.run))
        self.machine = RunMachine(self.created, 0.0, RETENTION_S, self.policies)
        for part in parts:
            self.machine.replay(part, self.now)
            self.machine.next_deadline()  # as the registry does, while no agent has a lease
        self.machine.restart(self.now)
        self.run.validate()

    def sets_wall_clock(self, wall_at: float) -> None:
        """Set the server's wall clock, as a user or a suspended machine does."""
        self.records += [each for each in self.machine.set_wall_clock(wall_at, self.now) if isinstance(each, Record)]

    def renews(self, *names: str, **signs: Any) -> None:
        for name in names:
            self.handle(LeaseRenewed(name, **signs))

    def ended(self, name: str, rank: str) -> None:
        """The agent reports that this rank's script has ended, while its process has not."""
        told = EndedScript(round=self.run.round, rank=int(rank), error="ValueError: boom")
        self.handle(LeaseRenewed(name, ended_script=told))

    def passes(self, seconds: float) -> None:
        """Let time pass, deadline by deadline, as the server's timer does."""
        end, calls = self.now + seconds, 0
        while (at := self.machine.next_deadline()) is not None and at <= end:
            calls = calls + 1 if at <= self.now else 0
            assert calls < MOST_CALLS, f"deadlines pass and nothing follows; of policies: {self._overdue()}"
            self.now = max(self.now, at)
            self.handle(TimePassed())
            if any(isinstance(effect, ForgetRun) for effect in self.effects):
                break
        self.now = end

    def _overdue(self) -> list[str]:
        """Return the policies whose deadline has passed."""
        deadlines = {policy.name: policy.deadline() for policy in self.machine.policies}
        return [name for name, at in deadlines.items() if at is not None and at <= self.now]

    def handle(self, event: Event) -> None:
        self.effects = self.machine.handle(event, self.now)
        self.run.validate()
        self.records += [effect for effect in self.effects if isinstance(effect, Record)]
        self.events += [effect.event for effect in self.effects if isinstance(effect, EmitEvent)]

    # Effects that a user notices.

    @property
    def run(self) -> Run:
        return self.machine.run

    @property
    def stage(self) -> Stage:
        return self.run.stage

    def directive(self, name: str) -> Wait | Start | Stop | Finish:
        return self.machine.directive_for(name, self.now)[1]

    def assignment(self, name: str) -> Assignment:
        directive = self.directive(name)
        assert isinstance(directive, Start), f"{name} gets {directive}"
        return directive.assignment

    def reason(self, name: str) -> str:
        directive = self.directive(name)
        return directive.sentence if isinstance(directive, Wait) else directive.reason

    def participants(self) -> list[str]:
        """Return the running participants, by group rank."""
        started = [name for name in self.run.agents if isinstance(self.directive(name), Start)]
        return sorted(started, key=lambda name: self.assignment(name).group_rank)

    def told(self, kind: type) -> set[str]:
        """Return the agents whose directive is of this kind."""
        return {name for name in self.run.agents if isinstance(self.directive(name), kind)}

    def woken(self) -> list[str]:
        """Return the agents whose polls the latest event answers."""
        return [name for effect in self.effects if isinstance(effect, WakeAgents) for name in effect.agent_ids]

    def announced(self) -> list[str]:
        """Return the lines of the server's log about the latest event."""
        happened = [effect.event for effect in self.effects if isinstance(effect, EmitEvent)]
        return [event.sentence for event in happened if event.kind not in UNLOGGED]

    def reasons(self, kind: str) -> list[str]:
        """Return the reasons of all events of this kind."""
        return [event.reason for event in self.events if event.kind == kind]

    def ends_last_call(self) -> None:
        """End the last call: if the round forms, it begins with the present nodes."""
        if self.stage is Stage.FORMING:
            given = self.settings.last_call_timeout_s
            self.passes(LAST_CALL_QUIET_S if given is None else given)

    def ledger(self) -> list[tuple[str, bool]]:
        """Return the cause of each restart, and whether it was charged."""
        return [(restart.cause.value, restart.charged) for restart in self.run.ledger]

    def _round_of(self, name: str, given: int | None) -> int:
        if given is not None:
            return given
        agent = self.run.agents.get(name)
        return agent.round if agent else self.run.round


def running(nodes: str, *names: str, **settings: Any) -> Scenario:
    """Return a run whose first round runs on these nodes."""
    run = Scenario(nodes, **settings)
    run.join(*names)
    run.ends_last_call()
    assert run.stage is Stage.RUNNING
    return run


class ManyRuns:
    """The runs of one server, on one clock. Each has one node, unless a test says otherwise."""

    def __init__(self, exclusion: ExclusionPolicy | None = None) -> None:
        self.registry = Registry(RETENTION_S, exclusion=exclusion)
        self.registry.set_wall_clock(WALL_AT, 0.0)
        self.now = 0.0
        self.effects: list[Effect] = []
        """Effects of the latest event."""
        self.records: list[Record] = []
        self.event_numbers: list[int] = []
        """Numbers of all events, in order."""
        self._exclusion = exclusion

    def join(self, agent: str, run_id: str = RUN_ID, *, explicit: bool = True, **changes: Any) -> None:
        join = a_join(agent, run_id=run_id, explicit_run_id=explicit, **changes)
        self.handle(run_id, NodeJoined(join, SERVER_ADDR))

    def succeeds(self, agent: str, run_id: str = RUN_ID, round: int = 1) -> None:
        self.handle(run_id, WorkersSucceeded(agent, round))

    def fails(self, agent: str, run_id: str = RUN_ID, round: int = 1, **failure: Any) -> None:
        self.handle(run_id, WorkersFailed(agent, round, a_failure(agent.partition(".")[0], **failure)))

    def leaves(self, agent: str, run_id: str = RUN_ID) -> None:
        self.handle(run_id, NodeLeft(agent, "SIGTERM"))

    def handle(self, run_id: str | None, event: Event) -> None:
        machine, effects = self.registry.handle(run_id, event, self.now)
        self._note(effects, [machine.run] if machine else self.registry.runs())

    def passes(self, seconds: float) -> None:
        """Let time pass, deadline by deadline, as the server's timer does."""
        end = self.now + seconds
        while (at := self.registry.next_deadline()) is not None and at <= end:
            self.now = max(self.now, at)
            self.stalls(0.0)
        self.now = end

    def stalls(self, seconds: float) -> None:
        """Let time pass while the server does not run."""
        self.now += seconds
        self._note(self.registry.pass_time(self.now), self.registry.runs())

    def restarted(self) -> Self:
        """Return the server after a restart with this one's records."""
        again = type(self)(self._exclusion)
        again.now, again.records, again.event_numbers = self.now, list(self.records), self.event_numbers
        for record in self.records:
            again.registry.replay(unpack(record.run_id, record.attempt, record.at, *pack(record)))
        again.registry.restart(again.now, Incarnation())
        return again

    def directive(self, agent: str, run_id: str = RUN_ID) -> Any:
        return self.registry.machine_of(run_id, agent).directive_for(agent, self.now)[1]

    def attempts(self) -> list[tuple[str, int, Stage]]:
        return [(run.run_id, run.attempt, run.stage) for run in self.registry.runs()]

    def _note(self, effects: list[Effect], runs: Iterable[Run]) -> None:
        for run in runs:
            run.validate()
        self.effects = effects
        self.event_numbers += [effect.event.number for effect in effects if isinstance(effect, EmitEvent)]
        for effect in effects:
            if isinstance(effect, Record):
                self.records.append(effect)
            elif isinstance(effect, ForgetRun):
                gone = effect.run_id, effect.attempt
                self.records = [record for record in self.records if (record.run_id, record.attempt) != gone]


def settings_of(nodes: str, **settings: Any) -> RequestedSettings:
    return RequestedSettings(**(nnodes(nodes) | settings))


def replayed(
    created: RunCreated, records: Iterable[Record], created_at: float = 0.0, policies: Policies = POLICIES
) -> Run:
    """Return the run that a restarted server makes from the records."""
    machine = RunMachine(created, created_at, RETENTION_S, policies)
    for record in records:
        machine.replay(record.fact, record.at)
    return machine.run


def durable(run: Run) -> dict[str, Any]:
    """Return all that a restart must restore: everything except times of contact and open queries."""
    signs = ("leases", "signs", "held", "queries", "notice", "cause_sought", "progress", "pace", "refused")
    signs += ("undecided", "unwritten_since", "leave_times")
    return {name: value for name, value in snapshot(run).items() if name not in signs}


def snapshot(run: Run) -> dict[str, Any]:
    """Return the whole state as plain values, including order."""
    plain = {name: _plain(getattr(run, name)) for name in run.__struct_fields__}
    leases = run.leases
    plain["leases"] = [
        list(leases.renewed_at.items()), list(leases.absent_since.items()), dict(leases.probed_until),
        set(leases.suspects), dict(leases.spared), leases.awaits_witness,
    ]  # fmt: skip
    plain["queries"] = {agent_id: dict(asked) for agent_id, asked in run.queries.by_agent.items()}
    return plain


def _plain(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return _parts(value)
    return value  # immutable all through


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Struct):
        return [type(value).__name__, *(_plain(getattr(value, name)) for name in value.__struct_fields__)]
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    return sorted(value) if isinstance(value, set) else [_plain(item) for item in value]
