"""Agents in simulated time: their core, unchanged, called once for all agents in the same state.

Nearly all of 10,000 agents are in the same state, and the same event reaches all of them at the same instant. What the
core has one of them do, the others do as well, each under its own name. A sample of the agents is played on its own and
must give the same result: see `CHECK_EVERY`.
"""

from collections.abc import Callable, Hashable
from copy import copy
from math import inf
from typing import Any
from weakref import WeakValueDictionary

from msgspec.structs import replace
from rdzv_protocol.messages import Assignment, JoinRequest, PollRequest, ReportRequest

from node_agent.kernel.core.effects import CheckNode, Effect, Log, StartWorkers, StopWorkers, WriteFailureReport
from node_agent.kernel.core.events import Event
from node_agent.kernel.core.machine import AgentMachine, Capabilities

CHECK_EVERY = 509
"""Number of agents per witness. The witness, a different one at each instant, is played alone and compared."""
_OWN = frozenset(("_join", "_revision", "_reporter", "outages", "_effects", "_last_reason"))
"""Attributes of an agent's machine that differ between agents, or that affect texts only."""
_ALIKE = (JoinRequest, PollRequest, StartWorkers, StopWorkers, CheckNode)
"""Effects that can be turned into those of another agent in the same state."""
_WORDS = (Log, WriteFailureReport)


class Unlike(AssertionError):
    """Error: an agent acts differently from another one in the same state."""


class _State:
    """State that agents share, with the machine of one agent in it, which handles no more events."""

    __slots__ = ("__weakref__", "deadline", "machine")

    def __init__(self, machine: AgentMachine) -> None:
        self.machine = machine
        self.deadline = machine.next_deadline()


class _Step:
    """Result of an event: the effects, and the state after it."""

    __slots__ = ("effects", "event", "state")

    def __init__(self, state: _State, effects: list[Effect], event: Event) -> None:
        self.state, self.effects, self.event = state, effects, event


class Agents:
    """All agents, by the states that they share."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: dict[tuple[_State, Hashable], _Step] = {}
        """Steps of this instant, by the state before and the name of the event."""
        self.witness = 0
        """Number of the agents that are played alone at present."""
        self._states: WeakValueDictionary[tuple[Hashable, ...], _State] = WeakValueDictionary()
        self._started = 0

    def pass_time(self, now: float) -> None:
        self.now = now
        self.steps.clear()
        self.witness = (self.witness + 1) % CHECK_EVERY

    def start(self, join: JoinRequest, *, checks: bool) -> "Agent":
        machine = AgentMachine(join, server="the server", capabilities=Capabilities(checks=checks))
        self._started += 1
        return Agent(self, self._started % CHECK_EVERY, join, machine.agent_id, self._shared(machine))

    def first(self, agent: "Agent", name: Hashable, event: Event) -> _Step:
        """Handle the event, either for all agents in the same state, or as a witness who checks their result."""
        before, expected = agent.state, self.steps.get((agent.state, name))
        step = self.alone(agent, event)
        if expected is not None:
            self._compare(agent, step, expected)
            return expected
        if all(isinstance(effect, _ALIKE) for effect in step.effects):
            self.steps[before, name] = step
        return step

    def alone(self, agent: "Agent", event: Event) -> _Step:
        machine = _copy(agent)
        effects: list[Effect] = [each for each in machine.handle(event, self.now) if not isinstance(each, _WORDS)]
        agent.agent_id, agent.revision = machine.agent_id, machine._revision
        return _Step(self._shared(machine), effects, event)

    def _shared(self, machine: AgentMachine) -> _State:
        """Return the state, shared with others if it is the same. One with a failure to report is not shared."""
        if machine._reporter.is_pending:
            return _State(machine)
        state = self._states.get(key := _key(machine))
        if state is None:
            state = self._states[key] = _State(machine)
        return state

    def _compare(self, agent: "Agent", step: _Step, expected: _Step) -> None:
        effects = [_as_of(agent, effect, step.event) for effect in expected.effects]
        if step.effects != effects or step.state is not expected.state:
            raise Unlike(f"{agent.agent_id}: {step.effects} after {step.event}, where others would: {effects}")


class Agent:
    """One of many agents: only what belongs to itself. Others may share the rest of its state."""

    __slots__ = ("_agents", "_number", "agent_id", "join", "revision", "state")

    def __init__(self, agents: Agents, number: int, join: JoinRequest, agent_id: str, state: _State) -> None:
        self._agents, self._number = agents, number
        self.join, self.agent_id, self.state = join, agent_id, state
        self.revision = 0
        """Revision of the latest answer that the agent has handled."""

    @property
    def machine(self) -> AgentMachine:
        """Machine in the agent's state. Attributes that belong to a single agent may be another agent's."""
        return self.state.machine

    def handle(self, event: Event) -> list[Effect]:
        """Handle an event that is for this agent only."""
        step = self._agents.alone(self, event)
        self.state = step.state
        return step.effects

    def handle_alike(self, name: Hashable, make: Callable[..., Event], *args: Any) -> list[Effect]:
        """Handle the event that `make` creates. At this instant all events of this name are the same for an agent."""
        agents = self._agents
        step = agents.steps.get((self.state, name))
        if step is None or self._number == agents.witness:
            step = agents.first(self, name, make(*args))
        self.state = step.state
        return step.effects

    def own_join(self, join: JoinRequest) -> JoinRequest:
        """Return the join that another agent in the same state sends, changed to this agent's."""
        return replace(self.join, agent_id=self.agent_id, after_round=join.after_round, returning=join.returning)


