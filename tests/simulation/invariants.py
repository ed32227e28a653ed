"""Invariants after every event, over the server and all agents together, and at every start and exit.

Promises of only the server's core, such as complete and sticky ranks, the time ledger, and the waits between failed
rounds, are tested in `tests/property`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from msgspec.structs import replace
from rdzv_protocol.actions import LogsRequest, WorkerLog
from rdzv_protocol.errors import (
    NoAnswer,
    ProtocolError,
    QueryRefused,
    RunEnded,
    ServerUnavailable,
    TooManyRequests,
    UnknownRank,
    UnknownRun,
)
from rdzv_protocol.events import RunEvent
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Assignment, Failure, Finish, Start
from rdzv_protocol.queries import Notice
from rdzv_protocol.timing import HOLDS_PER_LEASE

from rdzv_server.core.events import EXCLUDER
from rdzv_server.core.kernel import final_report
from rdzv_server.core.kernel.liveness import OVERDUE, TOGETHER_S, UNREAD_S
from rdzv_server.core.kernel.progress import STANDSTILL_S
from rdzv_server.core.kernel.rank_assignment import start
from rdzv_server.core.kernel.run import Agent, AgentState, Cause, Departure, Restart, Run, Stage
from rdzv_server.core.node_facts import NodeBlamed
from rdzv_server.core.policies import time_ledger
from rdzv_server.core.policies.hangs import words as hang_words
from rdzv_server.core.runs.registry import Registry
from rdzv_server.core.views import health
from rdzv_server.service.interface import OperatorRequest
from rdzv_server.service.operator_requests import AGENT_ANSWERS_S
from rdzv_server.words import failures as failure_words
from rdzv_server.words import losses
from simulation.agent import HANGS_AT, AgentProcess
from simulation.clock import Clock
from simulation.network import SLOWEST_S
from simulation.server import EPSILON, OPERATOR, Server
from simulation.workers import Workers

HEALTH_S = 1.0
"""Seconds between two checks of a run's health."""
STEP_S = 2.0
"""Seconds by which a step's time may be off: it takes a second, and its report has a delay."""
ROUNDED_S = 0.02
SEEN_S = 0.5
"""Seconds until the server has seen the close of a connection, unless it was delayed."""
QUICK_S = 1.0
"""Grace for an absent agent that is long enough for it to come back over a path of an ordinary delay."""
REACHED_S = 1.5
"""Seconds in which an undisturbed agent has read a query."""
ENDS = ("run_succeeded", "run_failed")
REFUSALS = (UnknownRun, UnknownRank, RunEnded, QueryRefused, NoAnswer, TooManyRequests, ServerUnavailable)
SEATED = (AgentState.RUNNING, AgentState.SUCCEEDED, AgentState.STOPPING)


@dataclass(slots=True)
class Seen:
    """Facts of an attempt, as they were observed."""

    rounds: dict[int, dict[str, Assignment]] = field(default_factory=dict)
    """The assignments of each completed round, by agent id."""
    entered: int = 0
    """Number of checked lines of the ledger."""
    failed: dict[int, dict[str, Failure]] = field(default_factory=dict)
    """Failures of each round, by agent id: the truth."""
    succeeded: dict[int, list[str]] = field(default_factory=dict)
    """The agents whose workers all exited 0 in each round: the truth."""
    followed: dict[int, dict[str, tuple[str, float]]] = field(default_factory=dict)
    """Failures of each round that followed from the death of an agent, by agent id: that agent's id, and the time."""
    hung: dict[int, set[int]] = field(default_factory=dict)
    """Ranks that hung in each round: the truth."""
    found: dict[int, RunEvent] = field(default_factory=dict)
    """The last judged hang of each round."""
    noticed: set[tuple[int, str]] = field(default_factory=set)
    """Round and agent id of agents whose workers were told that it ends."""
    heard: dict[str, float] = field(default_factory=dict)
    """Time at which each agent of the run was last heard: the truth."""
    heard_at: float = 0.0
    """Latest of these times."""
    regained_at: float = 0.0
    """Time at which an agent was heard after none had been for longer than a poll."""
    notice_at: float = 0.0
    """Time of the last notice."""
    reached: tuple[int | None, int | None] = (None, None)
    """Highest step and checkpoint that the server knows of."""
    further_in: int = 0
    """Last round in which one of them rose."""
    health_at: float = 0.0
    """Time of the last check of the run's health."""
    departed: Departure | None = None
    """Departure that was checked last."""
    end: tuple[object, ...] | None = None


class Forming(NamedTuple):
    """The formation of a round."""

    cause: Cause
    """Cause for which the round was opened."""
    drained: set[str]
    """Nodes that an operator drained meanwhile, before they went."""


