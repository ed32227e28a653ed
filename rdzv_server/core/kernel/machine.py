"""The mutator of one run: `handle(event, now)` returns the effects, and `next_deadline()` when to send `TimePassed`.

    FORMING --RoundCompleted--> RUNNING --every participant succeeded--> SUCCEEDED
       ^                                      |
       +--failure, loss, leave, arrival,------+--budget spent, fatal exit code--> FAILED
       |  operator's action
       +--JoinTimedOut, LossesRepeated--> FAILED         any --RunStopped--> FAILED

An event that is refused raises a `ProtocolError` and changes nothing. A repeated event is accepted and changes nothing.
"""

from collections.abc import Collection, Iterable, Sequence
from sys import getsizeof
from typing import Any

from msgspec.structs import replace
from rdzv_protocol.errors import AgentFenced
from rdzv_protocol.events import EventKind, RunEvent
from rdzv_protocol.messages import Directive, Drain, Failure, Stop
from rdzv_protocol.settings import RequestedSettings, RunSettings

from rdzv_server.core import events
from rdzv_server.core.effects import Effect, EmitEvent, ForgetRun, Record, WakeAgents
from rdzv_server.core.kernel import (
    admission,
    completion,
    departures,
    duplicate_node_ids,
    failed_rounds,
    final_report,
    finishing,
    kept_failures,
    legal_sizes,
    notices,
    operations,
    progress,
    queries,
    rank_assignment,
    restart_budget,
    silent_runs,
    snapshot,
    worker_reports,
)
from rdzv_server.core.kernel.event_sizes import LONG
from rdzv_server.core.kernel.liveness import Leases, Loss
from rdzv_server.core.kernel.policy import Hooks, Policies, Rule
from rdzv_server.core.kernel.run import (
    Agent,
    AgentState,
    Cause,
    FailureRecord,
    Opening,
    Run,
    Stage,
    remember,
)
from rdzv_server.core.node_history import OF_RUN, Blame, Fault, NodeHistory
from rdzv_server.words import failures, losses, runs
from rdzv_server.words import notices as notice_words
from rdzv_server.words import operations as operation_words

WALL_CLOCK_SLACK_S = 0.5
"""Seconds by which the wall clock must jump for the server to notice, and by which it must differ for a run to follow.

Times that people see are right to a second.
"""
_FORMING, _RUNNING = Stage.FORMING, Stage.RUNNING
_WAITING, _CORDONED = AgentState.WAITING, AgentState.CORDONED
"""Stages that every event is compared with, as constants: looking up a member of an enumeration is slow."""
MOST_DUE_FACTS = 500
"""Most agents that are declared lost at once when many leases end together: meanwhile other runs wait."""