class Node:
    """Machine of the pool with its agent, if one runs."""

    __slots__ = (
        "agent",
        "assignment",
        "bad_until",
        "down_until",
        "due_s",
        "found_until",
        "hears",
        "index",
        "name",
        "offered",
        "parked",
        "report",
        "starts",
        "until_s",
    )

    def __init__(self, index: int) -> None:
        self.index, self.name = index, f"node{index}"
        self.starts = 0
        """Number of agents that were started here."""
        self.agent: Agent | None = None
        """Running agent, if any. Messages and timers of an earlier agent are dropped."""
        self.offered: Assignment | None = None
        """Assignment of the workers that the server last had the agent start."""
        self.assignment: Assignment | None = None
        """Assignment of the workers that run."""
        self.parked: PollRequest | JoinRequest | None = None
        """Parked request. A poll may be that of another agent in the same state, with a different name and revision."""
        self.due_s = inf
        """Time at which the agent's deadline is checked."""
        self.report: ReportRequest | None = None
        """Report of a failure that the server has not answered yet."""
        self.hears = True
        """Whether network and machine let the agent reach the server."""
        self.down_until = 0.0
        """End of a fault that the agent does not survive, or that cuts the node off."""
        self.bad_until = 0.0
        """Time until which workers that start here fail."""
        self.found_until = 0.0
        """Time until which checks find the node unfit."""
        self.until_s = 0.0
        """End of the node's present fault."""


Pair = tuple[Node, Agent]
"""A node and one of its agents. Messages and timers of an agent that is no longer the node's are dropped."""


def _copy(agent: Agent) -> AgentMachine:
    """Return a machine that belongs to this agent only."""
    machine = object.__new__(AgentMachine)
    vars(machine).update(vars(agent.machine), _join=agent.join, _revision=agent.revision)
    machine.outages, machine._reporter = copy(machine.outages), copy(machine._reporter)
    machine._reporter._make = machine.report
    return machine


def _key(machine: AgentMachine) -> tuple[Hashable, ...]:
    alike = [value for name, value in vars(machine).items() if name not in _OWN]
    return (*alike, *vars(machine.outages).values())


def _as_of(agent: Agent, effect: Effect, event: Any) -> Effect:
    """Return the effect of another agent, changed to this agent's."""
    if isinstance(effect, PollRequest):
        return replace(effect, agent_id=agent.agent_id, revision=agent.revision)
    if isinstance(effect, JoinRequest):
        return agent.own_join(effect)
    return StartWorkers(event.answer.directive.assignment) if isinstance(effect, StartWorkers) else effect