class Watch:
    """Knows the truth, and compares it with the state of the server and the agents."""

    def __init__(self, clock: Clock, server: Server) -> None:
        self._clock, self._server = clock, server
        self._processes: dict[str, AgentProcess] = {}
        self._attempts: dict[int, Seen] = {}
        self._started: dict[tuple[str, int, int], str] = {}
        self._holders: dict[tuple[int, int, int], str] = {}
        """Process that has had each rank, by attempt, round and rank."""
        self.excluded_nodes: set[str] = set()
        """Nodes that the server has ever excluded."""
        self._told = 0
        """Number of checked events."""
        self._blamed = 0
        """Number of checked blames."""
        self._done: set[tuple[int, str]] = set()
        """Attempt and request id of each operator's action in the events."""
        self.drained_nodes: set[str] = set()
        """Nodes that an operator has drained: the truth."""
        self.open_questions = 0
        """Open questions of operators to agents."""

    @property
    def _registry(self) -> Registry:
        return self._server.registry

    def know(self, process: AgentProcess) -> None:
        self._processes[process.name] = process

    # The truth, as it happens.

    def failed(self, agent_id: str, workers: Workers, failure: Failure) -> None:
        self._seen(workers.attempt).failed.setdefault(workers.round, {})[agent_id] = failure

    def follows(self, agent_id: str, workers: Workers, dead_id: str, dead_at: float) -> None:
        """Note that a failure of these workers followed from the death of another agent."""
        self._seen(workers.attempt).followed.setdefault(workers.round, {})[agent_id] = dead_id, dead_at

    def succeeded(self, agent_id: str, workers: Workers) -> None:
        self._seen(workers.attempt).succeeded.setdefault(workers.round, []).append(agent_id)

    def starts(self, process: AgentProcess, assignment: Assignment) -> int:
        """Check a start, and return its attempt."""
        run = self._run_of(process.agent_id)
        key = (process.name, run.attempt, assignment.round)
        assert key not in self._started, f"{process.name} starts round {assignment.round} again"
        self._started[key] = process.agent_id
        told = self._seen(run.attempt).rounds.get(assignment.round, {}).get(process.agent_id)
        assert assignment == told, f"{process.name} starts {assignment}, and the server said {told}"
        assert assignment.local_world_size == process.local_world_size
        for rank in assignment.ranks:
            holder = self._holders.setdefault((run.attempt, assignment.round, rank), process.name)
            assert holder == process.name, f"{process.name} and {holder} both have rank {rank} in {assignment.round}"
        if assignment.group_rank == 0:
            reserved = (process.host.addr, process.port)
            assert (assignment.master_addr, assignment.master_port) == reserved, "the master's port is not reserved"
        return run.attempt

    def hung(self, workers: Workers) -> None:
        assert workers.hung is not None
        self._seen(workers.attempt).hung.setdefault(workers.round, set()).add(workers.hung)

    def noticed(self, process: AgentProcess, notice: Notice) -> None:
        """Check that there is a notice, when an agent has read one."""
        run = self._run_of(process.agent_id)
        seen = self._seen(run.attempt)
        assert process.agent_id in seen.rounds[notice.round], "told of a round that it is no participant of"
        seen.noticed.add((notice.round, process.agent_id))

    def asked(self) -> float:
        """Record that an operator asks an agent, and return the time."""
        self.open_questions += 1
        return self._clock.now

    def answered(self, question: OperatorRequest, asked_at: float, answer: WorkerLog | ProtocolError) -> None:
        """Check the answer: in time, and from an agent that had the rank in the round that it names."""
        self.open_questions -= 1
        assert self._clock.now <= asked_at + AGENT_ANSWERS_S + EPSILON, "a question was left open"
        if isinstance(answer, WorkerLog):
            attempt, agent_id = self._run_of(answer.path).attempt, answer.path
            assert isinstance(question.message, LogsRequest)
            assert question.message.rank in self._seen(attempt).rounds[answer.round][agent_id].ranks
            assert answer.text == str(answer.round), "the answer is about another round"
        else:
            assert isinstance(
                answer,
                UnknownRun | UnknownRank | RunEnded | QueryRefused | NoAnswer | TooManyRequests | ServerUnavailable,
            )

    def reported(self, process: AgentProcess, finish: Finish | None) -> None:
        """Check what an agent shows at the end of a failed run."""
        if finish:
            _check_report(self._seen(self._run_of(process.agent_id).attempt), finish)

    def exited(self, process: AgentProcess) -> None:
        code = process.exit_code
        was_told = process.was_signalled or process.host.name in self.drained_nodes
        if was_told and (code == ExitCode.START_AGAIN or (code == 0 and self._has_succeeded(process))):
            return  # a signal ends an agent; without the server it exits by its workers' result
        if code == 0 and self._has_succeeded(process, alone=True):
            return  # its workers have done all of the run's work, even if the server has lost the node since
        if code == ExitCode.NODE_UNFIT:
            unfit = process.host.name in self.excluded_nodes or self._is_hardware(process.host.name)
            assert unfit, f"{process.name} says that its node is unfit, and it was not excluded"
            return
        try:
            run, code_without_progress = self._run_of(process.agent_id), ExitCode.NO_PROGRESS
        except LookupError:  # refused: the run was over before this agent joined or returned
            run, code_without_progress = [run for run in self._registry.runs() if run.stage.is_end][-1], ExitCode.FAILED
            if run.is_stopped and code == ExitCode.REFUSED:
                return  # only `--rerun` starts it again
        failed = code_without_progress if run.no_progress else ExitCode.FAILED
        expected = {Stage.SUCCEEDED: 0, Stage.FAILED: failed}.get(run.stage)
        assert code == expected, f"{process.name} exits with {code}, and the run is {run.stage}"

    def _is_hardware(self, node_id: str) -> bool:
        """Return whether a worker of the node, under any agent, has failed by the node's fault."""
        of_rounds = [failures for seen in self._attempts.values() for failures in seen.failed.values()]
        failed = [failure for failures in of_rounds for failure in failures.values()]
        return any(failure.blame == "node" and failure.node_id == node_id for failure in failed)

    def _has_succeeded(self, process: AgentProcess, *, alone: bool = False) -> bool:
        """Return whether all workers of this agent's last round exited 0. `alone`: if it had no other agent."""
        round_ = process.machine.round
        return any(
            process.agent_id in seen.succeeded.get(round_, []) and not (alone and len(seen.rounds[round_]) > 1)
            for seen in self._attempts.values()
        )

    # After every event.

    def check(self) -> None:
        if self._server.is_down:
            return
        for run in self._registry.runs():
            if run.attempt not in self._attempts:
                founder = next(iter(run.agents), ".1")
                assert founder.endswith(".1"), f"{founder} was part of an attempt, and begins another"
            run.validate()
            seen = self._seen(run.attempt)
            if seen.end:
                assert _end_of(run) == seen.end, f"an ended run changed: {seen.end} to {_end_of(run)}"
                continue
            for agent in run.agents.values():
                self._check_agent(run, agent)
            self._check_round(run, seen)
            self._note_steps(run, seen)
            self._check_notice(run)
            self._check_ledger(run, seen)
            self._check_liveness(run, seen)
            if run.stage.is_end:
                self._check_end(run, seen)
            elif self._clock.now >= seen.health_at + HEALTH_S and run.policies:
                seen.health_at = self._clock.now
                self._check_health(run, seen)
        cordons = self._registry.nodes.state.cordons
        self.excluded_nodes |= {node for node, cordon in cordons.items() if cordon.excludes}
        self._check_events()
        blames = self._server.blames
        for place in range(self._blamed, len(blames)):
            self._check_blamed(blames[place])
        self._blamed = len(blames)

    def _check_agent(self, run: Run, agent: Agent) -> None:
        """Check that only workers of the agent's round live in the run, except those that missed the last call."""
        process = self._processes[_name(agent.agent_id)]
        assert run.stage.is_end or process.agent_id == agent.agent_id, f"{agent.agent_id} has come back as another"
        workers = process.live_workers
        if agent.state in SEATED:
            assert run.membership and agent.round == run.membership.round, f"{agent.agent_id} is of another round"
        if workers is None or workers.attempt != run.attempt or run.stage.is_end:
            return
        assert not agent.has_joined, f"{agent.agent_id} waits for a round and has workers"
        assert workers.round == agent.round, (
            f"{agent.agent_id} is {agent.state} in round {agent.round} and has workers of round {workers.round}"
        )

    def _check_round(self, run: Run, seen: Seen) -> None:
        if run.stage is not Stage.RUNNING or run.round in seen.rounds:
            return
        assert run.membership and run.membership.round == run.round
        assignments = {}
        for agent_id in run.membership.seats:
            agent = run.agents[agent_id]
            directive = agent.directive or start(run, agent.agent_id)
            assert isinstance(directive, Start), f"{agent_id} has a seat and gets {directive}"
            assignments[agent_id] = directive.assignment
        assert _masters(assignments).isdisjoint(_masters(seen.rounds.get(run.round - 1, {}))), (
            "the workers meet where those of the round before did"
        )
        cordons = self._registry.nodes.state.cordons
        kept_out = [agent_id for agent_id in assignments if run.agents[agent_id].node_id in cordons]
        assert not kept_out, f"{kept_out} got seats, and their nodes are to be kept out"
        assert len(assignments) in _legal_sizes(run), f"{len(assignments)} nodes, of {_legal_sizes(run)}"
        seen.rounds[run.round] = assignments

    def _note_steps(self, run: Run, seen: Seen) -> None:
        """Record the last round in which the run got further than in all rounds before."""
        reached = (run.highest_step, run.checkpoint_step)
        if run.membership and reached != seen.reached:
            seen.reached, seen.further_in = reached, run.membership.round

    def _check_notice(self, run: Run) -> None:
        """Check that the round ends by the deadline, and that all reachable agents have been told until then."""
        has_just_started = self._clock.now <= self._server.restarted_at + EPSILON
        if run.stage is not Stage.RUNNING or run.unheard_since is not None or has_just_started:
            return
        ends = [leaving.until for leaving in run.leaving.values()]
        assert not ends or self._clock.now <= min(ends) + EPSILON, "workers had their notice, and the round continues"
        assert run.scale_up_at is None or self._clock.now <= run.scale_up_at + EPSILON, "an arrival is not admitted"
        if run.notice and run.notice.until > self._clock.now:
            listening = {each for each, agent in run.running.items() if "notice" in agent.join.queries}
            assert listening <= run.notice.asked.keys(), f"{listening - run.notice.asked.keys()} are not told"

    def _check_ledger(self, run: Run, seen: Seen) -> None:
        """Check that a restart is charged only if a worker of the previous round has really failed."""
        entered = sum(run.restarts.values())
        assert entered - seen.entered in (0, 1), "one event completed two rounds"
        if entered > seen.entered:
            _check_restart(run, seen, run.ledger[-1], self._forming(run))
        seen.entered = entered

    def _forming(self, run: Run) -> "Forming":
        """Return what happened to nodes while the last round formed."""
        of_run = [each for each in self._server.events if each.attempt == run.attempt and each.round <= run.round]
        opened_at = max(place for place, each in enumerate(of_run) if each.kind == "round_opened")
        drained, gone = set[str](), set[str]()
        for each in of_run[opened_at + 1 :]:
            if each.node_id and each.kind == "node_drained" and each.node_id not in gone:
                drained.add(each.node_id)
            elif each.node_id and each.kind in ("node_left", "node_lost"):
                gone.add(each.node_id)
        return Forming(Cause(of_run[opened_at].cause), drained)

    def _check_liveness(self, run: Run, seen: Seen) -> None:
        """Check that no agent is lost that was heard in time, and none is kept that was not."""
        lease_s, grace_s = run.settings.lease_s, run.settings.disconnect_grace_s
        self._note_heard(run, seen)
        for gone in reversed(run.departures):
            if gone == seen.departed:
                break
            self._check_departure(run, gone)
        seen.departed = run.departures[-1] if run.departures else None
        for agent_id in () if run.stage.is_end else run.agents:
            last_at = max(self._lease_from(run, agent_id), seen.regained_at)
            is_witnessed = run.stage is not Stage.RUNNING or seen.heard_at >= last_at + OVERDUE * lease_s
            silent_s = self._clock.now - last_at
            assert silent_s <= lease_s + EPSILON or not is_witnessed, (
                f"{agent_id} has been silent for {silent_s:g} s and is not lost"
            )
            closed_at = self._server.closed_at.get(agent_id, self._clock.now)
            absent_s = self._clock.now - closed_at
            assert absent_s <= grace_s + EPSILON or self._is_path_suspect(run, agent_id, closed_at), (
                f"{agent_id} has been absent for {absent_s:g} s and is not lost"
            )

    def _lease_from(self, run: Run, agent_id: str) -> float:
        """Return the latest start of an agent's lease: the close of its connection, if the path is suspect."""
        heard_at = self._server.renewed_at[agent_id]
        closed_at = self._server.closed_at.get(agent_id, heard_at)
        is_sign = heard_at < closed_at <= heard_at + OVERDUE * run.settings.lease_s
        return closed_at if is_sign and self._is_path_suspect(run, agent_id, closed_at) else heard_at

    def _note_heard(self, run: Run, seen: Seen) -> None:
        """Record when the run's agents were heard. A dead agent is no witness of the others' fate."""
        heard = {agent_id: self._server.renewed_at[agent_id] for agent_id in run.agents}
        before = [at for agent_id, at in seen.heard.items() if agent_id in heard]
        seen.heard, seen.heard_at = heard, max(heard.values(), default=0.0)
        if before and seen.heard_at > max(before) + OVERDUE * run.settings.lease_s:
            seen.regained_at = seen.heard_at

    def _is_path_suspect(self, run: Run, agent_id: str, closed_at: float) -> bool:
        """Return whether the path to the server is suspect.

        Another node vanished with the agent's, or its lease ended while the agent was overdue too. Or no other agent
        was there then, or none was heard for a time. Or none was heard since, nor waited for its answer.
        """
        if agent_id in self._server.closed_last or self._lacks_witness(run, agent_id, closed_at):
            return True
        overdue_at = self._server.renewed_at[agent_id] + OVERDUE * run.settings.lease_s
        vanished = (each for at, each in self._server.closings if abs(at - closed_at) < TOGETHER_S)
        silent = (each for each in run.departures if _is_silence(run, each) and each.at > overdue_at)
        others = {self._processes[_name(each)].host.name for each in vanished} | {each.node_id for each in silent}
        return bool(others - {run.agents[agent_id].node_id})

    def _lacks_witness(self, run: Run, agent_id: str, closed_at: float) -> bool:
        """Return whether no other agent is heard, or the agent got a fresh lease when one was heard again."""
        seen, grace_ends_at = self._seen(run.attempt), closed_at + run.settings.disconnect_grace_s
        was_heard = self._server.is_any_heard(run.agents, closed_at + UNREAD_S, grace_ends_at)
        if False in self._server.waits_at(grace_ends_at) and not was_heard:
            return True
        is_heard = grace_ends_at <= seen.heard_at + OVERDUE * run.settings.lease_s and run.leases.is_any_certain
        return not is_heard or seen.regained_at > self._server.renewed_at[agent_id]

    def _check_departure(self, run: Run, gone: Departure) -> None:
        process = self._processes[_name(gone.agent_id)]
        is_drained = process.host.name in self.drained_nodes
        if gone.left or (is_drained and gone.cause == "drained"):
            was_told = process.was_signalled or is_drained or process.host.name in self.excluded_nodes
            assert was_told, f"{gone.agent_id} left without an order"
            return
        was_unheard = gone.cause.startswith((losses.SILENT, losses.REPLACED))  # a server's restart ends no such silence
        heard_at = (self._server.heard_at if was_unheard else self._server.renewed_at)[gone.agent_id]
        is_silent = self._clock.now - heard_at >= run.settings.lease_s - EPSILON
        was_broken = self._server.restarted_at or process.host.path_down_until
        has_gone = process.exit_code is not None and was_broken  # its leave may not have arrived
        is_suspect = process.host.is_suspect or process.host.path_down_until > heard_at
        assert is_suspect or has_gone or not is_silent, f"{gone.agent_id} fell silent without a reason"
        if gone.cause == losses.PROBE_UNANSWERED:
            assert process.is_dead or process.host.is_suspect or has_gone, (
                f"{gone.agent_id} lived, and no server heard it"
            )
            silent_s = self._clock.now - self._server.renewed_at[gone.agent_id]
            asked_s = run.settings.lease_s / HOLDS_PER_LEASE
            assert silent_s >= asked_s - EPSILON, f"{gone.agent_id} was asked, and not waited for"
            return
        if run.opening.at == gone.at and self._opened_by(run) == losses.lost(gone.node_id, gone.cause):
            self._check_witness(run, gone)
        closed_at = self._server.closed_at.get(gone.agent_id)
        overdue_at = heard_at + OVERDUE * run.settings.lease_s
        if gone.cause == losses.REPLACED and self._clock.now > overdue_at:
            return  # it was silent while no agent was heard, which counts against it
        assert is_silent or closed_at is not None, f"{gone.agent_id} was there, and was lost: {gone.cause}"
        if not is_silent and "within" in gone.cause:
            assert self._clock.now - closed_at >= run.settings.disconnect_grace_s - EPSILON, (
                "lost before its grace ended"
            )
            is_heard = self._server.is_any_heard(run.agents, closed_at + UNREAD_S, self._clock.now)
            assert is_heard or True in self._server.waits_at(self._clock.now), (
                f"{gone.agent_id} was lost, and no other agent was heard or waited for its answer"
            )

    def _opened_by(self, run: Run) -> str:
        """Return the reason with which the latest round was opened; empty for the first round, which nothing opens.

        A node that is lost in the same instant may give the round another reason.
        """
        opened = (each for each in reversed(self._server.events) if each.attempt == run.attempt)
        return next((each.reason for each in opened if each.kind == "round_opened"), "")

    def _check_witness(self, run: Run, gone: Departure) -> None:
        """Check that an agent whose lease ended a round was silent while another one was heard."""
        others = {*self._seen(run.attempt).heard, *run.agents} - {gone.agent_id}
        heard = [0.0, *(self._server.renewed_at[agent_id] for agent_id in others)]
        overdue_at = self._server.renewed_at[gone.agent_id] + OVERDUE * run.settings.lease_s
        is_witnessed = max(heard) >= overdue_at - EPSILON or not _is_silence(run, gone)
        assert is_witnessed, f"{gone.agent_id} was lost while no other agent was heard"

    def _check_end(self, run: Run, seen: Seen) -> None:
        seen.end = _end_of(run)
        if run.stage is Stage.SUCCEEDED:
            assert run.membership
            done = seen.succeeded.get(run.round, [])
            assert sorted(done) == sorted(run.membership.seats), f"the run succeeded, and only {done} are done"
        elif run.end_failure and run.end_failure.cause.startswith(hang_words.hang("")):
            of_run = [each for each in self._server.events if each.attempt == run.attempt]
            assert any(each.kind == "hang_found" for each in of_run), "the run failed for no hang"
            most, used = run.settings.max_hang_restarts, run.restarts.get(Cause.HANG, 0)
            is_spent = _is_given_up(run) or (_budget_is_spent(run) if most is None else used == most)
            assert run.settings.on_hang == "fail" or is_spent, "the run failed with restarts left"
        elif _is_given_up(run) and not run.end_failure:
            lost = [gone.at for gone in run.departures if not gone.left and gone.at >= run.opening.at]
            assert lost and run.opening.cause is Cause.NODE_LOST, "no node was lost too often"
        elif run.end_failure:
            fatal = any(record.failure.exit_code in run.settings.fatal_exit_codes for record in run.failures)
            of_round = seen.failed.get(run.membership.round if run.membership else 0)
            assert of_round or fatal, "the run failed for no failure"  # a fatal one may be from an earlier round
            assert fatal or _is_given_up(run) or _budget_is_spent(run), "the run failed with restarts left"
            explained = seen.followed.get(run.round, {})
            is_all = bool(of_round) and of_round.keys() <= explained.keys() and not fatal
            is_lost = is_all and any(map(self._was_seen, explained.values()))
            assert not is_lost, f"the run failed because workers had lost others: {explained}"
            _check_blame(run, seen)

    def _was_seen(self, death: tuple[str, float]) -> bool:
        """Return whether the server saw at once that a dead agent's connection closed, and read no late poll since."""
        agent_id, died_at = death
        seen_by = died_at + SEEN_S
        closed_at = [at for at, each in self._server.closings if each == agent_id and died_at <= at <= seen_by]
        return bool(closed_at) and self._server.heard_at[agent_id] <= closed_at[0]

    def _check_health(self, run: Run, seen: Seen) -> None:
        """Check that a run's health is true, and that the seconds of its time ledger add up to its age."""
        now, teams = self._clock.now, self._teams(run)
        found = {finding.state: finding for finding in health.findings(run, now)}
        assert not found.keys() & {"slow", "unreachable", "overdue"}, f"nothing of this has happened: {found}"
        if "hung" in found:
            assert seen.hung.get(run.round), f"no worker hung: {found['hung']}"
        if "looping" in found:
            failed = sum(round_ >= seen.further_in for round_ in seen.failed)
            gone = _ended_by_departures(run, seen.further_in)
            is_true = failed >= health.ROUNDS_OF_A_LOOP or gone >= health.DEPARTURES_OF_A_LOOP
            assert is_true, f"it has not failed or lost nodes as often since it got further: {found['looping']}"
        if "silent" in found and run.unheard_since is not None:
            heard_at = max(self._server.heard_at.get(agent_id, 0.0) for agent_id in run.agents)
            assert now >= heard_at + run.settings.lease_s - EPSILON, f"an agent was heard: {found['silent']}"
        still_s = [now - (now if team.hung_since is None else team.hung_since) for team in teams]
        report_s = run.settings.lease_s + SLOWEST_S
        if "stalled" in found and not any(now < team.resumed_at + report_s for team in teams):
            assert max(still_s, default=0.0) >= STANDSTILL_S - STEP_S, f"workers make steps: {found['stalled']}"
        are_all = run.stage is Stage.RUNNING and len(teams) == len(run.seats) and not run.suspends_judgement
        if are_all and min(still_s) > STANDSTILL_S + report_s:
            assert found.keys() & {"stalled", "hung"}, f"nothing has moved for {min(still_s):g} s, and it is {found}"
        spent = time_ledger.view(run, now)
        sum_s = spent.running + spent.forming + spent.restarting + spent.waiting
        assert abs(sum_s - (now - run.created_at)) < ROUNDED_S, f"{sum_s} s of {now - run.created_at} s are entered"
        parts_s = spent.starting + spent.checkpointing + spent.detecting + spent.lost
        assert parts_s <= spent.running + ROUNDED_S, f"more than the running phase: {spent}"

    def _teams(self, run: Run) -> list[Workers]:
        """Return the workers of the running round that train."""
        all_ = [process.workers for process in self._processes.values() if process.is_training and process.workers]
        return [team for team in all_ if (team.attempt, team.round) == (run.attempt, run.round)]

    def _check_events(self) -> None:
        """Check that events are in order and numbered without a gap over all attempts."""
        told = self._server.events
        for place in range(self._told, len(told)):
            event = told[place]
            assert event.number == place + 1, f"event {event.number} comes as number {place + 1}"
            before = told[place - 1] if place else None
            assert before is None or event.attempt - before.attempt in (0, 1), "an attempt has no events"
            assert before is None or before.kind not in ENDS or event.kind == "run_created", f"{event} after the end"
            self._check_event(event)
        self._told = len(told)

    def _check_event(self, event: RunEvent) -> None:
        seen = self._seen(event.attempt)
        if event.kind == "round_started":
            run = next(run for run in self._registry.runs() if run.attempt == event.attempt)
            charged = {restart.round: restart.charged for restart in run.ledger}
            assert event.charged is charged.get(event.round, False), f"the ledger tells it otherwise: {event}"
        elif event.kind == "workers_failed":
            happened = seen.failed.get(event.round, {}).values()
            assert event.failure and _without_advice(event.failure) in happened, f"never happened: {event}"
        elif event.kind == "hang_found":
            self._check_hang(event, seen)
        elif event.kind == "notice_given":
            seen.notice_at = event.at
        elif event.kind == "notice_ended":
            self._check_told(event, seen)
        elif event.kind in ENDS:
            (run,) = (run for run in self._registry.runs() if run.attempt == event.attempt)
            assert event.kind == f"run_{run.stage}" and event.reason == run.end_reason
        if event.by and event.by != EXCLUDER:
            assert event.by == OPERATOR and event.request_id, f"whose was {event}?"
            key = (event.attempt, event.request_id)
            assert key not in self._done, f"done twice: {event}"
            self._done.add(key)

    def _check_blamed(self, blame: NodeBlamed) -> None:
        """Check that a blamed node is one at which something happened: a worker failed, or a fault of its own."""
        here = [process for process in self._processes.values() if process.host.name == blame.node_id]
        if blame.fault in ("failed", "hardware"):
            failed = [each for seen in self._attempts.values() for of in seen.failed.values() for each in of.values()]
            those = [each for each in failed if each.node_id == blame.node_id and each.sentence in blame.reason]
            assert any(not each.consequence and each.blame != "program" for each in those), f"not at fault: {blame}"
        elif blame.fault == "lost":
            self._check_loss_blamed(blame, self._registry.runs()[-1], here)

    def _check_loss_blamed(self, blame: NodeBlamed, run: Run, here: list[AgentProcess]) -> None:
        host, (gone, *_) = here[0].host, [each for each in reversed(run.departures) if each.node_id == blame.node_id]
        is_quick = run.settings.disconnect_grace_s >= QUICK_S >= 4 * here[0].network.weather.latency_s
        if not is_quick or any(process.is_dead or process.exit_code is not None for process in here):
            return
        suffers_at = self._clock.now if host.is_frozen or host.is_cut else host.own_fault_at
        closed_at = self._server.closed_at.get(gone.agent_id, inf)
        together = {each for at, each in self._server.closings if abs(at - closed_at) < TOGETHER_S}
        others = {self._processes[_name(each)].host.name for each in together} - {host.name}
        is_own = suffers_at >= self._server.heard_at.get(gone.agent_id, 0.0) - SLOWEST_S
        assert is_own or (host.path_down_until > 0 and not others), f"others' paths were broken, too: {blame}"

    def _check_hang(self, event: RunEvent, seen: Seen) -> None:
        """Check that a rank that really hung is named, if stacks show which, and that the policy's action follows."""
        place = self._server.events.index(event)
        rest = [each for each in self._server.events[place + 1 :] if each.attempt == event.attempt]
        run = next(run for run in self._registry.runs() if run.attempt == event.attempt)
        hung = seen.hung.get(event.round)
        assert hung, f"no worker hung: {event}"
        if event.failure.singled_out:
            self._check_singled_out(event, seen)
        else:
            assert HANGS_AT not in event.reason or hang_words.CULPRIT_UNKNOWN in event.reason, f"{hung} hung: {event}"
        follows = next((each.kind for each in rest if each.kind in (*ENDS, "round_opened", "round_started")), None)
        if run.settings.on_hang == "report":
            assert not rest or rest[0].at > event.at or follows is None
        elif run.settings.on_hang == "fail":
            assert follows == "run_failed", f"continues after a hang: {event}"
        else:
            assert follows in ("run_failed", "round_opened"), f"nothing follows from a hang: {event}"
            assert event.round not in seen.found, f"judged twice: {event}"
        seen.found[event.round] = event

    def _check_singled_out(self, event: RunEvent, seen: Seen) -> None:
        """Check that the named rank hung, or one of its node, if the node did not answer."""
        hung, failure = seen.hung[event.round], event.failure
        if HANGS_AT not in event.reason:
            (ranks,) = (each.ranks for each in seen.rounds[event.round].values() if failure.rank in each.ranks)
            assert hung & set(ranks), f"{hung} hung: {event}"
        else:
            assert failure.rank in hung, f"{hung} hung: {event}"

    def _check_told(self, event: RunEvent, seen: Seen) -> None:
        """Check that all agents that could be reached in time were told before the round ended."""
        if event.at - seen.notice_at < REACHED_S:
            return
        for agent_id in seen.rounds.get(event.round, ()):
            process = self._processes[_name(agent_id)]
            listens = not process.is_old and process.agent_id == agent_id and process.is_training
            if listens and process.workers.round == event.round and not process.host.is_disturbed:
                assert (event.round, agent_id) in seen.noticed, f"{agent_id} was not told: {event}"

    def _seen(self, attempt: int) -> Seen:
        return self._attempts.setdefault(attempt, Seen())

    def _run_of(self, agent_id: str) -> Run:
        for run in self._registry.runs():
            if agent_id in run.agents or agent_id in run.departed_ids:
                return run
        raise LookupError(f"{agent_id} is part of no attempt")


