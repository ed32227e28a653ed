"""A year on our cores: the server's and the agents' state machines, unchanged, in simulated time.

Only what happens around faults is simulated, message by message. Quiet time is skipped: the lease of a healthy agent is
renewed forever. When an agent becomes silent, it gets back the time at which it would have polled last.
docs/development/adr/0048-simulated-year.md says what else is left out.
"""

from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import groupby
from math import inf
from operator import itemgetter
from random import Random
from typing import Any

from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import (
    AnswerRequest,
    Assignment,
    Directive,
    Failure,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    Start,
    Stop,
    Wait,
)
from rdzv_protocol.queries import Noticed, Query
from rdzv_protocol.timing import HOLDS_PER_LEASE

from benchmarks.year.agents import Agent, Agents, Node, Pair
from benchmarks.year.faults import Faults
from benchmarks.year.invariants import check_holder, check_quiet, check_sums
from benchmarks.year.model import Costs, Ledger, Policy, Year, pool_size
from benchmarks.year.trace import DAY_S, DAYS, Fault
from node_agent.kernel.core import events as agent_events
from node_agent.kernel.core.effects import Ask, CheckNode, Exit, StartWorkers, StopWorkers
from node_agent.kernel.core.effects import Effect as AgentEffect
from rdzv_server.core import events
from rdzv_server.core.effects import Effect, EmitEvent, Record, WakeAgents
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.run import Cause, Run, Stage
from rdzv_server.core.policies import time_ledger
from rdzv_server.core.runs.registry import Registry

RUN_ID = "year"
LATENCY_S = 0.002
"""Latency of a message, in either direction."""
SERVICE_RESTART_S = 5.0
"""Seconds until the service manager starts an agent again after its exit, or after its node's return."""
STILL_BAD = "a bad node, once more"
QUIET_S = 300.0
"""Seconds without an event after which every agent must have its place."""


