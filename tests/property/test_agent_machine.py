"""An agent keeps its promises to server, workers and people, in any order of events."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from rdzv_protocol.errors import AgentFenced, NodeRankTaken, OutcomeUnknown, RunSucceeded
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import (
    AnswerRequest,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    Start,
    SuspectRequest,
    Wait,
)
from rdzv_protocol.queries import LogTail, TailLog
from rdzv_protocol.settings import RequestedSettings

from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.core.effects import Ask, CheckNode, Effect, Exit, JudgeFailure, Log, StartWorkers, StopWorkers
from node_agent.kernel.core.events import (
    Answer,
    Answered,
    ConnectionFailed,
    Crashed,
    Event,
    FailureJudged,
    GaveUp,
    NodeChecked,
    Reported,
    Signalled,
    Started,
    Suspected,
    TimePassed,
    WorkerFailed,
    WorkersStopped,
    WorkersSucceeded,
)
from node_agent.kernel.core.machine import ANSWER_S, AgentMachine, Capabilities, State
from tests.unit.node_agent.story import LEASE_S, a_failure, drain, finish, join, start, stop, wait

rounds = st.integers(1, 4)
directives = st.one_of(
    st.sampled_from([wait("waiting for 2 nodes", 9.0), wait("standing by")]),
    st.builds(start, rounds, group_world_size=st.sampled_from([1, 2, 2])),
    rounds.map(stop),
)
ends = st.booleans().map(lambda succeeded: finish(succeeded=succeeded))


WAIT_S = 30.0
FATAL_EXIT_CODE = 42


class AgentStory(RuleBasedStateMachine):
    """Acts as the shell: it answers requests, and knows which workers exist."""

    @initialize(
        checks=st.booleans(),
        notice_s=st.sampled_from([None, 0.0, 8.0]),
        makes_room=st.booleans(),
        judges_failures=st.booleans(),
        exits_with_run=st.booleans(),
        first=st.sampled_from([None, start(1), start(1), start(1, group_world_size=1)]),
    )
    def is_up(
        self,
        checks: bool,
        notice_s: float | None,
        makes_room: bool,
        judges_failures: bool,
        exits_with_run: bool,
        first: Start | None,
    ) -> None:
        """`first`: first answer of the server, None for any."""
        self.machine = AgentMachine(
            join("a", settings=RequestedSettings(fatal_exit_codes=(FATAL_EXIT_CODE,))),
            server="host:1",
            capabilities=Capabilities(checks=checks, judges_failures=judges_failures, notice_s=notice_s),
            connect_timeout_s=WAIT_S,
            exits_when_excluded=makes_room,
            exits_with_run=exits_with_run,
            stop_s=10.0,
        )
        self.judges_failures = judges_failures
        self.judging: JudgeFailure | None = None
        """The failure that is being judged."""
        self.owes_report = False
        """Whether a failure waits for its verdict. Its report is due with any verdict, unless this agent's part is
        over."""
        self.reporting: ReportRequest | None = None
        """Report of a failure that is on its way."""
        self.exits_with_run = exits_with_run
        """Whether its exit code 0 means that the run has succeeded."""
        self.is_alone = self.have_succeeded = self.knows_success = False
        """Whether the last round was only on this node, and whether its workers have all exited 0 by themselves. Also,
        whether the server has reported the run's success."""
        self.makes_room = makes_room
        """Whether it exits when its node is excluded, so that another node can take its place."""
        self.goes_until: float | None = None
        """Deadline of an agent that has announced its leave."""
        self.checks, self.checking, self.is_fit = checks, False, not checks
        """Whether the node is to be checked, is being checked, and was found fit since workers ran on it."""
        self.now = 0.0
        self.revision = 0
        self.asked = 0
        """Number of joins and polls under way."""
        self.workers = 0
        """Round of the present workers, 0 if there are none."""
        self.settled = False
        """Whether these workers have reported their end, or are being stopped."""
        self.started: list[int] = []
        self.ids = {self.machine.agent_id}
        self.exits: list[int] = []
        self.open: list[int] = []
        """Numbers of the server's open queries."""
        self.taken_up: set[int] = set()
        self.answered: set[int] = set()
        self.handle(Started())
        if first and checks:
            self.the_check_is_over("")
        if first:
            self.answer(first, 1)

    # Events.

    @precondition(lambda self: self.asked)
    @rule(directive=directives, step=st.integers(-1, 2))
    def the_server_answers(self, directive, step: int) -> None:
        self.answer(directive, step)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), ahead=st.integers(0, 1))
    def the_server_tells_what_is_due(self, data: st.DataObject, ahead: int) -> None:
        round_ = self.machine.round
        self.answer(stop(round_ + ahead) if self.workers and round_ else start(round_ + 1 + ahead), 1)

    @precondition(lambda self: self.asked)
    @rule(remaining_s=st.sampled_from([0.0, 60.0]), really=st.integers(0, 3))
    def the_node_is_drained(self, remaining_s: float, really: int) -> None:
        if not really:
            self.answer(drain(remaining_s), 1)
            assert self.machine.state in (State.DRAINING, State.ENDING, State.EXITED)

    @precondition(lambda self: self.asked)
    @rule(really=st.integers(0, 3))
    def the_node_is_excluded(self, really: int) -> None:
        """An excluded node waits or exits, but first takes care of its running workers.

        It also waits for the verdict on a failure, which must be reported.
        """
        if really:
            return
        goes_on = self.machine.state not in (State.ENDING, State.EXITED)
        has_workers = bool(self.workers)
        self.answer(Wait(reason="standing by: node a is excluded: why", excluded=True), 1)
        if goes_on and self.makes_room and not has_workers:
            assert self.machine.state is State.EXITED or self.checking or self.judging
            assert not self.exits or self.exits[-1] is ExitCode.NODE_UNFIT
        elif goes_on:
            assert not self.exits or self.goes_until is not None

    @precondition(lambda self: self.asked)
    @rule(end=ends, really=st.integers(0, 2))
    def the_run_ends(self, end, really: int = 0) -> None:
        if really:
            return
        if self.machine.state is not State.ENDING:
            self.owes_report, self.knows_success = False, end.succeeded
        self.answer(end, 1)

    @precondition(lambda self: self.asked)
    @rule(
        error=st.sampled_from([AgentFenced, AgentFenced, RunSucceeded, NodeRankTaken, OutcomeUnknown]),
        really=st.integers(0, 2),
    )
    def the_server_refuses(self, error, really: int = 0) -> None:
        if really:
            return
        self.asked -= 1
        self.revision = 0
        if self.machine.state is not State.ENDING:
            self.judging, self.owes_report, self.reporting = None, False, None
            self.knows_success = error is RunSucceeded
        self.handle(Answered(error("no")))

    @rule(closes=st.booleans())
    def the_server_has_another_query(self, closes: bool) -> None:
        """A new query is in every reply from now on. Earlier ones may be over."""
        self.open = [*([] if closes else self.open[-3:]), max([*self.open, *self.taken_up, 0]) + 1]

    @precondition(lambda self: self.taken_up)
    @rule(data=st.data())
    def a_query_is_answered(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.taken_up)))
        if number not in self.answered:
            self.handle(Answer(number, LogTail(path="/log", text="", offset=0)))

    @precondition(lambda self: self.workers and not self.settled)
    @rule(interrupted=st.sampled_from([False, False, True]))
    def the_workers_succeed(self, interrupted: bool) -> None:
        """Workers succeed, or exit with 0 after they have acknowledged that the round ends."""
        round_, self.workers = self.workers, 0
        self.have_succeeded = not interrupted
        self.handle(WorkersSucceeded(round_, interrupted))

    @precondition(lambda self: self.workers and not self.settled)
    @rule()
    def a_worker_fails(self) -> None:
        self.settled = True
        self.owes_report = self.judges_failures and self.machine.state is State.RUNNING
        self.handle(WorkerFailed(self.workers, a_failure()))

    @precondition(lambda self: self.judging)
    @rule(verdict=st.sampled_from(["count", "retry", "fatal"]))
    def a_failure_has_been_judged(self, verdict: str) -> None:
        """No verdict is lost on a failure that came before other events, nor a fatal one."""
        assert self.judging
        judged, self.judging = self.judging, None
        is_due, self.owes_report = self.owes_report, False
        effects = self.handle(FailureJudged(judged.round, replace(judged.failure, verdict=verdict)))
        told = [each.failure.verdict for each in effects if isinstance(each, ReportRequest) and each.failure]
        assert not is_due or told == [verdict]
        assert told in ([], [verdict])

    @precondition(lambda self: self.reporting)
    @rule()
    def a_report_arrives(self) -> None:
        assert self.reporting
        round_, self.reporting = self.reporting.round, None
        self.handle(Reported(round_))

    @precondition(lambda self: self.workers and self.settled)
    @rule(exit_code=st.sampled_from([1, FATAL_EXIT_CODE]))
    def a_failure_of_before_the_stop_is_heard_of(self, exit_code: int) -> None:
        """A failure with a fatal exit code is reported at once, unless there are rules or another one was reported.

        A fenced agent's workers do not count any more.
        """
        is_heard = self.machine.state in (State.STOPPING, State.DRAINING) and self.machine.agent_id in self.ids
        is_heard = is_heard and not self.judging and not self.reporting
        effects = self.handle(WorkerFailed(self.workers, a_failure(exit_code=exit_code)))
        told = [each for each in effects if isinstance(each, ReportRequest)]
        assert bool(told) == (is_heard and exit_code == FATAL_EXIT_CODE and not self.judges_failures)

    @rule(round_=rounds, is_back=st.booleans())
    def workers_seem_to_hang(self, round_: int, is_back: bool) -> None:
        """The agent reports only suspicions about workers of a continuing round, each once and unchanged."""
        ranks = () if is_back else (0,)
        effects = self.machine.handle(Suspected(round_, "progress", "stuck", ranks, Log("stuck")), self.now)
        told = [(each.round, each.ranks) for each in effects if isinstance(each, SuspectRequest)]
        goes_on = self.machine.state is State.RUNNING and round_ == self.workers and not self.settled
        assert told == [(round_, ranks)] * goes_on

    @precondition(lambda self: self.workers and self.settled)
    @rule()
    def the_last_worker_goes(self) -> None:
        round_, self.workers = self.workers, 0
        self.handle(WorkersStopped(round_))

    @precondition(lambda self: self.checking)
    @rule(unfit=st.sampled_from(["", "", "", "node a is unfit"]))
    def the_check_is_over(self, unfit: str) -> None:
        self.checking, self.is_fit = False, not unfit
        self.handle(NodeChecked(unfit))
        leaves = self.exits or (self.judging and self.machine.state is State.ENDING)  # see `no_exit_is_withheld`
        assert self.is_fit or self.workers or leaves, "an unfit node stays"

    @rule(round_=rounds, kind=st.sampled_from([WorkersSucceeded, WorkersStopped]))
    def an_old_rounds_workers_are_heard_of(self, round_: int, kind) -> None:
        if round_ < self.machine.round:
            self.handle(kind(round_))

    @rule(name=st.sampled_from(["SIGTERM", "SIGINT"]), really=st.integers(0, 5))
    def a_signal_comes(self, name: str, really: int) -> None:
        if not really:
            self.handle(Signalled(name))

    @precondition(lambda self: self.asked and not self.workers and not self.started)
    @rule(really=st.integers(0, 3))
    def the_server_is_given_up(self, really: int) -> None:
        if not really:
            self.asked -= 1
            self.owes_report = False
            self.handle(GaveUp("no server"))

    @precondition(lambda self: self.asked)
    @rule(really=st.integers(0, 2))
    def the_server_is_out_of_reach(self, really: int) -> None:
        if not really:
            self.handle(ConnectionFailed(Unreachable("connect", "refused")))

    @precondition(lambda self: self.asked and self.machine.state is State.RUNNING and not self.settled)
    @rule(signal_comes=st.booleans())
    def the_server_is_gone_when_the_workers_have_succeeded(self, signal_comes: bool) -> None:
        """A signal, or the end of the agent's patience, decides before the run's outcome is known."""
        self.the_workers_succeed(interrupted=False)
        self.handle(ConnectionFailed(Unreachable("connect", "refused")))
        self.now += WAIT_S
        self.handle(Signalled("SIGTERM") if signal_comes else TimePassed())
        assert self.exits

    @rule(really=st.integers(0, 9))
    def something_unexpected_happens(self, really: int) -> None:
        if not really:
            self.owes_report = False
            self.handle(Crashed("internal error: ValueError: boom"))

    @rule(seconds=st.floats(0.0, LEASE_S))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.handle(TimePassed())
        at = self.machine.next_deadline()
        assert at is None or at > self.now, "a deadline that handling it does not move"

    @precondition(lambda self: self.machine.next_deadline() is not None)
    @rule()
    def the_next_deadline_comes(self) -> None:
        self.now = max(self.now, self.machine.next_deadline())
        self.handle(TimePassed())
        at = self.machine.next_deadline()
        assert at is None or at > self.now, "a deadline that handling it does not move"

    # Promises that every step must keep.

    def answer(self, directive, step: int) -> None:
        self.asked -= 1
        revision = max(0, self.revision + step)
        self.revision = max(revision, self.revision)
        queries = tuple(
            TailLog(number=number, round=1, remaining_s=5.0, rank=0, stream="stderr", lines=9) for number in self.open
        )
        reply = Reply(epoch="e", revision=revision, lease_s=LEASE_S, directive=directive, queries=queries)
        self.handle(Answered(reply))

    def handle(self, event: Event) -> list[Effect]:
        ended = bool(self.exits)
        effects = self.machine.handle(event, self.now)
        assert not ended or effects == [], "something happened after the exit"
        for effect in effects:
            self.check(effect)
        return effects

    def check(self, effect: Effect) -> None:
        match effect:
            case JoinRequest(agent_id=agent_id, unfit=unfit) if unfit:
                assert agent_id == self.machine.agent_id
                assert not self.is_fit and not self.started, "told a server to which it is new that a fit node is not"
            case JoinRequest(agent_id=agent_id, after_round=after_round):
                assert self.goes_until is None, "joined though it has announced that it leaves"
                self.ask(agent_id)
                assert not self.workers, "joined beside workers of the round before"
                assert not self.judging and not self.reporting, "a join overtakes the report of a failure"
                assert self.is_fit, "joined without a check"
                assert after_round >= max(self.started, default=0), "joined after a round that is not its last"
            case PollRequest(agent_id=agent_id, hold=hold, asked=asked):
                assert set(asked) <= self.taken_up, "says that it knows of a query that it has not taken up"
                keeps_alive = self.workers or self.checking or self.judging or self.reporting
                assert hold or keeps_alive, "a short poll though a join could be sent"
                self.ask(agent_id)
            case StartWorkers(assignment):
                assert not self.workers, "started workers beside others"
                assert assignment.round not in self.started, "started a round twice"
                self.workers, self.settled, self.is_fit = assignment.round, False, not self.checks
                self.started.append(assignment.round)
                self.is_alone, self.have_succeeded = assignment.group_world_size == 1, False
            case CheckNode():
                assert not self.workers and not self.checking, "checked beside workers, or twice at once"
                self.checking = True
            case StopWorkers():
                assert self.workers, "stopped workers that are not there"
                self.settled = True
            case JudgeFailure(round_):
                assert round_ == self.started[-1] and not self.judging
                self.judging = effect
            case ReportRequest(agent_id=agent_id, round=round_):
                assert round_ == self.started[-1]
                assert agent_id == self.machine.agent_id
                assert agent_id in self.ids, "an agent that the server does not know yet reports"
                self.reporting = effect if effect.failure else self.reporting
            case Ask(query):
                assert query.number not in self.taken_up, "took a query up twice"
                self.taken_up.add(query.number)
            case AnswerRequest(agent_id=agent_id, number=number):
                assert agent_id == self.machine.agent_id
                assert number in self.taken_up - self.answered, "answered what it was not asked, or twice"
                self.answered.add(number)
            case LeaveRequest(agent_id=agent_id, notice_s=notice_s):
                assert agent_id == self.machine.agent_id
                if notice_s is not None:
                    assert self.goes_until is None and self.workers, "announced its leave twice, or without workers"
                    self.goes_until = self.now + notice_s + ANSWER_S
            case Exit(code):
                assert not self.workers, "exited beside workers"
                is_enough = self.have_succeeded and (self.is_alone or not self.exits_with_run)
                assert code or self.knows_success or is_enough, "exited 0 without a success that counts"
                self.exits.append(code)

    def ask(self, agent_id: str) -> None:
        self.asked += 1
        assert agent_id == self.machine.agent_id
        if agent_id not in self.ids:
            self.ids.add(agent_id)
            self.started = []  # another run, as far as this agent knows
            self.open, self.taken_up, self.answered = [], set(), set()

    # Invariants.

    @invariant()
    def at_most_one_request_is_under_way(self) -> None:
        assert self.asked <= 1

    @invariant()
    def it_exits_at_most_once(self) -> None:
        assert len(self.exits) <= 1
        assert bool(self.exits) == (self.machine.state is State.EXITED)

    @invariant()
    def it_is_never_silent_for_good(self) -> None:
        """A request is under way or due, or workers are about to end, or it is over."""
        due = self.machine.next_deadline() is not None
        awaits = self.checking or self.judging or self.reporting or (self.workers and self.settled)
        assert self.asked or due or self.exits or awaits

    @invariant()
    def who_has_announced_that_it_leaves_does(self) -> None:
        if self.goes_until is not None and self.now > self.goes_until:
            assert self.settled or not self.workers, "continues with its workers beyond the time that it has"

    @invariant()
    def no_exit_is_withheld(self) -> None:
        assert self.machine.state is not State.ENDING or self.workers or self.checking or self.judging


TestAgentStory = pytest.mark.timeout(600)(AgentStory.TestCase)