class RunMachine:
    """Mutator of one attempt of a run, and of its policies. Times are in seconds by the server's clock.

    `protocols` says what its methods do for policies and for the rules of the rendezvous.
    """

    def __init__(self, created: events.RunCreated, now: float, retention_s: float, policies: Policies) -> None:
        settings: RunSettings = created.settings
        self.run = Run(
            run_id=created.run_id,
            attempt=created.attempt,
            explicit=created.explicit,
            settings=settings,
            created_at=now,
            wall_clock_ahead=[(now, created.wall_at - now)],
            leases=Leases(settings.lease_s, settings.disconnect_grace_s, created.run_id),
            opening=Opening(Cause.FIRST, runs.BEGINS, now, below_since=now),
            event_number=created.event_number,
            first_event=created.event_number + 1,
        )
        # Every live agent polls within a lease, and must hear of the end. Otherwise it would form the run again.
        self._retention_s = max(retention_s, settings.lease_s)
        self.deadline: float | None = None
        """Value of `next_deadline` after the last event that was handled."""
        self._effects: list[Effect] = []
        """Effects that `handle` returns next: at first those of the run's creation."""
        self.policies = tuple(policy(self, now) for policy in policies)
        self._hooks = Hooks(self.policies)
        self.record_event("run_created", self.run.opening.reason, now)
        self.agreed: RequestedSettings | None = None
        self.agreed_program = ""
        """Settings and program of the last new agent: nearly all agents have the same."""
        self.blamed: list[Blame] = []
        """Blame on nodes for the node history, which the registry has not taken yet."""
        self.is_judged = False
        """Whether the registry may exclude nodes that are blamed: then no round completes before it has decided."""
        self.awaits_verdict = False
        """Whether a node was blamed and the registry has not decided yet: it may exclude a waiting node."""
        self.history = NodeHistory(*OF_RUN)
        """Faults that nodes were blamed for, if they count only in this run: see `Run.is_scoped`."""
        self._snapshot: list[bytes] = []
        """Parts of a snapshot that is being replayed."""

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        """Apply an event. Raises `ProtocolError`, with nothing changed, if it is refused."""
        rule, owner = _RULES.get(type(event)), self
        if rule is None:
            owner, rule = self._rule_for(event)
        assert rule.check or rule.note, f"{event} follows from other events, and does not come from outside"
        fact = rule.check(owner, event, now) if rule.check else None
        if rule.note:
            fact = rule.note(owner, event, now) or fact
        if fact is not None:
            self._apply(fact, now)
        self._complete_if_ready(now)
        self._ask_agents(now)
        self.deadline = self.next_deadline()
        if self.deadline is not None and now >= self.deadline:
            self._pass_time(now)
            self._ask_agents(now)
            self.deadline = self.next_deadline()
        return self._take_effects()

    def _rule_for(self, event: events.Event) -> tuple[Any, Rule]:
        """Return the rule for a kind of event, and its owner.

        The events of a policy that the run does not have are ignored.
        """
        if rule := _RULES.get(type(event)):
            return self, rule
        return self._hooks.rules.get(type(event), (self, _IGNORED))

    def forget(self) -> None:
        """Let go of the policies, which refer to this machine. Then the run's memory is free without a collection."""
        self.policies, self._hooks = (), Hooks(())

    def blame(self, node_id: str, fault: Fault, reason: str) -> None:
        """Blame a node for what it has cost the run. No round completes until the registry has judged the node."""
        self.blamed.append(Blame(node_id, fault, reason))
        self.awaits_verdict = self.is_judged

    def fault(self, name: str) -> Fault:
        return self._hooks.faults.get(name) or Fault(name)

    @property
    def is_unended(self) -> bool:
        """Whether an operator forgot the run before it had ended: then its agents form it again."""
        return False

    def take_blames(self) -> list[Blame]:
        """Return the blame that has not been taken yet, and empty the list."""
        blamed, self.blamed = self.blamed, []
        return blamed

    def _ask_agents(self, now: float) -> None:
        """Send agents the queries that follow from the facts. A replay does not call this."""
        run = self.run
        if notices.may_end(run) or run.notice is not None:
            notices.settle(self, now)
        if run.verdict_at is not None:
            worker_reports.seek_cause(self, now)

    def renew(self, event: events.LeaseRenewed, now: float) -> bool:
        """Note a sign of life, and return whether nothing else follows. If something does, `handle` must note it again.

        The run's deadline stays as it is: when it comes, it may turn out to be too early. If an agent is absent, the
        deadline may become earlier, since this agent is the witness that the end of a grace needs.
        """
        run, agent_id = self.run, event.agent_id
        leases = run.leases
        if run.stage.is_end or agent_id in leases.uncertain or leases.awaits_witness or agent_id not in run.agents:
            return False
        if leases.absent_since:
            return False
        if event.finished is not None and finishing.is_news(run, agent_id, event.finished):
            return False
        for renewed in self._hooks.renewed if event.is_poll else ():
            if renewed(event, now):
                return False
        if self._note_signs(event, now):
            return False
        for deadline in self._hooks.deadline if event.progress else ():
            if (at := deadline()) is not None and (self.deadline is None or at < self.deadline):
                return False
        return True

    def replay(self, fact: events.Fact | events.SnapshotPart, at: float) -> Sequence[Effect]:
        """Apply a recorded fact again, or a part of a snapshot. Return the effects of the fact; a snapshot has none."""
        if isinstance(fact, events.SnapshotPart):
            self._snapshot.append(fact.data)
            if fact.is_last:
                snapshot.restore(self.run, self.policies, b"".join(self._snapshot))
                self._snapshot.clear()
        else:
            self._transit(fact, at)
        return self._take_effects()

    def restart(self, now: float) -> None:
        """Give every agent a fresh lease after a restart of the server; an agent gets a seat only once it is heard."""
        if not self.run.stage.is_end:
            self.run.leases.restart(self.run.agents, now)
            for server_restarted in self._hooks.server_restarted:
                server_restarted(now)
        if self.run.unheard_since is not None:
            self.run.leases.suspect_all()

    def set_wall_clock(self, wall_at: float, now: float) -> list[Effect]:
        """Record the server's wall clock if a run that has not ended has another time."""
        if not self.run.stage.is_end and abs(self.run.wall_clock(now) - wall_at) > WALL_CLOCK_SLACK_S:
            self._transit(events.WallClockSet(wall_at), now)
        return self._take_effects()

    def has_news(self, agent_id: str, revision: int) -> bool:
        """Return whether there is news for the agent, which has seen the directive of `revision`."""
        agent = self.run.agents.get(agent_id)
        return agent is None or agent.revision > revision

    def catch_up(self, agent_id: str, revision: int, round_: int | None) -> bool:
        """Number the directives of an agent, whose workers are of this round, from above `revision`, which it has seen.

        An agent ignores lower revisions. `round_`: None if it is unknown. Return False, with nothing changed, if the
        run has the agent in another round, or has it waiting. A waiting agent does not report its last round. If that
        round is later than the run's, the agent would ignore the next one.
        """
        agent, run = self.run.agents.get(agent_id), self.run
        if agent is None or agent.has_joined or round_ not in (None, agent.round):
            return False
        agent.revision = run.revision = max(run.revision, revision) + 1
        return True

    def directive_for(self, agent_id: str, now: float) -> tuple[int, Directive]:
        """Return the agent's revision and what it must do now. Raises `AgentFenced` if it is not part of the run."""
        agent = self.agent(agent_id)
        directive = agent.directive or self._implied(agent, now)
        if type(directive) is Drain:
            directive = replace(directive, remaining_s=max(0.0, agent.drain_until - now))
        return agent.revision, directive

    def next_deadline(self) -> float | None:
        """Return the time at which `TimePassed` is due next, if nothing else happens before."""
        run = self.run
        if run.ended_at is not None:
            return self._forget_at(run.ended_at)
        if run.unheard_since is not None:
            return silent_runs.deadline(run)
        is_forming = run.stage is _FORMING and not run.held
        own = completion.deadline(run) if is_forming else run.scale_up_at
        if run.verdict_at is not None:
            own = worker_reports.decides_at(run)
        notice = notices.ends_at(run) if notices.may_end(run) else None
        soonest = run.leases.next_deadline()
        if run.cordons and (cordon := operations.next_uncordoning(run)):
            soonest = cordon.until if soonest is None else min(soonest, cordon.until or 0.0)
        warned = finishing.deadline(run) if run.succeeded or run.finished else None
        presumed = completion.presumed_at(run) if is_forming and run.failed and not self.awaits_verdict else None
        for at in (own, run.queries.next_deadline(), notice, warned, presumed):
            if at is not None and (soonest is None or at < soonest):
                soonest = at
        for deadline in self._hooks.deadline:
            if (at := deadline()) is not None and (soonest is None or at < soonest):
                soonest = at
        return soonest

    # Timeouts. A consequence of silence is a fact, and is recorded as one.

    def _pass_time(self, now: float) -> None:
        for _ in range(MOST_DUE_FACTS):
            for attend in self._hooks.attend:
                attend(now)
            if late := self.run.queries.expired(now):
                queries.close(self, self.run.agents[late[0]], late[1], None, now)
            else:
                self.run.leases.settle(now, needs_witness=self.run.stage is _RUNNING)
                if (fact := self._due(now)) is None:
                    break
                self._conclude(fact, now)
            self._complete_if_ready(now)
        ended_at = self.run.ended_at
        if ended_at is not None and now >= self._forget_at(ended_at):
            self._effects.append(ForgetRun(*self.run.key))

    def _conclude(self, fact: events.Fact, now: float) -> None:
        """Apply a fact that follows from the time that has passed."""
        if isinstance(fact, events.RoundCompleted):
            self._complete(fact.reason, now)
            return
        if isinstance(fact, events.NodeLost) and fact.is_expired:
            beside = self._overdue_beside(fact.agent_id, now)
            if beside is not None:
                self.run.leases.suspect(beside)
        self._apply(fact, now)

    @property
    def _may_complete(self) -> bool:
        return self.run.stage is _FORMING and not self.run.held and not self.awaits_verdict

    def _forget_at(self, ended_at: float) -> float:
        at, sooner = ended_at + self._retention_s, self.run.forget_at
        return at if sooner is None else min(at, sooner)

    def _due(self, now: float) -> events.Fact | None:
        """Return the next fact that follows from the time that has passed; None if there is none."""
        run = self.run
        if run.stage.is_end:
            return None
        is_running = run.stage is _RUNNING
        if lost := run.leases.expired(now, needs_witness=is_running):
            return self._loss(lost, now)
        if is_running and (found := silent_runs.due(run, now)):
            return found
        if run.unheard_since is not None:
            return None  # the run does not draw other conclusions
        forming_until = completion.deadline(run) if self._may_complete else None
        if forming_until is not None and now >= forming_until:
            if run.opening.min_since is None:
                return events.JoinTimedOut(completion.not_admitted(run))
            return events.RoundCompleted(completion.expired(run))
        if run.verdict_at is not None and (at := worker_reports.decides_at(run)) is not None and now >= at:
            return events.CauseNotFound()
        for due in self._hooks.due:
            if concluded := due(now):
                return concluded
        if ended := notices.over(run, now):
            return ended
        if run.cordons and (own := operations.next_uncordoning(run)) and now >= (own.until or 0.0):
            return events.NodeUncordoned(operation_words.TIME_OVER, node_id=own.node_id)
        if run.scale_up_at is not None and now >= run.scale_up_at:
            return events.ArrivalsAdmitted()
        return finishing.due(run, now)

    def _loss(self, lost: Loss, now: float) -> events.NodeLost:
        """Return the loss as a fact. The node is blamed unless others vanished or fell silent together with it."""
        is_shared = lost.is_expired and self._overdue_beside(lost.agent_id, now) is not None
        excuse = lost.excuse or (losses.OTHERS_VANISHED if is_shared else "")
        why = losses.excused(lost.cause, excuse)
        is_unheard = lost.agent_id in self.run.leases.unheard
        return events.NodeLost(lost.agent_id, why, bool(excuse), lost.is_expired, is_unheard)

    def _overdue_beside(self, agent_id: str, now: float) -> str | None:
        """Return the first overdue agent of another node than this agent's; None if there is none."""
        agents, node_id = self.run.agents, self.run.agents[agent_id].node_id
        for other in self.run.leases.overdue(now):
            if agents[other].join.node_id != node_id:
                return other
        return None

    def _complete_if_ready(self, now: float) -> None:
        """Complete the round if it is ready. The completion is recorded; the signs of life that decide it are not."""
        if not self._may_complete:
            return
        if self.run.failed:
            for agent_id in completion.presumed_lost(self.run, now):
                excuse = losses.OTHERS_VANISHED if self.run.leases.is_suspect(agent_id) else ""
                self._apply(self._loss(Loss(agent_id, losses.CORROBORATED, excuse), now), now)
        if not self._may_complete:
            return
        if node_id := failed_rounds.lost_too_often(self.run):
            self._apply(events.LossesRepeated(node_id), now)
        elif reason := completion.completes(self.run, now):
            self._complete(reason, now)

    def _complete(self, reason: str, now: float) -> None:
        """Complete the round, or let the first policy that holds it prepare it."""
        for holds_round, prepare_round in self._hooks.holders:
            if holds_round(now):
                prepare_round(now)
                return
        self._apply(events.RoundCompleted(reason), now)

    # Signs, and checks: see `policy.Rule`.

    def _renewed(self, event: events.LeaseRenewed, now: float) -> None:
        if event.agent_id not in self.run.agents or self.run.stage.is_end:
            return
        hooks = self._hooks.renewed if event.is_poll else ()
        facts = [fact for renewed in hooks if (fact := renewed(event, now))]
        for fact in (*facts, *self._note_signs(event, now)):  # after each policy has seen the same run
            self._apply(fact, now)

    def _note_signs(self, event: events.LeaseRenewed, now: float) -> Sequence[events.Fact]:
        """Renew the lease and note what the agent reports. Return the facts that follow from the workers' progress."""
        self.run.leases.renew(event.agent_id, now)
        if event.finished is not None:
            finishing.note(self.run, event.agent_id, event.finished, now)
        if event.progress is None:
            return ()
        progress.note(self.run, event.agent_id, event.progress, now)
        facts: list[events.Fact] = []
        for progressed in self._hooks.progressed:
            if fact := progressed(event.agent_id, event.progress, now):
                facts.append(fact)
        return facts

    def _disconnected(self, event: events.AgentDisconnected, now: float) -> None:
        agent = self.run.agents.get(event.agent_id)
        if agent and event.was_parked:
            self.run.leases.disconnect(agent.agent_id, now, node_id=agent.node_id)
        elif agent:
            self.run.leases.hang_up(agent.agent_id)

    # Facts: they are recorded and applied, and then the machine and its policies settle.

    def _apply(self, fact: events.Fact, now: float) -> None:
        if self.run.stage is _RUNNING and self._may_end_round(fact):
            for before_round_ends in self._hooks.before_round_ends:
                if before := before_round_ends(fact, now):
                    self._transit(before, now)
        self._transit(fact, now)

    def _transit(self, fact: events.Fact, now: float) -> None:
        run = self.run
        self._effects.append(Record(run.run_id, run.attempt, now, fact))
        owner, rule = self._rule_for(fact)
        if rule.apply:
            rule.apply(owner, fact, now)
        self._settle(now)

    def _may_end_round(self, fact: events.Fact) -> bool:
        if isinstance(fact, events.WorkersSucceeded):
            return len(self.run.succeeded) + 1 == len(self.run.seats)
        if isinstance(fact, events.NodeJoined):
            return bool(fact.replaces)
        return self._rule_for(fact)[1].may_end_round

    def _events_dropped(self, fact: events.EventsDropped, now: float) -> None:
        run = self.run
        run.event_sizes.drop(run.first_event, fact.below, run.event_number)
        run.first_event = max(run.first_event, fact.below)

    def note_training(self) -> None:
        self.run.training_round = self.run.round

    def note_steps(self, step: int | None, checkpoint_step: int | None, *, fall: bool) -> None:
        run = self.run
        run.steps_fall = run.steps_fall or fall
        if checkpoint_step is not None:
            run.checkpoint_step = max(checkpoint_step, run.checkpoint_step or 0)
        if step is not None:
            run.step_of_round, run.highest_step = step, max(step, run.highest_step or 0)

    def _wall_clock_set(self, fact: events.WallClockSet, now: float) -> None:
        remember(self.run.wall_clock_ahead, (now, fact.wall_at - now))

    def _joined(self, fact: events.NodeJoined, now: float) -> None:
        run, join = self.run, fact.join
        if fact.is_scoped:  # before a node is blamed because of its report
            run.is_scoped = True
        for agent_id in fact.replaces:  # before the newcomer counts
            departures.replaced(self, fact, self.agent(agent_id), now)
        if join.unfit:
            departures.refuse_unfit(self, join, now)
            return
        agent = run.agents.get(join.agent_id)
        is_new = agent is None
        if agent is None:
            agent = Agent(join, fact.server_addr)
            self.agreed, self.agreed_program = join.settings, join.program
            if join.command and run.command_of not in run.agents:
                run.command_of = join.agent_id
            elif warning := admission.differs(run, join):
                self.record_event("warning", warning, now, node_id=join.node_id)
            self.record_event("node_joined", runs.joined(join.node_id), now, node_id=join.node_id)
            run.unfit.pop(join.node_id, None)
        else:
            agent.join, agent.server_addr = join, fact.server_addr
        if fact.cordon:
            operations.keep_out(self, fact.cordon)
        if join.node_id in run.cordons:
            run.move(agent, AgentState.CORDONED)
        else:
            run.move(agent, _WAITING)
            run.opening.joined_at = now
        run.leases.renew(join.agent_id, now)
        if is_new and run.leases.spared:
            silent_runs.newcomer(run)
        self._note_directives([agent], None)

    def _timed_out(self, fact: events.JoinTimedOut, now: float) -> None:
        self.run.join_timed_out = True
        self.end(Stage.FAILED, runs.join_timeout(completion.shortfall(self.run, fact.refused)), None, now)

    def _losses_repeated(self, fact: events.LossesRepeated, now: float) -> None:
        self.run.no_progress = True
        self.end(Stage.FAILED, failed_rounds.repeated_losses(self.run, fact.node_id), None, now)

    def _superseded(self, fact: events.RunSuperseded, now: float) -> None:
        """End the run, in which no agent is heard.

        Silent agents that are alive join the new attempt when they return.
        """
        silent = list(self.run.agents.values())
        why = losses.excused(losses.SILENT, losses.NO_AGENT_HEARD)
        for agent in silent:
            self.depart(agent, Cause.NODE_LOST, why, now, is_blameless=True)
        self.end(Stage.FAILED, runs.superseded(has_agents=bool(silent)), None, now)

    def _completed(self, fact: events.RoundCompleted, now: float) -> None:
        run = self.run
        restart_budget.settle(run, now)
        ordered, before = rank_assignment.order(run, admission.choose(run)), run.seats
        run.membership = rank_assignment.assign(run, ordered, fact.reason, now)
        run.stage, run.started_at, run.survivors = Stage.RUNNING, now, len(ordered)
        run.succeeded, run.succeeded_at, run.failed, run.first_of_round = set(), {}, set(), None
        run.doubt, run.doubts = "", 0
        run.refused.clear()
        run.move_all(ordered, AgentState.RUNNING)
        for agent in ordered:
            agent.round = run.round
        self.direct(ordered, None)
        opening = run.opening
        self.record_event(
            "round_started", fact.reason, now, cause=opening.cause.value, nodes=len(ordered),
            charged=opening.cause.is_charged, world_size=run.membership.world_size,
            duration_s=now - opening.at,
        )  # fmt: skip
        for node_id, warning in duplicate_node_ids.new_warnings(run, before):
            self.record_event("warning", warning, now, node_id=node_id)

    # Steps that several facts share.

    def depart(self, agent: Agent, cause: Cause, detail: str, now: float, *, is_blameless: bool = False) -> None:
        departures.depart(self, agent, cause, detail, now, is_blameless=is_blameless)

    def drain(self, agent: Agent, until: float, cause: Cause, reason: str, now: float, *, unfit: bool = False) -> None:
        departures.drain(self, agent, until, cause, reason, now, unfit=unfit)

    def note_unfit(self, node_id: str, reason: str) -> None:
        departures.note_unfit(self, node_id, reason)

    def open_round(self, cause: Cause, reason: str, now: float) -> None:
        run, root = self.run, self.run.first_of_round
        seeks_cause = cause.is_failure and root is not None and root.failure.consequence
        if run.notice_since is not None:
            self.record_event("notice_ended", notice_words.cut_short(reason), now)
        run.notice_since = run.replacement = None
        ending, run.round = run.round, run.round + 1
        run.stage, run.scale_up_at, run.verdict_at = Stage.FORMING, None, None
        run.unheard_since, run.leases.awaits_witness = None, False
        run.refused.clear()
        progress.clear(run)
        run.finished.clear()
        run.still_running = ""
        for round_opened in self._hooks.round_opened:
            round_opened(cause, now)
        wait_s = failed_rounds.backoff_s(run, now) if cause.is_failure else 0.0
        run.opening = Opening(cause, reason, now, below_since=now, backoff_until=now + wait_s if wait_s else None)
        stopped = [
            agent for state in (AgentState.RUNNING, AgentState.SUCCEEDED) for agent in run.by_state[state].values()
        ]
        run.move_all(stopped, AgentState.STOPPING)
        self.direct(stopped, Stop(round=ending, reason=reason, seeks_cause=seeks_cause))
        self.record_event("round_opened", reason, now, cause=cause.value)

    def _settle(self, now: float) -> None:
        """Decide what follows for the run from the fact that was just applied."""
        run = self.run
        if run.leaving and run.stage is not _RUNNING:
            notices.release(self, now)
        if run.stage is _FORMING:
            self._watch_minimum(now)
            if run.settings.fixed_nodes is not None and (why := completion.too_few_fit(run, run.settings.fixed_nodes)):
                self.end(Stage.FAILED, why, None, now)
        elif run.stage is _RUNNING:
            if len(run.succeeded) == len(run.seats):
                self.end(Stage.SUCCEEDED, runs.succeeded(len(run.succeeded), run.doubt, run.doubts - 1), None, now)
            elif run.verdict_at is None:
                was, run.scale_up_at = run.scale_up_at, admission.next_scale_up(run, now)
                if was is None and run.scale_up_at is not None and run.settings.scale_up == "on-notice":
                    notices.given(self, completion.arrivals(run), run.scale_up_at - now, now)
        for settle in self._hooks.settle:
            settle(now)

    def _watch_minimum(self, now: float) -> None:
        opening, enough = self.run.opening, len(self.run.waiting) >= legal_sizes.smallest(self.run.settings)
        if enough and opening.min_since is None:
            opening.min_since = now
        elif not enough and opening.min_since is not None:
            opening.min_since, opening.below_since = None, now

    def hold(self, why: str) -> None:
        self.run.held = why

    def release(self) -> None:
        self.run.held = ""

    def hear(self, agent_id: str, now: float) -> None:
        self.run.leases.renew(agent_id, now)

    def workers_succeeded(self, agent_id: str) -> None:
        for workers_succeeded in self._hooks.workers_succeeded:
            workers_succeeded(agent_id)

    def note_root(self, record: FailureRecord) -> None:
        restart_budget.note_root(self.run, record)

    def replace_node(self, node_id: str, fault: Fault, why: str, now: float) -> None:
        notices.replace_node(self, node_id, fault, why, now)

    def fail(self, failure: Failure, verdict: restart_budget.Verdict, now: float) -> None:
        self.run.no_progress = verdict.no_progress
        self.end(Stage.FAILED, failures.ends_run(failure.sentence, verdict.reason), failure, now)

    def end(self, stage: Stage, reason: str, failure: Failure | None, now: float) -> None:
        run = self.run
        run.stage, run.ended_at, run.scale_up_at, run.verdict_at = stage, now, None, None
        run.end_reason, run.notice_since, run.replacement, run.still_running = reason, None, None, ""
        run.unheard_since, run.held = None, ""
        run.finished.clear()
        run.leaving.clear()
        run.end_failure = run.first_of_round.failure if failure and run.first_of_round else failure
        for run_ended in self._hooks.run_ended:
            run_ended(now)
        run.leases.clear()
        told = {name: value for report in self._hooks.report for name, value in report().items()}
        self.direct(run.agents.values(), final_report.finish(run, **told))
        queries.close_all(self, run.agents.values(), runs.ended(run.run_id, stage, reason), now)
        ended_by = final_report.details(run.end_failure) if run.end_failure else None
        kind: EventKind = "run_succeeded" if stage is Stage.SUCCEEDED else "run_failed"
        of_event = {name: value for name, value in told.items() if name in RunEvent.__struct_fields__}
        self.record_event(kind, reason, now, failure=ended_by, **of_event)

    # Helpers.

    def _implied(self, agent: Agent, now: float) -> Directive:
        """Return the directive that an agent's state implies, for an agent without a directive of its own."""
        if agent.state is _WAITING:
            forming = self.run.stage is _FORMING
            return completion.wait(self.run, now) if forming else completion.standby(self.run, now)
        if agent.state is _CORDONED:
            return completion.cordoned(self.run, agent.node_id, now)
        return rank_assignment.start(self.run, agent.join.agent_id)

    def agent(self, agent_id: str) -> Agent:
        try:
            return self.run.agents[agent_id]
        except KeyError:
            raise AgentFenced(self._why_gone(agent_id)) from None

    def _why_gone(self, agent_id: str) -> str:
        for gone in reversed(self.run.departures):
            if gone.agent_id == agent_id:
                return losses.gone(gone.node_id, self.run.run_id, gone.cause, left=gone.left)
        return losses.not_part(agent_id, self.run.run_id)

    def direct(self, agents: Collection[Agent], directive: Directive | None) -> None:
        self._note_directives(agents, directive)
        self.wake(agents)

    def _note_directives(self, agents: Collection[Agent], directive: Directive | None) -> None:
        before = self.run.revision
        for revision, agent in enumerate(agents, before + 1):
            agent.directive, agent.revision = directive, revision
        self.run.revision = before + len(agents)

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def wake(self, agents: Iterable[Agent]) -> None:
        self._effects.append(WakeAgents(self.run.run_id, tuple([agent.join.agent_id for agent in agents])))

    def record_event(self, kind: EventKind, reason: str, now: float, **more: Any) -> None:
        run = self.run
        run.event_number += 1
        if "failure" in more or len(reason) > LONG:
            self._note_large_event(reason, more.get("failure"))
        more.setdefault("round", run.round)
        event = RunEvent(
            number=run.event_number, run_id=run.run_id, attempt=run.attempt, kind=kind, reason=reason,
            at=run.wall_clock(now), **more,
        )  # fmt: skip
        self._effects.append(EmitEvent(event))
        for on_event in self._hooks.on_event:
            on_event(event, now)

    def _note_large_event(self, reason: str, failure: Failure | None) -> None:
        size = getsizeof(reason) + (kept_failures.size_of(failure) if failure else 0)
        self.run.event_sizes.add(self.run.event_number, size)

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _as_it_is(machine: RunMachine, event: Any, now: float) -> Any:
    return event