class Simulation:
    """One run of `nodes` nodes over `days` days, with these faults of the pool's nodes.

    A node with a fault that began before these days is out until it is repaired.
    """

    def __init__(
        self, nodes: int, faults: list[Fault], policy: Policy, costs: Costs, *, seed: int = 0, days: float = DAYS
    ) -> None:
        self.now = 0.0
        self.registry = Registry(retention_s=3600.0, exclusion=policy.exclusion)
        self.policy, self.costs = policy, costs
        self.pool = [Node(index) for index in range(pool_size(nodes, policy))]
        self.year = Year(nodes, days, Ledger(costs, nodes, policy.survivors))
        self._agents = Agents()
        self._settings = policy.settings(nodes)
        self._rng = Random(f"year {seed}")
        self._end_s = days * DAY_S
        self._times: list[float] = []
        """Heap of the times of the calls, each time once."""
        self._due: dict[float, list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        """Calls by their time."""
        self._by_agent: dict[str, Node] = {}
        self._started: set[int] = set()
        """Nodes whose workers of this round have started."""
        self._training_round = 0
        """Round whose workers take steps; 0 if none do."""
        self._began: dict[int, float] = {}
        """Time at which the workers of the latest round that came so far began to take steps, by the round's number."""
        self._stuck: dict[int, float] = {}
        """Nodes that keep the running round from taking steps, each with the time since then."""
        self._silent: dict[str, float] = {}
        self._armed_s = inf
        self._awaits_person = False
        self._holders: dict[int, str] = {}
        self.run: Run | None = None
        """Latest attempt."""
        self._machine: RunMachine | None = None
        self._is_accounted = False
        self._faults = Faults(self)
        self._faults.plan(faults)

    def play(self) -> Year:
        """Play the year. Raises `Violation`."""
        for node in self.pool:
            self.at(node.down_until + SERVICE_RESTART_S if node.down_until else 0.0, self._start_agent, node)
        while self._times and self._times[0] <= self._end_s:
            at_s = heappop(self._times)
            if at_s - self.now > QUIET_S:
                self._check_quiet()
            self.now = at_s
            self._agents.pass_time(at_s)
            for call, args in self._due[at_s]:  # also the calls that are added meanwhile
                call(*args)
                if not self._is_accounted:
                    self._account()
            del self._due[at_s]
        self.now = self._end_s
        self._finish()
        return self.year

    # Time.

    def at(self, when_s: float, call: Callable[..., None], *args: Any) -> None:
        due = self._due.get(when_s)
        if due is None:
            due = self._due[when_s] = []
            heappush(self._times, when_s)
        due.append((call, args))

    def later(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay_s, call, *args)

    def _together(self, when_s: float, call: Callable[[list[Any]], None], items: list[Any]) -> None:
        """Handle the items together with those that the same call handles at this time, after them."""
        due = self._due.get(when_s)
        if due and due[-1][0] == call:
            due[-1][1][0].extend(items)
        elif items:
            self.at(when_s, call, items)

    # Agents.

    def _start_agent(self, node: Node) -> None:
        if node.agent is not None or self.now < node.down_until or self._awaits_person:
            return
        node.starts += 1
        node.hears, node.due_s, node.report = True, inf, None
        join = JoinRequest(
            run_id=RUN_ID,
            agent_id=f"{node.name}-{node.starts}",
            node_id=node.name,
            after_round=0,
            addr=node.name,
            port=1 + node.starts % 60_000,
            local_world_size=1,
            settings=self._settings,
            explicit_run_id=True,
            drains=True,
            queries=() if self.policy.notice_s is None else ("notice",),
        )
        node.agent = agent = self._agents.start(join, checks=self.policy.found > 0)
        self._perform([(node, agent)], agent.handle_alike("started", agent_events.Started))

    def _feed(self, node: Node, agent: Agent, event: agent_events.Event) -> None:
        """Let the node's agent handle an event, if it is still this agent."""
        if node.agent is agent:
            self._perform([(node, agent)], agent.handle(event))

    def _perform(self, those: list[Pair], effects: list[AgentEffect]) -> None:
        """Perform the same effects for all these agents, which are in one state."""
        for effect in effects:
            _PERFORM[type(effect)](self, those, effect)
        self._arm_agents(those)

    def _arm_agents(self, those: list[Pair]) -> None:
        at = those[0][1].state.deadline
        if at is not None:
            due = [(node, agent) for node, agent in those if at < node.due_s and node.agent is agent]
            for node, _ in due:
                node.due_s = at
            self._together(max(at, self.now), self._deadlines, due)

    def _handle_alike(
        self, those: Iterable[Pair], name: Hashable, make: Callable[..., agent_events.Event], *args: Any
    ) -> None:
        """Let the agents handle the event that `make` creates. Neighbours in one state are handled together."""
        group, effects = list[Pair](), list[AgentEffect]()
        for pair in those:
            found = pair[1].handle_alike(name, make, *args)
            if found is not effects:
                if group:
                    self._perform(group, effects)
                group, effects = [], found
            group.append(pair)
        if group:
            self._perform(group, effects)

    def _deadlines(self, due: list[Pair]) -> None:
        for node, agent in due:
            if node.agent is not agent:
                continue
            node.due_s, at = inf, agent.state.deadline
            if at is None or not node.hears:
                continue
            if at <= self.now:
                self._handle_alike([(node, agent)], "time passed", agent_events.TimePassed)
            else:
                self._arm_agents([(node, agent)])

    def _polls(self, those: list[Pair], poll: PollRequest) -> None:
        for node, _ in those:
            node.parked = poll
        asked = [(node, agent, poll) for node, agent in those if node.hears]
        self._together(self.now + LATENCY_S, self._asked, asked)

    def _joins(self, those: list[Pair], another: JoinRequest) -> None:
        asked = []
        for node, agent in those:
            node.parked = join = agent.own_join(another)
            self._by_agent[join.agent_id] = node
            if node.hears:
                asked.append((node, agent, join))
        self._together(self.now + LATENCY_S, self._asked, asked)

    def _reports(self, those: list[Pair], report: ReportRequest) -> None:
        for node, agent in those:
            node.report = report
            if node.hears:
                self.later(LATENCY_S, self._reported, node, agent, report)

    def _tells(self, those: list[Pair], told: LeaveRequest | AnswerRequest) -> None:
        for node, _ in those:
            if node.hears:
                self.later(LATENCY_S, self._told, told)

    def _stops_workers(self, those: list[Pair], _: StopWorkers) -> None:
        round_ = those[0][1].machine.round
        stopped = [(node, agent, round_) for node, agent in those]
        has_steps = self.now - self._began.get(round_, self.now) > self.costs.step_s
        save_s = self.costs.save_s if has_steps and self.policy.survivors else 0.0
        self._together(self.now + self.costs.stop_s + save_s, self._workers_stopped, stopped)

    def _checks(self, those: list[Pair], _: CheckNode) -> None:
        self._together(self.now + self.costs.check_s, self._checked, list(those))

    def _asks_workers(self, those: list[Pair], ask: Ask) -> None:
        saved = agent_events.Answer(ask.query.number, Noticed(listening=1, acknowledged=1))
        for node, agent in those:
            self.later(self.costs.save_s, self._feed, node, agent, saved)

    def _checked(self, checked: list[Pair]) -> None:
        for node, agent in checked:
            if self.now < node.found_until:
                self._feed(node, agent, agent_events.NodeChecked("a GPU is broken"))
            elif node.agent is agent:
                self._handle_alike([(node, agent)], "fit", agent_events.NodeChecked, "")

    def _exits(self, those: list[Pair], exit_: Exit) -> None:
        """Let the service manager start the agents again. A node to be replaced returns once it is repaired."""
        for node, _ in those:
            self.ends(node)
            self.restarts_agent(node, node.found_until if exit_.code is ExitCode.NODE_UNFIT else self.now)

    def ends(self, node: Node) -> None:
        """End the agent's process and its workers."""
        if node.agent is not None:
            self._by_agent.pop(node.agent.agent_id, None)
        node.agent, node.parked, node.assignment = None, None, None

    def restarts_agent(self, node: Node, at_s: float) -> None:
        """Let the service manager start the agent some seconds after this time."""
        self.at(at_s + SERVICE_RESTART_S, self._start_agent, node)

    # Workers.

    def _start_workers(self, those: list[Pair], _: StartWorkers) -> None:
        for node, _agent in those:
            self._workers_start(node)

    def _workers_start(self, node: Node) -> None:
        run, assignment = self.run, node.offered
        assert run and run.membership and assignment
        node.assignment = assignment
        if assignment.round != run.round or run.stage is not Stage.RUNNING:
            return  # the agent has heard too late, and will hear of the end
        holder = self._holders.setdefault(assignment.group_rank, node.name)
        check_holder(run, assignment.group_rank, holder, node.name)
        self._started.add(node.index)
        if len(self._started) == len(run.membership.seats):
            key = (run.attempt, run.round)
            self.later(self.costs.start_s, self._training_begins, key)
        if self.now < node.bad_until:
            self.later(self.costs.start_s * self._rng.uniform(0.5, 1.0), self.fails, node, assignment, STILL_BAD)

    def _training_begins(self, key: tuple[int, int]) -> None:
        run = self.run
        if run and (run.attempt, run.round) == key and run.stage is Stage.RUNNING and run.membership:
            self._training_round, self._is_accounted = run.round, False
            self._began = {run.round: self.now}
            self.year.ledger.on(len(run.membership.seats))

    def _workers_stopped(self, stopped: list[tuple[Node, Agent, int]]) -> None:
        for round_, those in groupby(stopped, key=itemgetter(2)):
            there = [(node, agent) for node, agent, _ in those if node.agent is agent]
            for node, _ in there:
                node.assignment = None
            self._handle_alike(there, ("stopped", round_), agent_events.WorkersStopped, round_)

    def fails(self, node: Node, assignment: Assignment, why: str) -> None:
        """Let a worker end with an error, if its round still runs."""
        if node.assignment is not assignment or node.agent is None:
            return
        if why == STILL_BAD:
            self.year.ledger.blame(STILL_BAD, self.now)
        failure = Failure(
            node_id=node.name,
            rank=assignment.first_rank,
            local_rank=0,
            pid=1,
            exit_code=1,
            cause="exit code 1",
            error=why,
        )
        self._feed(node, node.agent, agent_events.WorkerFailed(assignment.round, failure))

    # The server.

    def _asked(self, asked: list[tuple[Node, Agent, JoinRequest | PollRequest]]) -> None:
        answered: list[Node] = []
        for node, agent, request in asked:
            if node.agent is not agent or node.parked is not request or not node.hears:
                continue
            if type(request) is PollRequest and (run := self._lives_on_in(agent.agent_id)):
                if self._has_changed(run, agent, request):
                    answered.append(node)
            else:
                self._reply(answered)
                answered = []
                self._take(node, agent, request)
                if not self._is_accounted:
                    self._account()
        self._reply(answered)

    def _machine_of(self, agent_id: str) -> RunMachine:
        """Return the attempt of the agent, otherwise the latest. Raises `ProtocolError` if there is none."""
        machine = self._machine
        if machine is not None and agent_id in machine.run.agents:
            return machine
        return self.registry.machine_of(RUN_ID, agent_id)

    def _has_changed(self, run: Run, agent: Agent, poll: PollRequest) -> bool:
        """Return whether the server answers the poll at once."""
        if not poll.hold:
            return True
        part, queries = run.agents.get(agent.agent_id), run.queries
        if part is None or part.revision > agent.revision:
            return True
        return bool(queries.by_agent) and queries.has_changed(agent.agent_id, poll.asked)

    def _take(self, node: Node, agent: Agent, request: JoinRequest | PollRequest) -> None:
        """Let the server handle a join or a poll. It answers at once if the agent has something to do."""
        try:
            if isinstance(request, JoinRequest):
                self._tell(events.NodeJoined(request, "server"))
            else:
                self._sign(agent.agent_id)
            run = self._machine_of(agent.agent_id).run
        except ProtocolError as error:
            node.parked = None
            self.later(LATENCY_S, self._feed, node, agent, agent_events.Answered(error))
            return
        if isinstance(request, PollRequest):
            holds = not self._has_changed(run, agent, request)
        else:
            part = run.agents.get(agent.agent_id)
            holds = agent.machine.outages.is_known and part is not None and part.has_joined
        if not holds:
            self._reply([node])

    def _reported(self, node: Node, agent: Agent, request: ReportRequest) -> None:
        """Let the server accept or reject the report. Either way the agent has its answer after that."""
        self._told(request)
        if node.agent is agent:
            node.report = None
        self.later(LATENCY_S, self._feed, node, agent, agent_events.Reported(request.round))

    def _told(self, request: ReportRequest | LeaveRequest | AnswerRequest) -> None:
        try:
            match request:
                case ReportRequest(failure=Failure() as failure):
                    self._tell(events.WorkersFailed(request.agent_id, request.round, failure))
                case LeaveRequest():
                    self._tell(events.NodeLeft(request.agent_id, request.reason, request.unfit))
                case AnswerRequest():
                    self._tell(events.QueryAnswered(request.agent_id, request.number, request.answer))
        except ProtocolError:
            pass  # stale: the round is over

    def _tell(self, event: events.Event) -> None:
        _, effects = self.registry.handle(RUN_ID, event, self.now)
        if agent_id := getattr(event, "agent_id", None) or (event.join.agent_id if hasattr(event, "join") else None):
            self._renew_for_good(agent_id)
        self._carry_out(effects)

    def _carry_out(self, effects: list[Effect]) -> None:
        self._is_accounted &= self.year.ledger.phase != "waiting"  # a join may end this phase
        for effect in effects:
            if type(effect) is Record:
                continue  # most effects are
            match effect:
                case WakeAgents(agent_ids=agent_ids):
                    woken = [node for agent_id in agent_ids if (node := self._by_agent.get(agent_id))]
                    self._reply([node for node in woken if node.parked is not None and node.hears])
                case EmitEvent(event):
                    self._happened(event.kind, event.cause)
        self._arm()

    def _happened(self, kind: str, cause: str | None) -> None:
        self.year.kinds[kind] += 1
        self._is_accounted = False
        ledger = self.year.ledger
        if kind == "notice_given":
            ledger.save(self.now)
        if kind == "round_opened" and cause == Cause.NODE_ARRIVED:
            ledger.blame("a node that is back", self.now)
        if kind == "run_created":
            self._machine = self.registry.machine_of(RUN_ID, "")
            self.run = self._machine.run
        if kind in ("round_opened", "run_failed"):
            self._started, self._holders, self._stuck = set(), {}, {}
            self._training_round = 0
        elif kind == "round_started":
            self._started, self._holders, self._stuck = set(), {}, {}
            self.year.rounds += 1
            self.year.restarts_by[ledger.cause] += 1
        if kind == "run_failed" and not self._awaits_person:
            self._needs_person()
            self._began = {}

    def _reply(self, nodes: list[Node]) -> None:
        """Answer the latest requests of the nodes' agents with their present directives."""
        answers = []
        for node in nodes:
            if node.agent is not None and node.parked is not None:
                node.parked = None
                answers.append((node, node.agent, node.agent.agent_id))
        self._together(self.now + LATENCY_S, self._answered, answers)

    def _answered(self, answers: list[tuple[Node, Agent, str]]) -> None:
        group, effects = list[Pair](), list[AgentEffect]()
        for node, agent, agent_id in answers:
            if node.agent is not agent:
                continue
            if not node.hears:
                node.parked = PollRequest(run_id=RUN_ID, agent_id=agent_id, revision=0)  # lost on its way: asked again
                continue
            found = self._answer(node, agent, agent_id)
            if found is not effects:
                if group:
                    self._perform(group, effects)
                group, effects = [], found
            group.append((node, agent))
        if group:
            self._perform(group, effects)

    def _answer(self, node: Node, agent: Agent, agent_id: str) -> list[AgentEffect]:
        """Return the effects of the server's answer on the agent."""
        try:
            machine = self._machine_of(agent_id)
            revision, directive = machine.directive_for(agent_id, self.now)
        except ProtocolError as error:
            return agent.handle(agent_events.Answered(error))
        queries = machine.run.queries.of(agent_id, self.now) if machine.run.queries.by_agent else ()
        name: Hashable = None
        if isinstance(directive, Stop):
            name = id(directive)
        elif isinstance(directive, Start):
            node.offered = directive.assignment
            name = -directive.assignment.round
        elif isinstance(directive, Wait):
            name = directive
        if name is None or queries or revision < agent.revision:
            return agent.handle(self._reply_with(revision, directive, queries))
        effects = agent.handle_alike(name, self._reply_with, revision, directive, queries)
        agent.revision = revision
        return effects

    def _reply_with(self, revision: int, directive: Directive, queries: tuple[Query, ...]) -> agent_events.Answered:
        lease_s = self.policy.lease_s
        return agent_events.Answered(
            Reply(epoch="1", revision=revision, lease_s=lease_s, directive=directive, queries=queries)
        )

    def _arm(self) -> None:
        at = self.registry.next_deadline()
        if at is not None and at < self._armed_s:
            self._armed_s = at
            self.at(max(at, self.now), self._pass_time)

    def _pass_time(self) -> None:
        self._armed_s = inf
        self._carry_out(self.registry.pass_time(self.now))

    # Renewal of leases.

    def _sign(self, agent_id: str) -> None:
        """Renew the lease of an agent that polls. Raises `ProtocolError` if it is not in the run."""
        sign = events.LeaseRenewed(agent_id)
        if not self._machine_of(agent_id).renew(sign, self.now):
            self._tell(sign)
        self._renew_for_good(agent_id)

    def _lives_on_in(self, agent_id: str) -> Run | None:
        """Return the run, if a poll would only renew a lease that the agent already has; otherwise None."""
        run = self.run
        lives_on = run and run.leases.renewed_at.get(agent_id) == inf and agent_id not in run.leases.uncertain
        return run if lives_on else None

    def _renew_for_good(self, agent_id: str) -> None:
        """Renew the lease of a healthy agent forever: it would poll twice in each lease without another effect."""
        node, run = self._by_agent.get(agent_id), self.run
        if run and node and node.hears and agent_id in run.leases.renewed_at:
            run.leases.renewed_at[agent_id] = inf
            run.leases.renewed_at.move_to_end(agent_id)
            run.leases.heard_at = inf

    def silence(self, node: Node) -> None:
        """Silence the node: its lease ends as if it had polled as usual until now."""
        node.hears = False
        run = self.run
        if run is None or node.agent is None or node.agent.agent_id not in run.leases.renewed_at:
            return
        lease_s, drawn = self.policy.lease_s, self._rng.uniform(0.0, self.policy.lease_s / HOLDS_PER_LEASE)
        heard_at = self.now - (lease_s if self.policy.is_noticed_at_once else drawn)
        self._silent[node.agent.agent_id] = heard_at
        renewed_at = run.leases.renewed_at
        for agent_id, at in sorted(self._silent.items(), key=lambda item: -item[1]):
            if agent_id in renewed_at:
                renewed_at[agent_id] = at
                renewed_at.move_to_end(agent_id, last=False)
            else:
                del self._silent[agent_id]
        run.leases.heard_at = next(reversed(renewed_at.values()))
        self._tell(events.TimePassed())

    def disconnect(self, agent_id: str) -> None:
        """Close the agent's connections, which the server sees."""
        self._silent.pop(agent_id, None)
        with suppress(ProtocolError):
            self._tell(events.AgentDisconnected(agent_id))

    def hears_again(self, node: Node, agent: Agent) -> None:
        """Connect the node again: its requests and reports are sent once more."""
        node.hears = True
        agent_id = agent.agent_id
        self._silent.pop(agent_id, None)
        self._by_agent[agent_id] = node
        if node.report is not None:
            self.later(LATENCY_S, self._reported, node, agent, node.report)
        if node.parked is None:
            node.parked = PollRequest(run_id=RUN_ID, agent_id=agent_id, revision=0)
        self._take(node, agent, node.parked)

    # Effects of faults.

    def takes_part(self, node: Node) -> bool:
        """Return whether the node's workers are in the running round."""
        run, assignment = self.run, node.assignment
        if run is None or assignment is None or run.stage is not Stage.RUNNING:
            return False
        return assignment.round == run.round

    def gets_stuck(self, node: Node) -> None:
        """Let the others wait for the node's workers from now on, if it has any."""
        if self.takes_part(node):
            self._stuck[node.index] = self.now

    def operate(self, event: events.NodeOperation) -> None:
        with suppress(ProtocolError):  # the node is in no run
            self._tell(event)

    def account_anew(self) -> None:
        """Let the ledger determine the use of time again."""
        self._is_accounted = False

    # A person.

    def _needs_person(self) -> None:
        self._awaits_person = True
        self.year.persons += 1
        if self.year.first_person_day is None:
            self.year.first_person_day = self.now / DAY_S
        self.later(self.costs.person_s, self._person_comes)

    def _person_comes(self) -> None:
        """Let a person take out bad nodes until they are repaired, and start everything else again."""
        self._awaits_person = False
        for node in self.pool:
            if self.now < node.bad_until:
                node.down_until = node.bad_until
                self.restarts_agent(node, node.bad_until)
            self._start_agent(node)

    # Ledger of time.

    def _account(self) -> None:
        """Enter the present use of time into the ledger."""
        self._is_accounted = True
        ledger, phase = self.year.ledger, self._phase()
        if phase != ledger.phase:
            ledger.enter(phase, self.now)
        run = self.run
        rate = 1 / self.costs.slow_factor if self._faults.is_run_slow else 1.0
        if rate != ledger.rate and run:
            ledger.at_rate(rate, self.now)

    def _phase(self) -> str:
        run = self.run
        if run is None or run.stage.is_end:
            return "person"
        if run.stage is Stage.FORMING:
            return "waiting" if time_ledger.phase(run) == "waiting" else "restarting"
        if self._stuck:
            return "detecting"
        if run.notice is not None:
            return "saving"
        return "training" if self._training_round == run.round else "starting"

    def _check_quiet(self) -> None:
        """Check the invariants that hold when nothing has happened for a while."""
        if self.run is not None and not self._awaits_person:
            self.year.checks += 1
            check_quiet(self.run, self.pool, bool(self._stuck))

    def _finish(self) -> None:
        year, run = self.year, self.run
        year.ledger.save(self.now)
        assert run
        year.restarts = {cause.value: number for cause, number in run.restarts.items()}
        check_sums(run, year.ledger, self.now)


_PERFORM: dict[type, Callable[[Simulation, list[Pair], Any], None]] = {
    PollRequest: Simulation._polls,
    JoinRequest: Simulation._joins,
    ReportRequest: Simulation._reports,
    LeaveRequest: Simulation._tells,
    AnswerRequest: Simulation._tells,
    StartWorkers: Simulation._start_workers,
    StopWorkers: Simulation._stops_workers,
    CheckNode: Simulation._checks,
    Ask: Simulation._asks_workers,
    Exit: Simulation._exits,
}
"""Handlers of the effects of an agent's core. An effect may be that of another agent in the same state."""
