"""The agent's state machine: `handle(event, now)` returns the effects, `next_deadline()` when to send `TimePassed`.

    JOINING --Start--> RUNNING --all exited 0--> SUCCEEDED
       ^                  |                          |
       +--no worker left--+--Stop, failure, fenced---+     (STOPPING)
    any --Drain--> DRAINING --no worker left--> exit
    any --Finish, refusal, signal--> ENDING --no worker left--> exit

While its workers stop, the agent sends short polls that the server does not hold. So the connection is free for the
join as soon as the last worker has ended. A drained agent continues to poll, so that people see that its node still has
workers. It leaves when they have ended.

If the node is to be checked, the check runs before the first join, and again after workers have ended. During the check
the agent continues to poll. It joins if the node is fit and leaves if the node is unfit. The result of a check holds
until workers run again.

A join or a leave waits for the report of a failure, which may take some time (`failure_reporter`). How long the agent
continues without the server depends on its workers (`server_outages`). When it stops waiting, its exit code follows
from the workers' result.
"""

from enum import Enum
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace
from rdzv_protocol.errors import AgentFenced, OutcomeUnknown, ProtocolError, RunFailed, RunSucceeded
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.flag_values import address
from rdzv_protocol.messages import (
    AnswerRequest,
    Assignment,
    Drain,
    Failure,
    Finish,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    RunningTime,
    RunTime,
    Start,
    Stop,
    SuspectRequest,
    Wait,
)
from rdzv_protocol.queries import Query, QueryAnswer
from rdzv_protocol.text import clip
from rdzv_protocol.timing import HOLDS_PER_LEASE, answer_timeout_s, hold_s

from node_agent import words
from node_agent.kernel.core import events
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.core.effects import (
    WAITING,
    Ask,
    CheckNode,
    Effect,
    Exit,
    Level,
    Log,
    StartWorkers,
    StopWorkers,
    WriteFailureReport,
)
from node_agent.kernel.core.failure_reporter import FailureReporter
from node_agent.kernel.core.server_outages import QUIET_S, ServerOutages, stage_of

LONGEST_REASON = 500
"""Most characters of an agent's reason to leave."""
CAUSE_TIMEOUT_S = 0.5
"""Seconds in which the cause of a worker's end may still become known. This is another worker's end, or a signal that a
scheduler sends to every process of a node."""
NOT_STARTED = 127
"""Exit code of a worker that could not be started, as in a shell."""
SOONER_S = 1.0
"""Seconds by which a second drain's deadline must be earlier than the first one's to have an effect."""
LATE_S = 1.0
"""Seconds beyond a poll's longest silence after which this process certainly did not run for some time."""
ANSWER_S = 1.0
"""Seconds after a notice's deadline in which the server answers that this agent may leave. Then it leaves anyway."""
_END = {True: (Level.ROUTINE, "run_succeeded"), False: (Level.ERROR, "run_failed")}


class State(Enum):
    JOINING = "joining"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    STOPPING = "stopping"
    DRAINING = "draining"
    ENDING = "ending"
    EXITED = "exited"


class Capabilities(Struct, frozen=True, kw_only=True):
    """What the features of one agent do beside its machine."""

    hosts_store: bool = False
    """Whether a feature can host the workers' store."""
    queries: tuple[type[Query], ...] = ()
    """Kinds of the server's queries that features answer."""
    checks: bool = False
    """Whether a feature checks whether the node is fit."""
    judges_failures: bool = False
    """Whether a feature judges failures before they are reported."""
    notice_s: float | None = None
    """Seconds that a leaving agent waits until the workers of all nodes have saved; None for no wait."""