def _nothing(machine: RunMachine, event: Any, now: float) -> None:
    return None


_IGNORED = Rule(_nothing)

_RULES: dict[type[events.Event], Rule] = {
    events.NodeJoined: Rule(admission.check_join, RunMachine._joined, admission.note_join),
    events.NodeLost: Rule(apply=departures.lost),
    events.ContactLost: Rule(apply=silent_runs.lost, may_end_round=False),
    events.ContactRegained: Rule(apply=silent_runs.regained, may_end_round=False),
    events.RunDeserted: Rule(_as_it_is, silent_runs.deserted),
    events.NodeLeft: Rule(departures.check_leave, departures.left),
    events.LeaveAnnounced: Rule(notices.check, notices.announced, notices.heard),
    events.NoticeEnded: Rule(apply=notices.ended),
    events.WorkersFailed: Rule(worker_reports.check_failure, worker_reports.failed, worker_reports.note_failure),
    events.WorkersSucceeded: Rule(worker_reports.check_success, worker_reports.succeeded, worker_reports.note_success),
    events.CauseNotFound: Rule(apply=worker_reports.end_or_restart),
    events.WorkersStillRun: Rule(apply=finishing.warned, may_end_round=False),
    events.RoundCompleted: Rule(apply=RunMachine._completed),
    events.JoinTimedOut: Rule(apply=RunMachine._timed_out),
    events.LossesRepeated: Rule(apply=RunMachine._losses_repeated),
    **{fact: action.rule for fact, action in operations.BY_FACT.items()},
    events.RunSuperseded: Rule(_as_it_is, RunMachine._superseded),
    events.EventsDropped: Rule(_as_it_is, RunMachine._events_dropped, may_end_round=False),
    events.WallClockSet: Rule(apply=RunMachine._wall_clock_set),
    events.LogAsked: Rule(queries.check_log, note=queries.ask_for_log),
    events.DescriptionAsked: Rule(queries.check_description, note=queries.ask_for_description),
    events.QueryAnswered: Rule(note=queries.answered),
    events.LeaseRenewed: Rule(note=RunMachine._renewed),
    events.AgentDisconnected: Rule(note=RunMachine._disconnected),
    events.TimePassed: _IGNORED,
}
"""Rules of the run's own events. `Hooks.rules` has the rules of the policies' events."""
