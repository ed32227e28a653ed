"""The mutator of one run: `handle(event, now)` gives the effects, `next_deadline()` says when to send `TimePassed`.

    FORMING --completes / LastCallEnded--> RUNNING --every participant succeeded--> SUCCEEDED
       ^                                      |
       +--failure, loss, leave, arrival-------+--budget spent, fatal exit code--> FAILED
       +--JoinTimedOut--> FAILED                any --RunStopped--> FAILED

An event that is refused raises a `ProtocolError` and changes nothing. A repeated one is accepted and changes nothing.
"""

from collections.abc import Iterable

from msgspec.structs import replace
from rdzv_protocol.errors import AgentFenced, NobodyWaits, StaleRound
from rdzv_protocol.messages import Directive, Failure, JoinRequest, Start, Stop, Wait
from rdzv_protocol.settings import RequestedSettings, RunSettings

from rdzv_server.core import admission, completion, final_report, rank_assignment, restart_budget, root_cause, snapshot
from rdzv_server.core.effects import Announce, Effect, ForgetRun, Record, WakeAgents
from rdzv_server.core.events import (
    AgentDisconnected,
    AgentHeard,
    ArrivalsAdmitted,
    CauseNotFound,
    Event,
    Fact,
    JoinTimedOut,
    LastCallEnded,
    NodeDoubted,
    NodeJoined,
    NodeKnocked,
    NodeLeft,
    NodeLost,
    NodeVouched,
    RunFounded,
    RunStopped,
    RunSuperseded,
    TimePassed,
    WorkersFailed,
    WorkersSucceeded,
)
from rdzv_server.core.liveness import Leases
from rdzv_server.core.run import Agent, AgentState, Cause, Departure, FailureRecord, Opening, Run, Stage
from rdzv_server.core.snapshot import Kept

DUE_AT_ONCE = 500
"""Agents that are lost in one go when many leases end together: other runs wait meanwhile. The rest is due still."""