class AgentMachine:
    """State machine of one agent.

    `join`: the agent's request. Its `agent_id` is unique among all agent processes; a fenced agent returns under a new
    one. `server`: the server's name for people. `exits_when_excluded`: whether the agent exits instead of waiting if
    its node is excluded, so that another node can take its place. `exits_with_run`: whether the agent exits 0 only if
    it knows that the run has succeeded.
    """

    def __init__(
        self,
        join: JoinRequest,
        *,
        server: str,
        capabilities: Capabilities = Capabilities(),
        connect_timeout_s: float = inf,
        server_lost_timeout_s: float = inf,
        exits_when_excluded: bool = False,
        exits_with_run: bool = False,
        stop_s: float = inf,
    ) -> None:
        """`stop_s`: seconds within which the workers of a leaving agent must have ended, if it waits for others."""
        self.state = State.JOINING
        self.round = 0
        """Round of the workers that were started last, 0 if there was none."""
        self._join = join
        self._server = server
        self.outages = ServerOutages(
            server, connect_timeout_s=connect_timeout_s, server_lost_timeout_s=server_lost_timeout_s
        )
        self._notice_s, self._stop_s = capabilities.notice_s, stop_s
        self._leaving: events.Signalled | None = None
        """The signal because of which this agent leaves, once all workers have saved."""
        self._has_heard_signal = False
        """Whether a signal has come, not only another request to leave."""
        self._leaves_at = self._stops_at = inf
        """Latest times at which the agent leaves and at which its workers have ended, set with `_leaving`."""
        self._incarnation = 1
        self._after_round = 0
        self._revision = 0
        self._attempt = 0
        """Attempt of the run that this agent takes or took part in, 0 if unknown."""
        self._had_succeeded = False
        """Whether all workers of this node had exited 0 when the agent lost its membership."""
        self._is_alone = False
        """Whether the last round had no other node, so that its workers have done all of the run's work."""
        self._lease_s = 10.0
        self._busy = False
        """Whether a join or a poll is under way."""
        self._may_join = True
        """Whether the server expects a join: this agent is new, was told to stop, or was fenced."""
        self._stop_asked = False
        self._joins_at = inf
        """Time until which the agent waits for the signal that ended one of its workers, infinite if it does not wait.
        """
        self._checks = capabilities.checks
        self._exits_when_excluded = exits_when_excluded
        self._exits_with_run = exits_with_run
        self._is_checking = False
        self._is_checked = not capabilities.checks
        """Whether this node needs no check, or was found fit since workers last ran here."""
        self._has_failed = False
        """Whether a worker of this node has failed since the last check."""
        self._succeeded_at = -inf
        """Time of the last report that the workers succeeded."""
        self._check_at_end = False
        """Whether this node's worker ended the run. If the node is then found unfit, that sets the exit code."""
        self._drains_until = inf
        self._is_unfit = False
        """Whether a test that the server requested has found this node unfit."""
        self._keep_alive_at: float | None = None
        self._exit_code = ExitCode.FAILED
        self._last_reason = ""
        """Reason for waiting that was logged last."""
        self._suspicions = 0
        """Number of suspicions of a hang that this agent has reported or taken back."""
        self.is_member = False
        """Whether the server counts this agent in: it is part of a round or of the next one, or is a spare."""
        self._reporter = FailureReporter(
            self.report,
            judges_failures=capabilities.judges_failures,
            fatal_exit_codes=join.settings.fatal_exit_codes or (),
        )
        self._warning = ""
        """Latest warning from the server."""
        self._asked: frozenset[int] = frozenset()
        """Numbers of the queries that were open in the server's last answer."""
        self._handled_at: float | None = None
        self._paused_until, self._paused_s = -inf, 0.0
        """End and length of the latest time in which this process did not run."""
        self._effects: list[Effect] = []

    @property
    def agent_id(self) -> str:
        return f"{self._join.agent_id}.{self._incarnation}"

    @property
    def identity(self) -> dict[str, str]:
        """The agent's id, and the secret that proves to the server that a request comes from this agent."""
        return {"agent_id": self.agent_id, "secret": self._join.secret}

    @property
    def answer_gap_s(self) -> float:
        """Most seconds between two answers of a healthy server, given how long it holds polls."""
        return hold_s(self._lease_s) + QUIET_S

    @property
    def _has_workers(self) -> bool:
        return self.outages.has_workers

    @property
    def workers_round(self) -> int:
        """Round of the workers, also after their end; 0 if the agent has joined the next round."""
        return 0 if self.state is State.JOINING else self.round

    def report(self, round_: int, failure: Failure | None) -> ReportRequest:
        """Return the report of how the workers of the round have ended."""
        return ReportRequest(**self._sender(), round=round_, failure=failure)

    def next_deadline(self) -> float | None:
        """Return the time of the next `TimePassed`, such as for a keep-alive or the end of the wait for the server."""
        if self.state in (State.ENDING, State.EXITED):
            return None
        keep_alive_at = inf if self._busy or self._keep_alive_at is None else self._keep_alive_at
        due = min(keep_alive_at, self._leaves_at, self._stays_until, self._joins_at, self.outages.next_deadline())
        return None if due == inf else due

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        """Apply an event and return the effects."""
        self._effects = []
        self._note_pause(now)
        if self.state is not State.EXITED:
            self._apply(event, now)
            if now >= self._joins_at:
                self._joins_at = inf
            is_due = now >= min(self._leaves_at, self._stays_until)
            if self._leaving and is_due and self.state is not State.ENDING:
                self._go(self._leaving, now)
            self._proceed(now)
        return self._effects

    def _note_pause(self, now: float) -> None:
        """Detect a time in which this process did not run: no event came, although a poll would have ended sooner."""
        passed_s = 0.0 if self._handled_at is None else now - self._handled_at
        self._handled_at = now
        if self._busy and self.outages.failure is None and passed_s > answer_timeout_s(self._lease_s) + LATE_S:
            self._paused_until, self._paused_s = now, passed_s

    def _apply(self, event: events.Event, now: float) -> None:
        match event:
            case events.Answered(answer):
                self._busy = False
                regained = self.outages.answered(now)
                self._log_outage(regained, "server_reached")
                if isinstance(answer, ProtocolError):
                    self._refused(answer, now)
                else:
                    self._follow(answer, now)
                if regained and self.state is State.SUCCEEDED:  # the server may have restored an older copy
                    self._effects.append(self.report(self.round, None))
            case events.ConnectionFailed(error):
                self._connection_failed(error, now)
            case events.ServerRefused():
                self.outages.refused(now)
            case events.PollCut(cut):
                self._log_outage(self.outages.cut(cut, hold_s(self._lease_s)), "warned")
            case events.WorkersSucceeded(round_, interrupted):
                self._workers_succeeded(round_, interrupted, now)
            case events.WorkerFailed(round_, failure, before_stop):
                self._worker_failed(round_, failure, before_stop=before_stop)
            case events.FailureJudged(round_, failure):
                self._effects += self._reporter.judged(round_, failure)
            case events.Reported(round_):
                self._reporter.arrived(round_)
            case events.WorkersStopped(round_, signal_until):
                self._workers_stopped(round_, signal_until, now)
            case events.NodeChecked(unfit):
                self._checked(unfit, now)
            case events.Suspected():
                self._suspected(event)
            case events.Signalled() as signalled:
                self._signalled(signalled, now)
            case events.GaveUp(reason, exit_code):
                self._effects += self._reporter.forget()
                self._give_up(reason, exit_code, is_server_lost=exit_code is ExitCode.START_AGAIN)
            case events.Answer(number, answer):
                self._answer(number, answer)
            case events.Crashed(reason):
                self._crashed(reason)
            case events.Started():
                self._begin(now)
            case events.TimePassed():
                self._time_passed(now)

    # Exchange with the server.

    def _follow(self, reply: Reply, now: float) -> None:
        self._lease_s = reply.lease_s
        if self.state is State.ENDING or reply.revision < self._revision:
            return
        self._revision, self._attempt = reply.revision, reply.attempt
        if self._keep_alive_at is not None:
            self._keep_alive_at = now + self._lease_s / HOLDS_PER_LEASE
        if reply.warning and reply.warning != self._warning:
            self._warning = reply.warning
            self._log(reply.warning, Level.WARNING, "warned")
        self.is_member = True
        match reply.directive:
            case Wait() as wait:
                self._wait(wait)
            case Start(assignment=assignment):
                self._start(assignment)
            case Stop() as stop:
                self._stop(stop, now)
            case Drain() as drain:
                self._drain(drain, now)
            case Finish() as finish:
                self._finish(finish)
        self._take_queries(reply)

    def _take_queries(self, reply: Reply) -> None:
        """Pass on queries that are new. Each reply holds all open queries."""
        if self.state is not State.ENDING:
            self._effects += [Ask(query) for query in reply.queries if query.number not in self._asked]
            self._asked = frozenset(query.number for query in reply.queries)

    def _answer(self, number: int, answer: QueryAnswer) -> None:
        """Answer a query, if it is still open."""
        if number in self._asked and self.state is not State.ENDING:
            self._effects.append(AnswerRequest(**self._sender(), number=number, answer=answer))

    def _refused(self, error: ProtocolError, now: float) -> None:
        if self.state is State.ENDING:
            return
        self._effects += self._reporter.forget()
        if isinstance(error, AgentFenced):
            self._fenced(str(error), now)
            return
        if isinstance(error, OutcomeUnknown) and self._had_succeeded:
            self._log_change(words.leaving.outcome_unknown(str(error)), Level.WARNING, "refused")
            self._end_unknown(ExitCode.REFUSED)
            return
        if isinstance(error, RunSucceeded | RunFailed):
            succeeded = isinstance(error, RunSucceeded)
            self._log_change(str(error), *_END[succeeded])
            self._end(ExitCode.SUCCEEDED if succeeded else ExitCode.FAILED)
        else:
            self._log_change(words.leaving.error(str(error)), Level.ERROR, "refused")
            self._end(ExitCode.REFUSED)
        if not isinstance(error, RunSucceeded):
            self._effects.append(WriteFailureReport(f"{type(error).__name__}: {error}"))

    def _proceed(self, now: float) -> None:
        """Do what the state requires: exit, become ready for the next round, or send the next message."""
        if self.state is State.ENDING:
            if (
                not self._has_workers
                and not self._reporter.is_judging
                and (not self._check_at_end or self._ensure_fit())
            ):
                self.state = State.EXITED
                self._effects.append(Exit(self._exit_code))
            return
        goes = self.state is State.DRAINING or (self._leaving and self.state is State.STOPPING)
        if goes and not self._has_workers:
            why = words.leaving.reason_to_leave("found unfit" if self._is_unfit else "drained")
            self._leave(self._leaving.why if self._leaving else why)
            self._end(ExitCode.NODE_UNFIT if self._is_unfit else ExitCode.START_AGAIN)
            self._proceed(now)
            return
        is_stopped = self.state is State.STOPPING and not self._has_workers and self._ensure_fit()
        if is_stopped and self._may_join and not self._reporter.is_pending and self._joins_at == inf:
            self.state, self._keep_alive_at = State.JOINING, None
        if not self._busy:
            self._send_next(now)

    def _send_next(self, now: float) -> None:
        if not self._may_join:
            self._poll(hold=True)
        elif self.state is State.JOINING and self._ensure_fit():
            self._may_join, self._busy = False, True
            returning = self._incarnation > 1
            place = {"after_round": self._after_round, "attempt": self._attempt if returning else 0}
            self._effects.append(replace(self._join, agent_id=self.agent_id, returning=returning, **place))
        elif self._keep_alive_at is not None and now >= self._keep_alive_at:
            self._poll(hold=False)

    def _poll(self, *, hold: bool) -> None:
        self._busy = True
        asked = tuple(sorted(self._asked))
        self._effects.append(PollRequest(**self._sender(), revision=self._revision, hold=hold, asked=asked))

    def _leave(self, reason: str, *, unfit: bool = False, retracts_success: bool = False) -> None:
        if self.outages.was_never_reached:
            return
        request = LeaveRequest(**self._sender(), reason=reason, unfit=unfit, retracts_success=retracts_success)
        self._effects += self._reporter.leave(request)

    def _sender(self) -> dict[str, Any]:
        return {"run_id": self._join.run_id, **self.identity}

    # Checks of the node.

    def _ensure_fit(self) -> bool:
        """Start a check of this node, unless it was checked or one is running. Return whether it was found fit."""
        if not self._is_checked and not self._is_checking:
            self._is_checking = True
            self._effects.append(CheckNode(self._has_failed))
        return self._is_checked

    def _checked(self, unfit: str, now: float) -> None:
        self._is_checking, self._is_checked, self._has_failed = False, True, False
        if not unfit:
            self._begin(now)
        elif self.state is State.ENDING:
            if self._check_at_end:
                self._log(words.leaving.error(unfit), Level.ERROR, "node_unfit")
                self._exit_code = ExitCode.NODE_UNFIT
        elif self.state is not State.DRAINING:
            evidence = clip(unfit, LONGEST_REASON)
            if not self.outages.is_known:
                self._effects.append(replace(self._join, agent_id=self.agent_id, unfit=evidence))
            # needed also by a server that does not know unfit joins and has accepted this one
            self._leave(evidence, unfit=True)
            self._give_up(unfit, ExitCode.NODE_UNFIT)

    # Connection to the server.

    def _begin(self, now: float) -> None:
        """Begin to wait for the server's first answer, unless the node must be checked first."""
        if self._is_checked:
            self.outages.expect_first_answer(now)

    def _connection_failed(self, error: Unreachable | ProtocolError, now: float) -> None:
        if self.state is State.ENDING:
            return
        if isinstance(error, Unreachable) and error.is_final and not self.outages.is_known:
            text = words.connection.server_unusable(self._server, str(error), stage_of(error))
            self._give_up(text, ExitCode.REFUSED, is_server_lost=True)
            return
        message = self.outages.failed(error, now)
        if now < self.outages.gives_up_at:
            self._log_outage(message)
        else:
            self._give_up(self.outages.reason_to_give_up, ExitCode.START_AGAIN, is_server_lost=True)

    def _time_passed(self, now: float) -> None:
        if self.state is State.ENDING:
            return
        self._log_outage(self.outages.unanswered(now))
        if now >= self.outages.gives_up_at:
            self._give_up(self.outages.reason_to_give_up, ExitCode.START_AGAIN, is_server_lost=True)

    def _log_outage(self, text: str, event: str = "server_lost") -> None:
        if text and self.state is not State.ENDING:
            self._log(text, Level.WARNING, event)

    # Directives of the server.

    def _start(self, assignment: Assignment) -> None:
        if self.state is not State.JOINING or self._may_join or assignment.round <= self._after_round:
            return
        self.outages.workers_started()
        self.state, self._is_checked = State.RUNNING, not self._checks
        self.round = self._after_round = assignment.round
        self._is_alone = assignment.group_world_size == 1
        self._log_change(_started(assignment), Level.ROUTINE, "round_started")
        self._effects.append(StartWorkers(assignment))

    def _stop(self, stop: Stop, now: float) -> None:
        round_, reason = stop.round, stop.reason
        if round_ > self._after_round and self.state is State.JOINING:
            self._log_change(words.progress.round_over(round_, reason), event="round_opened")
            self._after_round, self._may_join = round_, True
            return
        if round_ != self._after_round or self._may_join or self.state in (State.JOINING, State.DRAINING):
            return
        why = "" if reason == self._reporter.logged else reason
        self._log_change(words.progress.stopping_workers(round_, why), event="round_opened")
        self._stop_workers(seeks_cause=stop.seeks_cause)
        self.state, self._may_join = State.STOPPING, True
        self._keep_alive_at = now  # report at once that the stop has arrived

    def _drain(self, drain: Drain, now: float) -> None:
        """Drain this node. A further drain has an effect only if its deadline is earlier."""
        until, is_first = now + drain.remaining_s, self.state is not State.DRAINING
        if not is_first and until > self._drains_until - SOONER_S:
            return
        if drain.unfit:
            self._is_unfit = True
            self._log(words.leaving.error(drain.reason), Level.ERROR, "node_unfit")
        else:
            message = words.leaving.drained(drain.reason, drain.remaining_s, self._has_workers)
            self._log_change(message, event="node_drained")
        if self._has_workers and not (is_first and self._stop_asked):
            self._stop_asked = True
            name = self._leaving.name if self._leaving else "SIGTERM"
            self._effects.append(StopWorkers(name, grace_s=drain.remaining_s))
        if is_first:
            reason = _left_by(self._leaving) if self._leaving else drain.reason
            self._effects.append(WriteFailureReport(reason))
        self.state, self._may_join, self._keep_alive_at = State.DRAINING, False, None
        self._drains_until, self._leaves_at = until, inf

    def _finish(self, finish: Finish) -> None:
        self._effects += self._reporter.forget()
        spent = finish.time or finish.running_time
        if spent and finish.restart_total:
            self._log_change(_time_spent(spent), Level.ROUTINE)
        if finish.restart_costs:
            self._log_change(finish.restart_costs.sentence, Level.ROUTINE)
        self._log_change(_finished(finish), *_END[finish.succeeded])
        self._end(ExitCode.SUCCEEDED if finish.succeeded else self._failed_code(finish))
        is_undecided = self._exit_code in (ExitCode.FAILED, ExitCode.NO_PROGRESS)
        self._check_at_end = is_undecided and self._is_own(finish.failure)
        if not finish.succeeded:
            self._effects.append(WriteFailureReport(finish.reason, finish))

    def _fenced(self, reason: str, now: float) -> None:
        if self._leaving:
            self._go(self._leaving, now)
        elif self.state is State.DRAINING:
            self._may_join = True  # nothing is left to poll for; it exits when its workers have ended
        elif self.state is State.SUCCEEDED and self._is_alone:
            self._log_change(words.leaving.run_done(reason), Level.WARNING, "fenced")
            self._end(ExitCode.SUCCEEDED)
        else:
            has_slept = now - self._paused_until < self._paused_s
            self._rejoin(words.leaving.rejoining(reason, self._paused_s if has_slept else 0.0))

    def _rejoin(self, reason: str) -> None:
        """Stop the workers and join under a new id, since this agent is no longer a member of the run."""
        self._log_change(reason, event="fenced")
        self._had_succeeded = self.state is State.SUCCEEDED or (self._had_succeeded and self.state is State.JOINING)
        self._stop_workers()
        self.state, self._may_join, self._keep_alive_at = State.STOPPING, True, None
        self.is_member = False
        self._incarnation += 1
        self._after_round = self._revision = 0
        self._asked = frozenset()

    # Events of the workers.

    def _workers_succeeded(self, round_: int, interrupted: bool, now: float) -> None:
        if round_ != self.round or self.state is not State.RUNNING:
            return
        self.outages.workers_ended(now)
        # The workers have saved and ended as they were told, so the round is about to end. The same is assumed if a
        # signal told the agent to leave, because Slurm sends it to the workers too. It does not count as success.
        if interrupted or (self._leaving and not self._leaving.reason):
            self._log_change(words.leaving.WORKERS_ENDED_AFTER_NOTICE, event="noticed")
            return
        self.state, self._succeeded_at = State.SUCCEEDED, now
        self._effects.append(self.report(round_, None))
        if self.outages.failure:
            failure, longest_s, lives = str(self.outages.failure), self.outages.longest_s, self.outages.server_lives
            self._log_outage(words.connection.success_not_delivered(self._server, failure, longest_s, lives))

    def _worker_failed(self, round_: int, failure: Failure, *, before_stop: bool) -> None:
        is_first = self.state is State.RUNNING
        is_own = round_ == self._after_round  # not of the fenced agent that this one was before
        if not is_own or not (is_first or self.state in (State.STOPPING, State.DRAINING)):
            return
        is_late = not is_first and not (before_stop and self.state is State.STOPPING)
        self._effects += self._reporter.worker_failed(round_, failure, is_late=is_late)
        if is_first:
            self._stop_workers()
            self.state, self._has_failed, self._last_reason = State.STOPPING, True, ""

    def _suspected(self, event: events.Suspected) -> None:
        is_running = self.state is State.RUNNING and self._has_workers
        if event.round == self.round and (is_running or (event.ends_rules and self.state is State.SUCCEEDED)):
            self._log_change(event.log.text, event.log.level, event.log.event)
            self._suspicions += 1
            request = SuspectRequest(
                **self._sender(), round=event.round, source=event.source, reason=event.reason, ranks=event.ranks,
                silent_s=event.silent_s, limit_s=event.limit_s, number=self._suspicions, ends_rules=event.ends_rules,
                is_untold=event.is_untold,
            )  # fmt: skip
            self._effects.append(request)

    def _workers_stopped(self, round_: int, signal_until: float, now: float) -> None:
        if round_ == self.round:
            self.outages.workers_ended(now)
            self._stop_asked = False
            self._joins_at = signal_until if signal_until > now else inf
            if self.state is State.DRAINING and not self._leaving:
                self._log_change(words.leaving.WORKERS_GONE, event="node_left")

    def _stop_workers(
        self, signal_name: str = "SIGTERM", grace_s: float | None = None, *, seeks_cause: bool = False
    ) -> None:
        if self._has_workers and not self._stop_asked:
            self._stop_asked = True
            self._effects.append(StopWorkers(signal_name, grace_s=grace_s, seeks_cause=seeks_cause))

    # End of the agent.

    def _signalled(self, signalled: events.Signalled, now: float) -> None:
        name, is_first = signalled.name, not self._has_heard_signal
        self._has_heard_signal = self._has_heard_signal or not signalled.reason
        if self._can_give_notice():
            self._give_notice(signalled, now)
        elif self.state is State.SUCCEEDED and self.outages.failure and not self._retracts_success(signalled, now):
            self._log(words.leaving.leaving_without_server(name), Level.WARNING, "node_left")
            self._leave(name)
            self._end_unknown(ExitCode.START_AGAIN)
        elif self.state is not State.ENDING and self._leaving and is_first:
            # The machine is preempted, and its shutdown then signals the agent.
            self._log_change(words.leaving.leaves_already(name), event="node_left")
        elif self.state is not State.ENDING:
            self._go(signalled, now)
        elif is_first and self._has_workers:  # such as a scheduler's, which ends all nodes when one has failed
            self._log_change(words.leaving.workers_end_already(name), event="node_left")
        elif self._has_workers:
            self._log_change(words.leaving.killing_workers(name), event="node_left")
            self._effects.append(StopWorkers(name, kill=True))
        else:
            self._check_at_end = False

    def _can_give_notice(self) -> bool:
        """Return whether the workers of all nodes can still get a notice before this agent leaves."""
        is_running = self.state is State.RUNNING and self._has_workers and self.is_member
        return self._notice_s is not None and is_running and self._leaving is None and self.outages.failure is None

    @property
    def _stays_until(self) -> float:
        """Time until which a leaving agent whose workers have ended stays for a server that it cannot reach, or inf.

        If the server returns and this agent has left, the server stops the other nodes' workers, which may still save.
        """
        if self._leaving is None or self.state is not State.RUNNING or self._has_workers:
            return inf
        return self.outages.gone_at(0.0 if self._is_alone else self._lease_s)

    def _give_notice(self, signalled: events.Signalled, now: float) -> None:
        assert self._notice_s is not None
        why, self._leaving = signalled.why, signalled
        self._leaves_at, self._stops_at = now + self._notice_s + ANSWER_S, now + self._stop_s
        self._log_change(words.leaving.leaving_after_notice(why, self._notice_s), event="node_left")
        self._effects.append(
            LeaveRequest(**self._sender(), reason=why[:LONGEST_REASON], notice_s=self._notice_s, stop_s=self._stop_s)
        )

    def _go(self, signalled: events.Signalled, now: float) -> None:
        """Leave the run now."""
        name, why, message = signalled.name, signalled.why, words.leaving.leaving(signalled.why)
        is_for_workers = self._has_workers and not self._leaving and name.startswith("SIG") and self._stop_s < inf
        retracts_success, ago_s = self._retracts_success(signalled, now), signalled.succeeded_ago_s
        if ago_s is not None and not self._leaving and (retracts_success or self.state is State.RUNNING):
            message = words.leaving.leaving_after_success(why, ago_s)
        elif is_for_workers:
            message = words.leaving.leaving_with_workers(why, self._stop_s, name)
        self._log_change(message, event="node_left")
        self._leave(why[:LONGEST_REASON], retracts_success=retracts_success)
        grace_s = max(0.0, self._stops_at - now) if self._leaving else None
        if self.state is State.DRAINING and self._has_workers:
            # A sender of signals waits less long than a drain.
            self._effects.append(StopWorkers(name, grace_s=grace_s))
        self._stop_workers(name, grace_s)
        self._end(ExitCode.START_AGAIN)
        self._effects.append(WriteFailureReport(_left_by(signalled)))

    def _retracts_success(self, signalled: events.Signalled, now: float) -> bool:
        """Return whether the workers' success came so shortly before a signal that the signal may have caused it."""
        is_signal = signalled.name.startswith("SIG") and not signalled.reason
        return is_signal and self.state is State.SUCCEEDED and now < self._succeeded_at + CAUSE_TIMEOUT_S

    def _crashed(self, reason: str) -> None:
        self._effects += self._reporter.forget()
        if self.state is not State.ENDING:
            self._log_change(words.leaving.crashed(reason), Level.ERROR, "node_left")
            self._leave(reason[:LONGEST_REASON])
            self._effects.append(WriteFailureReport(reason))
        self._end(ExitCode.FAILED)
        self._check_at_end = False

    def _give_up(self, reason: str, exit_code: ExitCode, *, is_server_lost: bool = False) -> None:
        self._log(words.leaving.error(reason), Level.ERROR, "gave_up")
        if self.state is State.ENDING:
            return
        if is_server_lost and self.state is State.SUCCEEDED:
            self._log_outage(words.leaving.WORKERS_SUCCEEDED)
            self._end_unknown(exit_code)
        else:
            self._end(exit_code)
            self._effects.append(WriteFailureReport(reason, is_server_lost=is_server_lost))

    def _failed_code(self, finish: Finish) -> ExitCode:
        """Return the exit code of a failed run. It differs if this node was unfit or could not start a worker."""
        root, verdict = finish.failure, ExitCode.NO_PROGRESS if finish.no_progress else ExitCode.FAILED
        if root is None or not self._is_own(root):
            return verdict
        is_unfit = root.blame == "node" or (root.pid, root.exit_code) == (0, NOT_STARTED)
        return ExitCode.NODE_UNFIT if is_unfit else verdict

    def _is_own(self, root: Failure | None) -> bool:
        return root is not None and root.node_id == self._join.node_id

    def _end_unknown(self, exit_code: ExitCode) -> None:
        """End without knowing the outcome of the run, although all workers of this node have exited 0.

        `exit_code`: the code if the workers' success is not enough, because other nodes' workers may have failed.
        """
        if self._is_alone or not self._exits_with_run:
            self._end(ExitCode.SUCCEEDED)
            return
        self._log(words.leaving.OUTCOME_NEEDED, Level.WARNING, "gave_up")
        self._end(exit_code)
        self._effects.append(WriteFailureReport(words.leaving.OUTCOME_NEEDED))

    def _end(self, exit_code: ExitCode) -> None:
        self._stop_workers()
        self.state, self._exit_code, self.is_member = State.ENDING, exit_code, False
        self._keep_alive_at = None

    # Log lines.

    def _log_change(self, text: str, level: Level = Level.NOTICE, event: str = "") -> None:
        """Log a change. The next wait is then logged even if its reason is the same as before."""
        self._last_reason = ""
        self._log(text, level, event)

    def _log(self, text: str, level: Level, event: str) -> None:
        self._effects.append(Log(text, level, event))

    def _wait(self, wait: Wait) -> None:
        """Log what the agent waits for if that has changed, not if only the remaining time has."""
        if wait.excluded and self._exits_when_excluded and not self._has_workers:
            self._leave(words.leaving.reason_to_leave("excluded"))
            self._give_up(words.leaving.kept_out(wait.reason), ExitCode.NODE_UNFIT)
            return
        if wait.reason != self._last_reason:
            self._log_change(wait.sentence, event=WAITING)
            self._last_reason = wait.reason


def _started(assignment: Assignment) -> str:
    ranks = assignment.ranks
    return words.progress.round_started(
        round_=assignment.round,
        group_rank=assignment.group_rank,
        nodes=assignment.group_world_size,
        first_rank=ranks[0],
        last_rank=ranks[-1],
        workers=assignment.world_size,
        master=address(assignment.master_addr, assignment.master_port),
        restarts=assignment.restart_count,
        used=assignment.used_restarts,
        most=assignment.max_restarts,
    )


def _left_by(signalled: events.Signalled) -> str:
    return signalled.reason or words.leaving.got_signal(signalled.name)


def _finished(finish: Finish) -> str:
    """Return the end of the run in one line. The failure report has the details."""
    if not finish.succeeded:
        return words.progress.run_failed(finish.reason)
    if not finish.restart_total:
        return words.progress.run_succeeded(finish.reason)
    return words.progress.run_succeeded_after_restarts(finish.reason, finish.restart_total, finish.charged_restarts)


def _time_spent(time: RunTime | RunningTime) -> str:
    seconds = {name.removesuffix("_s"): spent for name, spent in asdict(time).items() if name != "ettr"}
    return words.progress.run_took(seconds, time.ettr if isinstance(time, RunTime) else None)