def _check_restart(run: Run, seen: Seen, restart: Restart, forming: Forming) -> None:
    """Check that a restart in the ledger matches what happened to the previous round.

    An operator's drain that comes after a failure does not explain that failure. Nor does the loss of a drained node,
    unless the failures show that workers were lost; some of them may not have been reported.
    """
    failures = seen.failed.get(restart.round - 1, {}).values()
    shows = [failure.consequence for failure in failures] if forming.cause is not Cause.HANG else [False]
    gone = [
        departure
        for departure in run.departures
        if departure.group_rank is not None and departure.round == restart.round - 1 and departure.at >= run.opening.at
    ]
    explaining = [each for each in gone if each.node_id not in forming.drained or (all(shows) and not each.left)]
    assert restart.charged is (restart.cause in (Cause.WORKER_FAILURE, Cause.HANG))
    if restart.cause is Cause.HANG:
        assert seen.found[restart.round - 1].reason == restart.reason, f"charged for no hang: {restart}"
        since = [departure for departure in explaining if departure.at > run.opening.at]
        assert not since, f"charged for a departure: {restart}, {since}"
    elif restart.charged:
        assert any(failure.sentence in restart.reason for failure in failures), f"charged for no failure: {restart}"
        assert not explaining, f"charged for a departure: {restart}, {explaining}"
    elif restart.cause in (Cause.NODE_LOST, Cause.NODE_LEFT, Cause.NODE_DRAINED):
        going = [agent.node_id for agent in run.agents.values() if agent.state is AgentState.DRAINING]
        assert gone or going or restart.cause is Cause.NODE_DRAINED, f"no node departed: {restart}"
        others = {*going, *(each.node_id for each in gone)} - forming.drained
        may_explain = others or (any(shows) and not all(each.left for each in gone))
        assert may_explain or not forming.cause.is_failure, f"free by a drain: {restart}, {gone}"