class RunMachine:
    """One attempt of a run. Times are seconds of the server's monotonic clock."""

    def __init__(self, founded: RunFounded, now: float, retention_s: float) -> None:
        settings: RunSettings = founded.settings
        self.run = Run(
            run_id=founded.run_id,
            attempt=founded.attempt,
            explicit=founded.explicit,
            settings=settings,
            founded_at=now,
            founded_wall_at=founded.wall_at,
            leases=Leases(settings.lease_s, settings.disconnect_grace_s),
            opening=Opening(Cause.FIRST, "the run begins", now, below_since=now),
        )
        # Every agent that is alive asks within a lease, and must hear of the end: else it would form the run anew.
        self._retention_s = max(retention_s, settings.lease_s)
        self.deadline: float | None = None
        """`next_deadline` as of the last event that was taken."""
        self._effects: list[Effect] = []
        self._agreed: RequestedSettings | None = None
        """What the last new agent asked for: nearly all of them ask for the same."""
        self._starts: dict[str, Start] = {}
        """Of the running round, for those who have asked."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply an event. Raises `ProtocolError`, with nothing changed, if it is refused."""
        self._effects = []
        match event:
            case AgentHeard(agent_id):
                if agent_id in self.run.agents and not self.run.stage.is_end:
                    self._hear(agent_id, now)
            case NodeKnocked(join):
                if not self.run.stage.is_end:
                    self._doubt(admission.doubtful(self.run, join, now), now)
            case AgentDisconnected(agent_id):
                self.run.leases.disconnect(agent_id, now)
                self._lose_corroborated(now)
            case TimePassed():
                pass
            case _:
                self._handle_fact(event, now)
        self.deadline = self.next_deadline()
        if self.deadline is not None and now >= self.deadline:
            self._pass_time(now)
            self.deadline = self.next_deadline()
        return self._effects

    def renew(self, agent_id: str, now: float) -> bool:
        """Take an `AgentHeard` from which nothing but a fresh lease follows. False, with nothing changed: another."""
        run = self.run
        if run.stage.is_end or agent_id in run.doubted or agent_id not in run.agents:
            return False
        run.leases.renew(agent_id, now)
        return True

    def replay(self, fact: Fact | Kept, at: float) -> None:
        """Apply a recorded fact again, or a part of a snapshot."""
        self._effects = []
        if isinstance(fact, Kept):
            snapshot.restore(self.run, fact)
        else:
            self._apply(fact, at)

    def resume(self, now: float) -> None:
        """Give every agent a fresh lease: nothing was heard of any while the server was away."""
        if not self.run.stage.is_end:
            for agent_id in self.run.agents:
                self.run.leases.renew(agent_id, now)
            for agent_id in self.run.doubted:
                self.run.leases.doubt(agent_id, admission.answers_until(self.run, agent_id, now))

    def directive_for(self, agent_id: str, now: float) -> tuple[int, Directive]:
        """The agent's revision and what it must do now. Raises `AgentFenced` if it is not part of the run."""
        agent = self._agent(agent_id)
        return agent.revision, agent.directive or self._implied(agent, now)

    def next_deadline(self) -> float | None:
        """When `TimePassed` is due next, if nothing else happens before."""
        run = self.run
        if run.ended_at is not None:
            return run.ended_at + self._retention_s
        own = completion.deadline(run) if run.stage is Stage.FORMING else run.verdict_at or run.scale_up_at
        lease = run.leases.next_deadline()
        if own is None or lease is None:
            return lease if own is None else own
        return own if own < lease else lease

    # Signs: what follows from silence and from time is a fact, and recorded as such.

    def _pass_time(self, now: float) -> None:
        for _ in range(DUE_AT_ONCE):
            if (fact := self._due(now)) is None:
                break
            self._apply(fact, now)
        ended_at = self.run.ended_at
        if ended_at is not None and now >= ended_at + self._retention_s:
            self._effects.append(ForgetRun(self.run.run_id, self.run.attempt))

    def _due(self, now: float) -> Fact | None:
        run = self.run
        if run.stage.is_end:
            return None
        if lost := run.leases.expired(now):
            return NodeLost(*lost)
        forming_until = completion.deadline(run) if run.stage is Stage.FORMING else None
        if forming_until is not None and now >= forming_until:
            return LastCallEnded() if run.opening.min_since is not None else JoinTimedOut()
        if run.verdict_at is not None and now >= run.verdict_at:
            return CauseNotFound()
        if run.scale_up_at is not None and now >= run.scale_up_at:
            return ArrivalsAdmitted()
        return None

    def _lose_corroborated(self, now: float, reporter: str | None = None) -> None:
        """Absent participants are lost at once if another participant's workers failed: that is why they did."""
        run = self.run
        if not (run.running or run.stopping) or not (run.failed or reporter):
            return
        for agent_id in list(run.leases.absent_since):
            held = agent_id in run.running or agent_id in run.stopping
            others_failed = len(run.failed) > (agent_id in run.failed) or reporter not in (None, agent_id)
            if held and others_failed:
                self._apply(NodeLost(agent_id, "its connection closed and other nodes' workers failed"), now)

    def _hear(self, agent_id: str, now: float) -> None:
        self.run.leases.renew(agent_id, now)
        if agent_id in self.run.doubted:
            self._apply(NodeVouched(agent_id), now)

    def _doubt(self, doubtful: tuple[str, ...], now: float) -> None:
        """One that lives polls at once when its poll is answered."""
        if not doubtful:
            return
        for agent_id in doubtful:
            self.run.leases.doubt(agent_id, admission.answers_until(self.run, agent_id, now))
        self._effects.append(WakeAgents(self.run.run_id, doubtful))
        if fresh := tuple(agent_id for agent_id in doubtful if agent_id not in self.run.doubted):
            self._apply(NodeDoubted(fresh), now)

    # Facts: check, then what they imply, then apply. `_apply` records.

    def _handle_fact(self, fact: Fact, now: float) -> None:
        has_ended = self.run.stage.is_end
        if has_ended and not isinstance(fact, NodeJoined | ArrivalsAdmitted):
            return
        match fact:
            case NodeJoined(join):
                admission.check(self.run, join, self._agreed)
                if has_ended:
                    return  # a delayed join: the agent's Finish stands
                if join.agent_id in self.run.agents and not admission.is_rejoining(self.run, join):
                    if join.agent_id not in self.run.doubted:  # a copy may be late: it proves nothing
                        self.run.leases.renew(join.agent_id, now)
                    return
                if join.agent_id not in self.run.agents:
                    self._agreed = join.settings
                if (replaces := tuple(admission.predecessors(self.run, join))) != fact.replaces:
                    fact = replace(fact, replaces=replaces)
            case NodeLeft(agent_id):
                if agent_id in self.run.departed_ids:
                    return
                self._agent(agent_id)
            case WorkersSucceeded(agent_id, round_):
                if not self._is_news(agent_id, round_) or agent_id not in self.run.running:
                    return  # said before, or too late: the round was opened anew and restarts this node too
            case WorkersFailed(agent_id, round_):
                if not self._is_news(agent_id, round_):
                    return
                if agent_id not in self.run.waiting:  # one that has rejoined waits for the next round, and adds nothing
                    self._lose_corroborated(now, reporter=agent_id)
            case ArrivalsAdmitted():
                if self.run.stage is not Stage.RUNNING or not self.run.waiting or admission.free_seats(self.run) <= 0:
                    raise NobodyWaits(f"no node stands by for a free seat in run {self.run.run_id}")
        self._apply(fact, now)

    def _is_news(self, agent_id: str, round_: int) -> bool:
        """Whether a report about `round_` says something new. Raises `StaleRound` if it is about another round."""
        run, agent = self.run, self._agent(agent_id)
        if agent_id in run.failed or agent_id in run.succeeded:
            return False
        if agent.round != round_ or not self._ended_last(agent):
            raise StaleRound(f"round {round_} of run {run.run_id} is over for node {agent.node_id}")
        return True

    def _ended_last(self, agent: Agent) -> bool:
        """Whether the agent's last round is the run's last one: then the end of its workers is news, also if the report
        was overtaken by the join that followed it."""
        has_joined = agent.state is AgentState.WAITING
        return not has_joined or (self.run.stage is Stage.FORMING and self.run.seat_of(agent.agent_id) is not None)

    def _apply(self, fact: Fact, now: float) -> None:
        self._effects.append(Record(self.run.run_id, self.run.attempt, now, fact))
        match fact:
            case NodeJoined(join, server_addr, replaces):
                for agent_id in replaces:  # before the newcomer counts, and no round completes in between
                    self._depart(self._agent(agent_id), Cause.NODE_LOST, "a new agent of the same node joined", now)
                self._join(join, server_addr, now)
            case NodeLost(agent_id, cause):
                self._depart(self._agent(agent_id), Cause.NODE_LOST, cause, now)
            case NodeLeft(agent_id, reason):
                self._depart(self._agent(agent_id), Cause.NODE_LEFT, reason, now)
            case NodeDoubted(agent_ids):
                self.run.doubted.update(agent_ids)
            case NodeVouched(agent_id):
                self.run.doubted.discard(agent_id)
            case WorkersFailed(agent_id, _, failure):
                self._fail(self._agent(agent_id), failure, now)
            case WorkersSucceeded(agent_id):
                self._succeed(self._agent(agent_id), now)
            case LastCallEnded():
                self._complete(f"last call ended with {completion.count(len(self.run.waiting))}", now)
            case CauseNotFound():
                self._fail_run(now)
            case JoinTimedOut():
                self._end(Stage.FAILED, f"join timeout: {completion.shortfall(self.run)}", None, now)
            case RunStopped(reason):
                self._end(Stage.FAILED, f"stopped by an operator{reason and ': '}{reason}", None, now)
            case RunSuperseded():
                self._end(Stage.FAILED, "every node left, and a new attempt began", None, now)
            case ArrivalsAdmitted():
                self._open(Cause.NODE_ARRIVED, admission.arrivals(self.run), now)
        self._settle(now)

    # Transitions. None draws conclusions: `_apply` does, once, when the fact has been taken in whole.

    def _join(self, join: JoinRequest, server_addr: str, now: float) -> None:
        run = self.run
        agent = run.agents.get(join.agent_id) or Agent(join, server_addr)
        agent.join, agent.server_addr = join, server_addr
        run.move(agent, AgentState.WAITING)
        run.leases.renew(agent.agent_id, now)
        run.doubted.discard(agent.agent_id)
        self._direct(agent, None)

    def _depart(self, agent: Agent, cause: Cause, detail: str, now: float) -> None:
        run, seat = self.run, self.run.seat_of(agent.agent_id)
        was = agent.state
        verb = "left" if cause is Cause.NODE_LEFT else "lost"
        reason = f"node {agent.node_id} {verb}: {detail}"
        run.remove(agent)
        group_rank = seat.group_rank if seat else None
        left = cause is Cause.NODE_LEFT
        run.departures.append(Departure(agent.node_id, agent.agent_id, agent.round, group_rank, left, detail, now))
        self._announce(reason)
        if was is AgentState.RUNNING:
            self._open(cause, reason, now)
        elif seat and run.stage is Stage.FORMING:
            restart_budget.reclassify(run.opening, cause, reason)

    def _fail(self, agent: Agent, failure: Failure, now: float) -> None:
        run, record = self.run, FailureRecord(agent.round, agent.agent_id, now, failure)
        run.note_failure(record, root_cause.root(run.first_of_round, record))
        reason = failure.sentence
        self._announce(reason)
        verdict = restart_budget.verdict(run, failure.exit_code)
        if restart_budget.is_fatal(run, failure.exit_code):
            self._end(Stage.FAILED, f"{reason}; {verdict}", failure, now)
        elif run.stage is Stage.FORMING:
            if run.first_of_round is record:
                restart_budget.explain(run.opening, reason)
        elif verdict is None:
            self._open(Cause.WORKER_FAILURE, reason, now)
        elif root_cause.awaits_cause(run, failure):
            run.verdict_at, run.scale_up_at = run.verdict_at or now + root_cause.CAUSE_WINDOW_S, None
        else:
            self._fail_run(now)

    def _fail_run(self, now: float) -> None:
        """A failure that no restart answers: the run ends over its round's root."""
        assert self.run.first_of_round
        root = self.run.first_of_round.failure
        verdict = restart_budget.verdict(self.run, root.exit_code)
        self._end(Stage.FAILED, f"{root.sentence}; {verdict}", root, now)

    def _succeed(self, agent: Agent, now: float) -> None:
        self.run.move(agent, AgentState.SUCCEEDED)
        self.run.succeeded.add(agent.agent_id)

    def _open(self, cause: Cause, reason: str, now: float) -> None:
        """Open the next round: every participant stops its workers and joins again."""
        run = self.run
        ending, run.round = run.round, run.round + 1
        run.stage, run.scale_up_at, run.verdict_at = Stage.FORMING, None, None
        self._starts = {}
        run.opening = Opening(cause, reason, now, below_since=now)
        stopped = [
            agent for state in (AgentState.RUNNING, AgentState.SUCCEEDED) for agent in run.by_state[state].values()
        ]
        stop = Stop(round=ending, reason=reason)
        run.move_all(stopped, AgentState.STOPPING)
        for agent in stopped:
            self._direct(agent, stop)
        self._wake(stopped)
        self._announce(f"opened: {reason}")

    def _settle(self, now: float) -> None:
        """Draw the conclusions of whatever has just changed."""
        run = self.run
        if run.stage is Stage.FORMING:
            self._watch_minimum(now)
            if reason := completion.completes(run):
                self._complete(reason, now)
        elif run.stage is Stage.RUNNING:
            if run.membership and len(run.succeeded) == len(run.membership.seats):
                self._end(Stage.SUCCEEDED, f"all workers of {completion.count(len(run.succeeded))} exited 0", None, now)
            elif run.verdict_at is None:
                run.scale_up_at = admission.next_scale_up(run, now)

    def _watch_minimum(self, now: float) -> None:
        opening, enough = self.run.opening, len(self.run.waiting) >= self.run.settings.min_nodes
        if enough and opening.min_since is None:
            opening.min_since = now
        elif not enough and opening.min_since is not None:
            opening.min_since, opening.below_since = None, now

    def _complete(self, reason: str, now: float) -> None:
        run = self.run
        restart_budget.settle(run, now)
        ordered = rank_assignment.order(run, admission.choose(run))
        run.membership = rank_assignment.assign(run, ordered, reason)
        run.stage, run.started_at, run.survivors = Stage.RUNNING, now, len(ordered)
        run.succeeded, run.failed, run.first_of_round = set(), set(), None
        run.move_all(ordered, AgentState.RUNNING)
        for agent in ordered:
            agent.round = run.round
            self._direct(agent, None)
        self._wake(ordered)
        self._announce(f"runs on {completion.count(len(ordered))}: {reason}")

    def _end(self, stage: Stage, reason: str, failure: Failure | None, now: float) -> None:
        run = self.run
        run.stage, run.ended_at, run.scale_up_at, run.verdict_at = stage, now, None, None
        run.end_reason = reason
        self._starts = {}
        run.end_failure = run.first_of_round.failure if failure and run.first_of_round else failure
        run.leases.clear()
        run.doubted.clear()
        finish = final_report.finish(run)
        for agent in run.agents.values():
            self._direct(agent, finish)
        self._wake(run.agents.values())
        self._announce(f"run {stage}: {reason}")

    # Helpers.

    def _implied(self, agent: Agent, now: float) -> Directive:
        """The directive of an agent that has been given none: what its state is."""
        if agent.state is AgentState.WAITING:
            return Wait(reason=self._wait_reason(now))
        agent_id = agent.join.agent_id
        if agent_id not in self._starts:
            self._starts[agent_id] = rank_assignment.start(self.run, agent)
        return self._starts[agent_id]

    def _wait_reason(self, now: float) -> str:
        forming = self.run.stage is Stage.FORMING
        return completion.reason(self.run, now) if forming else completion.standby_reason(self.run, now)

    def _agent(self, agent_id: str) -> Agent:
        try:
            return self.run.agents[agent_id]
        except KeyError:
            raise AgentFenced(f"agent {agent_id} is no longer part of run {self.run.run_id}") from None

    def _direct(self, agent: Agent, directive: Directive | None) -> None:
        self.run.revision += 1
        agent.directive, agent.revision = directive, self.run.revision

    def _wake(self, agents: Iterable[Agent]) -> None:
        self._effects.append(WakeAgents(self.run.run_id, tuple([agent.join.agent_id for agent in agents])))

    def _announce(self, reason: str) -> None:
        self._effects.append(Announce(self.run.run_id, self.run.round, reason))
