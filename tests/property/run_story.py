"""Events of a run in any order, passed to the core and to the model."""

from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec.structs import replace
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Assignment, Failure, Progress, Start
from rdzv_protocol.queries import Notice, Noticed, TailLog
from rdzv_protocol.queries import Refused as QueryRefusal
from rdzv_protocol.settings import RunSettings

from rdzv_server.core.effects import CloseQuery, EmitEvent, Record
from rdzv_server.core.events import (
    AgentDisconnected,
    ArrivalsAdmitted,
    CauseNotFound,
    ContactRegained,
    Event,
    LeaseRenewed,
    LeaveAnnounced,
    LogAsked,
    NodeCordoned,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeOperation,
    NodeUncordoned,
    QueryAnswered,
    RoundCompleted,
    RunCreated,
    RunForgotten,
    RunStopped,
    TimePassed,
    WorkersFailed,
    WorkersSucceeded,
)
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.operations import BY_FACT, RunResized, RunRestarted
from rdzv_server.core.kernel.queries import MOST_OPEN
from rdzv_server.core.kernel.run import AgentState, Seat, Stage
from rdzv_server.core.kernel.snapshot import take
from rdzv_server.core.policies import POLICIES
from rdzv_server.core.policies.hangs.suspicions import HangFound, HangSuspected
from rdzv_server.core.policies.lost_time import ProgressMeasured
from rdzv_server.core.policies.restart_cost import StartMeasured
from rdzv_server.core.policies.timeline import ServerRestarted
from rdzv_server.storage.record_codec import pack, unpack
from tests.property import model as rules
from tests.property.model import Model, Refused
from tests.property.run_invariants import RunInvariants, _number, places, steps
from tests.support.scenario import RETENTION_S, SERVER_ADDR, WALL_AT, a_failure, snapshot
from tests.support.scenario import a_join as a_join_of_any_kind

NAMES = [f"agent{index}" for index in range(16)]
a_join = partial(a_join_of_any_kind, queries=("tail_log", "notice"))
"""Join of an agent that cannot be examined. A hang of its workers is judged by its suspicions."""
NODES = ["a", "b", "c", "d"]
ACTIONS = (RunRestarted, RunResized, ArrivalsAdmitted, NodeCordoned, NodeUncordoned, NodeDrained)
ENDS = (RunStopped, RunForgotten)
"""Operators' actions that are in no story, because they leave nothing of the run to check. `test_batches` has both."""
assert {*ACTIONS, *ENDS} == BY_FACT.keys(), (
    "each operator's action is in a rule of RunStory, or is left out for a reason"
)
BEFORE_A_ROUND_ENDS = (ProgressMeasured, ServerRestarted, StartMeasured)
"""What policies record before a fact that may end the running round."""
REQUESTS = (NodeJoined, NodeLeft, LeaveAnnounced, WorkersFailed, WorkersSucceeded, *ACTIONS)
exit_codes = st.sampled_from([1] * 15 + [rules.FATAL])
verdicts = st.sampled_from(["count"] * 8 + ["retry"] * 3 + ["fatal"])
delays = st.sampled_from([0] * 8 + [1, 2])
"""Age of a report in rounds."""


FIXED: dict[str, Any] = {
    "lease_s": rules.LEASE_S,
    "disconnect_grace_s": rules.GRACE_S,
    "join_timeout_s": rules.JOIN_TIMEOUT_S,
    "scale_up_window_s": rules.WINDOW_S,
    "scale_up_cooldown_s": rules.COOLDOWN_S,
    "fatal_exit_codes": (rules.FATAL,),
}
CHOICES = {
    name: st.sampled_from(values)
    for name, values in {
        "max_restarts": [0, 1, 3, 9, 9],
        "restart_window_s": [None, None, 30.0],
        "scale_up": ["immediate", "immediate", "cooldown", "manual", "on-notice"],
        "last_call_timeout_s": [rules.LAST_CALL_S, None],
        "notice_timeout_s": [None, None, 10.0],
        "rank_policy": ["sticky", "sticky", "topology", "fill-gaps"],
        "shrink_after_s": [0.0, 0.0, 3.0, 45.0],
        "on_hang": ["restart", "restart", "fail", "report"],
        "max_hang_restarts": [None, None, 0, 1, 3],
        "restart_backoff_s": [0.0, 0.0, 1.0, 30.0],
        "restart_backoff_max_s": [300.0, 2.0, 8.0, 20.0],
        "max_restarts_without_progress": [None, None, 1, 2, 4],
        "fail_when_hopeless": [False, True],
        "fixed_nodes": [None, None, 2, 3, 4],
    }.items()
}
"""Settings of a run other than its limits. Some values are more frequent."""