def _check_blame(run: Run, seen: Seen) -> None:
    """Check that the final report names the cause: not a consequence if another failure was reported."""
    report = final_report.finish(run)
    _check_report(seen, report)
    assert report.failure, "the run failed by a failure, and its report names none"
    reported = [seen.failed[report.round][agent_id] for agent_id in run.failed]
    assert not report.failure.consequence or all(failure.consequence for failure in reported), (
        f"{report.failure} is blamed, which followed from one of {reported}"
    )


def _ended_by_departures(run: Run, first: int) -> int:
    """Return how many rounds departures have ended, from the round `first` on."""
    causes = [restart.cause for restart in run.ledger if restart.round > first]
    forming = [run.opening.cause] if run.stage is Stage.FORMING else []
    return sum(cause in (Cause.NODE_LOST, Cause.NODE_LEFT) for cause in causes + forming)


def _without_advice(failure: Failure) -> Failure:
    """Return the failure without the advice that the server adds: simulated workers have none."""
    added = (failure_words.exited_before(""), failure_words.exited_meanwhile(""))
    assert not failure.hint or failure.hint.endswith(added), failure.hint
    return replace(failure, hint="")


def _check_report(seen: Seen, report: Finish) -> None:
    """Check that each fact in a final report has happened, in the round that it names."""
    beside = [(report.round, other) for other in report.others]
    for round_, told in [(report.round, report.failure), (report.first_round, report.first_failure), *beside]:
        happened = list(seen.failed.get(round_, {}).values())
        if told and told.cause.startswith(hang_words.hang("")):
            assert round_ in seen.found, f"reported of round {round_}, in which no worker hung: {told}"
            continue
        assert told is None or _without_advice(told) in happened, (
            f"reported of round {round_}: {told}; happened: {happened}"
        )


