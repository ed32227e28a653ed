"""Agents in simulated time: their core, unchanged, asked once for all agents that are in the same state.

Of 10,000 agents nearly all are in the same state, and the same happens to all of them at the same instant. What the
core has one of them do, the others do as well, each under its own name. A sample of those is played by itself, and
has to come to the same: see `CHECK_EVERY`.
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
from node_agent.kernel.core.machine import AgentMachine

CHECK_EVERY = 509
"""Agents of which one is a witness, another one at each instant: it is played by itself, and compared."""
_OWN = frozenset(("_join", "_revision", "_reporter", "outages", "_effects", "_last_reason"))
"""Attributes of an agent's machine that are its own, or that decide about words alone."""
_ALIKE = (JoinRequest, PollRequest, StartWorkers, StopWorkers, CheckNode)
"""Effects that can be turned into those of another agent in the same state."""
_WORDS = (Log, WriteFailureReport)


class Unlike(AssertionError):
    """Disagreement: an agent does something else than one in the same state."""


class _State:
    """A state that agents have in common, with the machine of one that is in it, which takes no event any more."""

    __slots__ = ("__weakref__", "deadline", "machine")

    def __init__(self, machine: AgentMachine) -> None:
        self.machine = machine
        self.deadline = machine.next_deadline()


class _Step:
    """Result of an event: the effects and the state after it."""

    __slots__ = ("effects", "event", "state")

    def __init__(self, state: _State, effects: list[Effect], event: Event) -> None:
        self.state, self.effects, self.event = state, effects, event


class Agents:
    """All agents, by the states that they have in common."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: dict[tuple[_State, Hashable], _Step] = {}
        """Steps taken at this instant, by the state before and the name of the event."""
        self.witness = 0
        """Number of the agents that are played by themselves now."""
        self._states: WeakValueDictionary[tuple[Hashable, ...], _State] = WeakValueDictionary()
        self._started = 0

    def pass_time(self, now: float) -> None:
        self.now = now
        self.steps.clear()
        self.witness = (self.witness + 1) % CHECK_EVERY

    def start(self, join: JoinRequest, *, checks: bool) -> "Agent":
        machine = AgentMachine(join, server="the server", checks=checks)
        self._started += 1
        return Agent(self, self._started % CHECK_EVERY, join, machine.agent_id, self._shared(machine))

    def first(self, agent: "Agent", name: Hashable, event: Event) -> _Step:
        """Have the agent take the event, for all that are in the same state, or as a witness to what they have done."""
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
        """The state, which is that of others already if it is the same. One with a failure to report is its own."""
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
    """One of many agents: what it has of its own. The rest of its state others may have, too."""

    __slots__ = ("_agents", "_number", "agent_id", "join", "revision", "state")

    def __init__(self, agents: Agents, number: int, join: JoinRequest, agent_id: str, state: _State) -> None:
        self._agents, self._number = agents, number
        self.join, self.agent_id, self.state = join, agent_id, state
        self.revision = 0
        """Revision of the latest answer that the agent has taken."""

    @property
    def machine(self) -> AgentMachine:
        """A machine in the agent's state: all but what is the agent's own holds for this one."""
        return self.state.machine

    def handle(self, event: Event) -> list[Effect]:
        """Apply an event that is for this agent alone."""
        step = self._agents.alone(self, event)
        self.state = step.state
        return step.effects

    def handle_alike(self, name: Hashable, make: Callable[..., Event], *args: Any) -> list[Effect]:
        """Apply the event that `make` makes. At this instant all events of this name are the same to an agent."""
        agents = self._agents
        step = agents.steps.get((self.state, name))
        if step is None or self._number == agents.witness:
            step = agents.first(self, name, make(*args))
        self.state = step.state
        return step.effects

    def own_join(self, join: JoinRequest) -> JoinRequest:
        """The join that another agent in the same state sends, as this one's."""
        return replace(self.join, agent_id=self.agent_id, after_round=join.after_round, returning=join.returning)


class Node:
    """A machine of the pool with its agent, if one runs."""

    __slots__ = (
        "agent",
        "assignment",
        "bad_until",
        "down_until",
        "due_s",
        "found_until",
        "hears",
        "index",
        "life",
        "name",
        "offered",
        "parked",
        "report",
        "until_s",
    )

    def __init__(self, index: int) -> None:
        self.index, self.name = index, f"node{index}"
        self.life = 0
        """Number of agents that were started here."""
        self.agent: Agent | None = None
        """The agent that runs, if any; messages and timers of an earlier one are dropped."""
        self.offered: Assignment | None = None
        """Assignment of the workers that the server had the agent start last."""
        self.assignment: Assignment | None = None
        """Assignment of the workers that run."""
        self.parked: PollRequest | JoinRequest | None = None
        """Parked request. A poll may be another agent's in the same state, which differs in name and revision alone."""
        self.due_s = inf
        """Time at which the agent's deadline is looked at."""
        self.report: ReportRequest | None = None
        """Report of a failure that the server has not answered yet."""
        self.hears = True
        """Whether network and machine let the node's agent reach the server."""
        self.down_until = 0.0
        """End of a fault that the agent does not survive, or that keeps the node from the network."""
        self.bad_until = 0.0
        """Time until which workers that start here fail."""
        self.found_until = 0.0
        """Time until which checks find the node unfit."""
        self.until_s = 0.0
        """End of the node's present fault."""


Pair = tuple[Node, Agent]
"""A node and one of its agents: messages and timers of an agent that is no longer the node's are dropped."""


def _copy(agent: Agent) -> AgentMachine:
    """A machine of the agent's own."""
    machine = object.__new__(AgentMachine)
    vars(machine).update(vars(agent.machine), _join=agent.join, _revision=agent.revision)
    machine.outages, machine._reporter = copy(machine.outages), copy(machine._reporter)
    machine._reporter._make = machine.report
    return machine


def _key(machine: AgentMachine) -> tuple[Hashable, ...]:
    alike = [value for name, value in vars(machine).items() if name not in _OWN]
    return (*alike, *vars(machine.outages).values())


def _as_of(agent: Agent, effect: Effect, event: Any) -> Effect:
    """The effect of another agent, as this one's."""
    if isinstance(effect, PollRequest):
        return replace(effect, agent_id=agent.agent_id, revision=agent.revision)
    if isinstance(effect, JoinRequest):
        return agent.own_join(effect)
    return StartWorkers(event.answer.directive.assignment) if isinstance(effect, StartWorkers) else effect