def _limits(low: int, more: int, sizes: tuple[int, tuple[int, ...]]) -> dict[str, Any]:
    """Return the limits of a run's number of nodes, without the legal sizes if none of them is within the limits."""
    limits = {"min_nodes": low, "max_nodes": low + more}
    restricted = limits | {"node_unit": sizes[0], "legal_sizes": sizes[1]}
    return restricted if rules.legal_sizes_of(RunSettings(**restricted)) else limits


class RunStory(RunInvariants):
    """Passes the same events to the core and to the model."""

    policies = POLICIES

    @initialize(
        limits=st.builds(
            _limits,
            st.sampled_from([1, 2, 2, 3]),
            st.integers(0, 2),
            st.sampled_from([(1, ()), (1, ()), (2, ()), (1, (1, 2, 4)), (1, (2, 3, 5))]),
        ),
        chosen=st.fixed_dictionaries(CHOICES),
        joined=st.sampled_from([0, 2, 3, 4, 5]),
    )
    def found(self, limits: dict[str, Any], chosen: dict[str, Any], joined: int) -> None:
        settings = RunSettings(**FIXED, **limits, **chosen)
        self.now, self.wall_ahead_s = 0.0, WALL_AT
        self.created = RunCreated("run", 1, explicit=True, settings=settings, wall_at=WALL_AT)
        self.machine = RunMachine(self.created, self.now, RETENTION_S, self.policies)
        self.model = Model(settings)
        self.hangs = 0
        self.told_steps = {-1}
        self.records = []
        self.numbers = []
        self.joins = []
        self.requests = 0
        self.questions = 0
        self.open_questions = set()
        self.taken: list[tuple[Event, Any]] = []
        """Requests that had an effect, with their form for the model."""
        self.limits = []
        self.formations = []
        self.counters, self.failures_by_node, self.counted = [], {}, {}
        self.end = None
        for index in range(joined):
            self.a_new_agent_joins(NODES[index % 4], None, 1 + index % 2)

    # Events.

    @rule(
        node=st.sampled_from(NODES),
        node_rank=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 3)),
        size=st.integers(1, 4),
        block=st.sampled_from(["", "s0", "s1"]),
    )
    def a_new_agent_joins(self, node: str, node_rank: int | None, size: int, block: str = "") -> None:
        for name in NAMES:
            if name not in self.run_.agents and name not in self.run_.departed_ids:
                join = a_join(name, node=node, node_rank=node_rank, local_world_size=size, sort_key=block)
                self._join(NodeJoined(join, SERVER_ADDR))
                return

    @rule(node=st.sampled_from(NODES))
    def a_node_does_not_join_because_it_is_unfit(self, node: str) -> None:
        for name in NAMES:
            if name not in self.run_.agents and name not in self.run_.departed_ids:
                event = NodeJoined(a_join(name, node=node, unfit="no GPU"), SERVER_ADDR)
                self._both(event, lambda name=name: self.model.join(name, node, None, 0, self.now, is_unfit=True))
                return

    @precondition(lambda self: self._stopped())
    @rule(data=st.data(), size=st.integers(1, 4))
    def an_agent_rejoins(self, data: st.DataObject, size: int) -> None:
        agent = self.run_.agents[data.draw(st.sampled_from(self._stopped()))]
        kept = {"node_rank": agent.join.node_rank, "sort_key": agent.join.sort_key}
        changed = {"local_world_size": size, "after_round": agent.round, **kept}
        self._join(NodeJoined(a_join(agent.agent_id, node=agent.node_id, **changed), SERVER_ADDR))

    @precondition(lambda self: self._stopped())
    @rule()
    def everybody_rejoins(self) -> None:
        for name in self._stopped():
            if name in self._stopped():
                agent = self.run_.agents[name]
                kept = {"node_rank": agent.join.node_rank, "sort_key": agent.join.sort_key}
                join = a_join(name, node=agent.node_id, after_round=agent.round, **kept)
                self._join(NodeJoined(join, SERVER_ADDR))

    @precondition(lambda self: self.joins)
    @rule(data=st.data())
    def a_join_arrives_again(self, data: st.DataObject) -> None:
        self._join(data.draw(st.sampled_from(self.joins)))

    @precondition(lambda self: self.taken)
    @rule()
    def everything_arrives_again(self) -> None:
        """A network delivers twice, and late: a repeated report or leave has no effect.

        A join is also a sign of life. If its agent had not been heard, a round or a failure that waited for it may be
        decided. If no agent of the run was heard, one is then, and it may be the witness of another one's loss. An
        earlier join of an agent that has joined again is news.
        """
        latest = {event.join.agent_id: event for event, _ in self.taken if isinstance(event, NodeJoined)}
        for event, model in list(self.taken):
            if isinstance(event, NodeJoined) and latest[event.join.agent_id] != event:
                continue
            recorded = len(self.records)
            agent = self.model.find(event.join.agent_id) if isinstance(event, NodeJoined) else None
            was_uncertain = agent is not None and agent.uncertain
            lacked_witness = self.run_.leases.awaits_witness or all(each.uncertain for each in self.model.agents)
            self._both(event, model)
            added = [type(record.fact) for record in self.records[recorded:]]
            may_follow = [RoundCompleted, CauseNotFound] if was_uncertain else []
            may_follow += [ContactRegained, NodeLost] if lacked_witness else []
            first = next((fact for fact in added if fact not in BEFORE_A_ROUND_ENDS), None)
            assert first in may_follow or not added, event

    @rule(place=places, after_round=st.integers(1, 3))
    def a_join_claims_a_past(self, place: int, after_round: int) -> None:
        name = self._who(place)
        known = self.run_.agents.get(name)
        join = known.join if known else a_join(name)
        kept = {"node_rank": join.node_rank, "sort_key": join.sort_key}
        claim = a_join(name, node=join.node_id, after_round=after_round, **kept)
        self._join(NodeJoined(claim, SERVER_ADDR))

    @rule(
        place=places,
        delay=delays,
        exit_code=exit_codes,
        is_consequence=st.booleans(),
        verdict=verdicts,
        recurs=st.sampled_from(["unknown", "unknown", "at_start", "at_step"]),
    )
    def workers_fail(
        self,
        place: int,
        delay: int,
        exit_code: int,
        is_consequence: bool,
        verdict: str = "count",
        recurs: str = "unknown",
    ) -> None:
        name = self._who(place)
        round_ = self._round(name, delay)
        failure = a_failure(
            name,
            exit_code=exit_code,
            consequence=is_consequence,
            verdict=verdict,
            recurs=recurs,
        )
        self._fail(name, round_, failure)

    def _fail(self, name: str, round_: int, failure: Failure) -> None:
        if agent := self.run_.agents.get(name):
            seat = self.run_.seat_of(name)
            failure = replace(failure, node_id=agent.node_id, rank=seat.ranks[0] if seat else 0)
        known = failure.exit_code, failure.consequence
        more = {"verdict": failure.verdict, "recurs": failure.recurs}
        if agent := self.run_.agents.get(name):  # it reports its own workers
            seat = self.run_.seat_of(name)
            failure = replace(failure, node_id=agent.node_id, rank=seat.first_rank if seat else 0)
        self._both(
            WorkersFailed(name, round_, failure), lambda: self.model.fail(name, round_, *known, self.now, **more)
        )

    @precondition(lambda self: self.run_.running)
    @rule(steps=st.lists(st.sampled_from([7, 8]), min_size=1, max_size=3))
    def rounds_fail_at_a_step_by_an_error_that_recurs_there(self, steps: list[int]) -> None:
        for step in steps:
            if not self.run_.running:
                return
            name = next(iter(self.run_.running))
            self.told_steps.add(step)
            told = Progress(round=self.run_.round, highest_step=step, step_s=1.0)
            self._both(LeaseRenewed(name, told), lambda name=name: self.model.hear(name, self.now))
            self._fail(name, self.run_.round, a_failure(name, recurs="at_step"))
            self.everybody_rejoins()

    @rule(place=places, delay=delays)
    def workers_succeed(self, place: int, delay: int) -> None:
        name = self._who(place)
        round_ = self._round(name, delay)
        self._both(WorkersSucceeded(name, round_), lambda: self.model.succeed(name, round_, self.now))

    @precondition(lambda self: self.run_.stage is Stage.RUNNING)
    @rule(
        place=places, delay=delays, source=st.sampled_from(["silence", "progress", "timer"]), is_back=st.booleans(),
        is_untold=st.booleans(),
    )  # fmt: skip
    def workers_seem_to_hang(self, place: int, delay: int, source: str, is_back: bool, is_untold: bool) -> None:
        self._suspect(self._who(place), delay, source, is_back, is_untold=is_untold)

    @precondition(lambda self: self.run_.running)
    @rule(source=st.sampled_from(["silence", "progress"]), spared=st.integers(0, 2))
    def workers_of_most_nodes_seem_to_hang(self, source: str, spared: int) -> None:
        for name in list(self.run_.running)[spared:]:
            self._suspect(name, 0, source, False)

    @precondition(lambda self: len(self.run_.running) > 1)
    @rule(
        source=st.sampled_from(["silence", "progress"]), suspect_finishes=st.booleans(), leaves=st.booleans(),
        retracts=st.booleans(),
    )  # fmt: skip
    def workers_seem_to_hang_while_others_finish(
        self, source: str, suspect_finishes: bool, leaves: bool, retracts: bool
    ) -> None:
        """A node that has finished does not hang, and its silence does not contradict the silence of those that do."""
        first, *others = list(self.run_.running)
        for name in [first] if suspect_finishes else others:
            self._suspect(name, 0, source, False)
        round_ = self.run_.round
        if first in self.run_.running:
            self._both(WorkersSucceeded(first, round_), lambda: self.model.succeed(first, round_, self.now))
            if leaves:
                self._leave(first, retracts)
        if not self.run_.stage.is_end:
            self.the_next_deadline_comes()

    def _suspect(self, name: str, delay: int, source: str, is_back: bool, *, is_untold: bool = False) -> None:
        round_, seat = self._round(name, delay), self._seats().get(name)
        ranks = () if is_back or seat is None else (seat.first_rank,)
        self._both(
            HangSuspected(name, round_, source, "stuck", ranks, is_untold=is_untold),
            lambda: self.model.suspect(name, round_, source, not ranks, self.now, is_untold=is_untold),
        )

    def _leave(self, name: str, retracts: bool, is_unfit: bool = False) -> None:
        left = NodeLeft(name, "SIGTERM", unfit=is_unfit, retracts_success=retracts)
        self._both(left, lambda: self.model.leave(name, self.now, retracts_success=retracts, is_unfit=is_unfit))

    @rule(
        place=places,
        how=st.sampled_from(
            ["leaves", "retracts", "is unfit", "disconnects", "blinks", "blinks", "is heard", "is heard"]
        ),
    )
    def an_agent(self, place: int, how: str) -> None:
        name = self._who(place)
        if how in ("leaves", "retracts", "is unfit"):
            self._leave(name, how == "retracts", how == "is unfit")
        if how in ("disconnects", "blinks"):
            self._both(AgentDisconnected(name), lambda: self.model.disconnect(name, self.now))
        if how in ("blinks", "is heard"):
            self._hear(name)

    @rule(place=places, exit_code=exit_codes, disconnect_first=st.booleans(), is_consequence=st.booleans())
    def a_failure_and_a_disconnect_elsewhere(
        self, place: int, exit_code: int, disconnect_first: bool, is_consequence: bool
    ) -> None:
        for disconnects in (disconnect_first, not disconnect_first):
            if disconnects:
                self.an_agent(place + 1, "disconnects")
            else:
                self.workers_fail(place, 0, exit_code, is_consequence)

    @precondition(lambda self: self.run_.stage is Stage.RUNNING)
    @rule(place=places, then=st.sampled_from(["its cause", "a departure", "a success", "time", "time"]))
    def a_consequence_is_reported(self, place: int, then: str) -> None:
        """A consequence waits for its cause in a run without restarts left."""
        self.workers_fail(place, 0, 1, True)
        if then == "its cause":
            self.workers_fail(place + 1, 0, 1, False)
        elif then == "a departure":
            self.an_agent(place + 1, "leaves")
        elif then == "a success":
            self.workers_succeed(place + 1, 0)
        elif not self.run_.stage.is_end:
            self.the_next_deadline_comes()

    @rule(kind=st.sampled_from([RunRestarted, ArrivalsAdmitted]), really=st.booleans())
    def an_operator_acts_on_the_run(self, kind: type[RunRestarted | ArrivalsAdmitted], really: bool) -> None:
        if really:
            request = self._request()
            name = "restart" if kind is RunRestarted else "admit"
            self._both(kind("why", "me", request), lambda: self.model.operate(request, name, self.now))

    @rule(low=st.integers(1, 3), more=st.integers(0, 2), really=st.booleans())
    def an_operator_resizes_the_run(self, low: int, more: int, really: bool) -> None:
        if really:
            request, high = self._request(), low + more
            self._both(
                RunResized("why", "me", request, min_nodes=low, max_nodes=high),
                lambda: self.model.operate(request, "resize", self.now, low, high),
            )

    @rule(kind=st.sampled_from([NodeCordoned, NodeUncordoned, NodeUncordoned, NodeDrained]), place=places)
    def an_operator_acts_on_a_node(self, kind: type[NodeOperation], place: int) -> None:
        agent = self.run_.agents.get(self._who(place))
        node, request = agent.node_id if agent else NODES[0], self._request()
        if kind is NodeUncordoned and self.run_.cordons:
            node = min(self.run_.cordons)
        more = {"deadline_s": rules.DRAIN_S} if kind is NodeDrained else {}
        name = {NodeCordoned: "cordon", NodeUncordoned: "uncordon", NodeDrained: "drain"}[kind]
        self._both(
            kind("why", "me", request, node_id=node, **more),
            lambda: self.model.operate(request, name, self.now, node),
        )

    @rule(rank=st.integers(0, 5), within_s=st.sampled_from([0.5, 5.0, 60.0]))
    def an_operator_asks_for_a_log(self, rank: int, within_s: float) -> None:
        self.questions += 1
        token, refusal = str(self.questions), self._refuses_question(rank)

        def model() -> None:
            if refusal:
                raise Refused(refusal)
            self.open_questions.add(token)

        self._both(LogAsked(token, rank, "stderr", 10, None, within_s), model)

    @rule(place=places, notice_s=st.sampled_from([0.0, 2.0, 30.0]))
    def an_agent_announces_that_it_leaves(self, place: int, notice_s: float) -> None:
        name = self._who(place)
        leave = LeaveAnnounced(name, "SIGTERM", notice_s, notice_s + 5.0)
        self._both(leave, lambda: self.model.announce(name, notice_s, self.now))

    @precondition(lambda self: self._open_notices())
    @rule(data=st.data(), acknowledged=st.integers(0, 1), all_answer=st.booleans())
    def workers_acknowledge_a_notice(self, data: st.DataObject, acknowledged: int, all_answer: bool) -> None:
        asked = self._open_notices()
        for name in sorted(asked) if all_answer else [data.draw(st.sampled_from(sorted(asked)))]:
            if name in self._open_notices():
                answer = QueryAnswered(name, asked[name], Noticed(listening=1, acknowledged=acknowledged))
                self._both(answer, lambda name=name: self.model.answer_notice(name, self.now))

    def _open_notices(self) -> dict[str, int]:
        asked = self.run_.queries.by_agent
        notices = ((name, query) for name in asked for query in self.run_.queries.of(name, self.now))
        return {name: query.number for name, query in notices if isinstance(query, Notice)}

    def _open_logs(self, name: str) -> list[int]:
        return [query.number for query in self.run_.queries.of(name, self.now) if isinstance(query, TailLog)]

    def _refuses_question(self, rank: int) -> str:
        if self.run_.stage.is_end:
            return "run_ended"
        owners = [n for n, seat in self._seats().items() if 0 <= rank - seat.first_rank < seat.local_world_size]
        if not owners:
            return "unknown_rank"
        if owners[0] not in self.run_.agents:
            return "query_refused"
        return "too_many_requests" if len(self._open_logs(owners[0])) == MOST_OPEN else ""

    @precondition(lambda self: any(map(self._open_logs, self.run_.queries.by_agent)))
    @rule(data=st.data(), is_known=st.sampled_from([True, True, True, False]))
    def an_agent_answers(self, data: st.DataObject, is_known: bool) -> None:
        """An answer ends its query. One that arrives again or late has no effect."""
        agent_id = data.draw(st.sampled_from(sorted(filter(self._open_logs, self.run_.queries.by_agent))))
        number = data.draw(st.sampled_from(self._open_logs(agent_id)))
        answer = QueryAnswered(agent_id, number + (not is_known) * 10**9, QueryRefusal(reason="no"))
        asked = len(self.open_questions)
        self._both(answer, lambda: None)
        self._both(answer, lambda: None)
        assert len(self.open_questions) == asked - is_known

    def _request(self) -> str:
        self.requests += 1
        return str(self.requests)

    @rule(seconds=steps, silent=st.booleans())
    def time_passes(self, seconds: float, silent: bool) -> None:
        """Time passes. Usually the connected agents are heard."""
        for name in list(self.run_.agents):
            if not silent and name not in self.run_.leases.absent_since:
                self._hear(name)
        self.now += seconds
        self._both(TimePassed(), lambda: self.model.pass_time(self.now))

    @rule(place=places, turns=st.integers(1, 3), is_cut=st.booleans())
    def an_agent_falls_silent(self, place: int, turns: int, is_cut: bool) -> None:
        """Only the other agents are heard for a while. `is_cut`: whether its connection closes."""
        silent = self._who(place)
        if is_cut:
            self.an_agent(place, "disconnects")
        for _ in range(turns):
            for name in list(self.run_.agents):
                if name != silent and name not in self.run_.leases.absent_since:
                    self._hear(name)
            self.now += 9.0
            self._both(TimePassed(), lambda: self.model.pass_time(self.now))

    @rule(ahead_s=st.sampled_from([-3_600.0, -0.3, 0.3, 3_600.0]))
    def somebody_sets_the_servers_wall_clock(self, ahead_s: float) -> None:
        self.wall_ahead_s += ahead_s
        self._set_wall_clock()

    def _set_wall_clock(self) -> None:
        effects = self.machine.set_wall_clock(self.now + self.wall_ahead_s, self.now)
        self.records += [effect for effect in effects if isinstance(effect, Record)]

    @precondition(lambda self: not self.run_.stage.is_end)
    @rule()
    def the_next_deadline_comes(self) -> None:
        if (at := self.machine.next_deadline()) is not None:
            self.now = at
            before = snapshot(self.run_)
            self._both(TimePassed(), lambda: self.model.pass_time(self.now))
            assert snapshot(self.run_) != before, "a deadline without consequence"

    @precondition(lambda self: not self.run_.stage.is_end)
    @rule()
    def the_records_become_a_snapshot(self) -> None:
        """Replace the run, from here on, by the run that its snapshot restores."""
        packed = [pack(Record("run", 1, self.now, kept)) for kept in take(self.run_)]
        self.records = [unpack("run", 1, self.now, *parts) for parts in packed]
        machine = RunMachine(self.created, 0.0, RETENTION_S, self.policies)
        for record in self.records:
            machine.replay(record.fact, record.at)
        unordered = {
            "agents",
            "node_ids",
            "node_ranks",
            "leases",
            "queries",
            "notice",
            "cause_sought",
            "progress",
            "pace",
            "signs",
            "held",
            "leave_times",
        }
        assert _without(snapshot(machine.run), unordered) == _without(snapshot(self.run_), unordered)
        assert machine.run.agents == self.run_.agents
        machine.run.leases, machine.run.queries = self.run_.leases, self.run_.queries  # these are not recorded
        machine.run.notice, machine.run.cause_sought = self.run_.notice, self.run_.cause_sought
        for policy, before in zip(machine.policies, self.machine.policies, strict=True):
            policy.signs = machine.run.signs[policy.name] = before.signs
        self.machine = machine

    @precondition(lambda self: not self.run_.stage.is_end)
    @rule()
    def the_server_restarts(self) -> None:
        self.machine = RunMachine(self.created, 0.0, RETENTION_S, self.policies)
        for record in self.records:
            self.machine.replay(record.fact, record.at)
        if not self.records:  # a server records the creation with the first join, and reports it then
            self.numbers.clear()
        self.machine.restart(self.now)
        self._set_wall_clock()
        self.open_questions.clear()
        self.run_.validate()
        self.model.restart(list(self.run_.agents), self.now)

    @precondition(lambda self: self.run_.stage is Stage.RUNNING)
    @rule(
        place=places,
        step=st.integers(0, 50),
        saved=st.one_of(st.none(), st.integers(0, 50)),
        age_s=st.sampled_from([0.0, 0.5, 40.0]),
        saving_s=st.floats(0.0, 50.0),
    )
    def workers_tell_of_their_progress(
        self, place: int, step: int, saved: int | None, age_s: float, saving_s: float
    ) -> None:
        name = self._who(place)
        steps = {"highest_step": step, "step_s": 1.0, "checkpoint_step": saved}
        self.told_steps |= {step, _number(saved)}
        told = Progress(round=self.run_.round, age_s=age_s, checkpoint_s=saving_s, **steps)
        self._both(LeaseRenewed(name, told), lambda: self.model.hear(name, self.now))

    def _hear(self, name: str) -> None:
        self._both(LeaseRenewed(name), lambda: self.model.hear(name, self.now))

    def _join(self, event: NodeJoined) -> None:
        join = event.join
        self._both(
            event, lambda: self.model.join(join.agent_id, join.node_id, join.node_rank, join.after_round, self.now)
        )
        self.joins.append(event)

    def _who(self, place: int) -> str:
        """Return a living agent if there is one, sometimes another."""
        alive = sorted(self.run_.agents)
        if place >= 9 or not alive:
            return min(self.run_.departed_ids, default="nobody")
        return alive[place % len(alive)]

    def _stopped(self) -> list[str]:
        return [name for name, agent in self.run_.agents.items() if agent.state is AgentState.STOPPING]

    def _round(self, name: str, delay: int) -> int:
        agent = self.run_.agents.get(name)
        return max(0, (agent.round if agent else self.run_.round) - delay)

    def _both(self, event: Event, model) -> None:
        refusal, expected = None, None
        before, recorded = snapshot(self.run_), len(self.records)
        try:
            effects = self.machine.handle(event, self.now)
            self.run_.validate()
            self.records += [effect for effect in effects if isinstance(effect, Record)]
            self.hangs += sum(isinstance(record.fact, HangFound) for record in self.records[recorded:])
            self.open_questions -= {effect.token for effect in effects if isinstance(effect, CloseQuery)}
            self.numbers += [effect.event.number for effect in effects if isinstance(effect, EmitEvent)]
            started = sum(isinstance(effect, EmitEvent) and effect.event.kind == "round_started" for effect in effects)
            self.formations += [self._formation()] if started == 1 and self.run_.stage is Stage.RUNNING else []
            self.limits += [self._size()] * (len(self.formations) - len(self.limits))
        except ProtocolError as error:
            refusal = error.code
        self.model.fall, self.model.trained = self.run_.steps_fall, self.run_.training_round
        self.model.reached = _number(self.run_.highest_step), _number(self.run_.checkpoint_step)
        facts = [record.fact for record in self.records[recorded:]]
        self.model.step = next(
            (fact.step for fact in reversed(facts) if isinstance(fact, ProgressMeasured) and fact.step is not None),
            self.model.step,
        )
        try:
            model()
        except Refused as error:
            expected = str(error)
        assert refusal == expected, event
        self.model.ranks = {name: seat.group_rank for name, seat in self._seats().items()}
        if refusal:
            assert snapshot(self.run_) == before
        else:
            at = self.machine.next_deadline()
            assert at is None or at > self.now or self.run_.stage.is_end
        if isinstance(event, REQUESTS) and len(self.records) > recorded:
            self.taken.append((event, model))
        if len(self.records) == recorded:
            silent = {"leases", "revision", "queries", "notice", "cause_sought", "progress", "pace", "signs", "held"}
            assert _without(snapshot(self.run_), silent) == _without(before, silent), "changed, but not recorded"

    def _seats(self) -> dict[str, Seat]:
        return self.run_.membership.seats if self.run_.membership else {}

    def _size(self) -> tuple[int, int]:
        return self.run_.settings.min_nodes, self.run_.settings.max_nodes

    def _formation(self) -> dict[str, Assignment]:
        directives = {name: self.machine.directive_for(name, self.now)[1] for name in self.run_.agents}
        return {name: said.assignment for name, said in directives.items() if isinstance(said, Start)}


def _without(plain: dict, keys: set[str]) -> dict:
    return {key: value for key, value in plain.items() if key not in keys}