def _legal_sizes(run: Run) -> list[int]:
    settings = run.settings
    sizes = settings.legal_sizes or range(settings.node_unit, settings.max_nodes + 1, settings.node_unit)
    return [size for size in sizes if settings.min_nodes <= size <= settings.max_nodes]


def _masters(assignments: Mapping[str, Assignment]) -> set[tuple[str, int]]:
    return {(assignment.master_addr, assignment.master_port) for assignment in assignments.values()}


def _name(agent_id: str) -> str:
    """Return the process's name: the part of its agent id that it keeps when fenced."""
    return agent_id.rpartition(".")[0]


def _end_of(run: Run) -> tuple[object, ...]:
    return (run.stage, run.end_reason, run.end_failure, run.ended_at, run.round, run.restart_count, run.membership)


def _is_given_up(run: Run) -> bool:
    """Return whether the run has ended because restarts made no progress, as its settings allow."""
    most = run.settings.max_restarts_without_progress
    restarts = max(run.restart_count, run.restarts.get(Cause.NODE_LOST, 0))
    assert not run.no_progress or (most is not None and restarts >= most), "given up before its time"
    return run.no_progress


def _budget_is_spent(run: Run) -> bool:
    """Return whether an ended run could not afford another restart, by its ledger of the latest ones."""
    window_s, most = run.settings.restart_window_s, run.settings.max_restarts
    apart = Cause.HANG if run.settings.max_hang_restarts is not None else None
    if window_s is None:
        return run.restart_count - (run.restarts.get(apart, 0) if apart else 0) == most
    assert run.ended_at is not None
    charged = [restart for restart in run.ledger if restart.charged and restart.cause is not apart]
    return sum(restart.at > run.ended_at - window_s for restart in charged) == most


def _is_silence(run: Run, gone: Departure) -> bool:
    """Return whether the agent's lease had ended."""
    return gone.cause.startswith(losses.not_heard(run.settings.lease_s))
