"""Faults of a simulated year. A method for each kind applies its effects to a node until the node is repaired."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from benchmarks.year.agents import Agent, Node
from benchmarks.year.kinds import Kind
from benchmarks.year.trace import Fault
from rdzv_server.core import events

if TYPE_CHECKING:
    from benchmarks.year.simulation import Simulation

DRAIN_S = 60.0
"""Seconds that the workers of a drained node have to end."""


class Faults:
    """Faults of a simulation's nodes. Each begins at its time, and ends when its node is repaired."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._slow: set[int] = set()
        """Indices of nodes that are slow now."""

    def plan(self, faults: Iterable[Fault]) -> None:
        """Schedule the faults. A node with a fault that began before the year is out until it is repaired."""
        simulation = self._simulation
        for fault in faults:
            if fault.at_s >= 0:
                simulation.at(fault.at_s, self._strike, fault)
            elif not fault.is_of_one_instant:
                node = simulation.pool[fault.node]
                node.down_until = max(node.down_until, fault.at_s + fault.repair_s)

    @property
    def is_run_slow(self) -> bool:
        """Whether a slow node is in the run, so that all others wait for it."""
        simulation = self._simulation
        return bool(self._slow) and any(simulation.takes_part(simulation.pool[index]) for index in self._slow)

    def _strike(self, fault: Fault) -> None:
        simulation = self._simulation
        simulation.year.faults += 1
        simulation.account_anew()
        node = simulation.pool[fault.node]
        if simulation.now < max(node.until_s, node.down_until) or node.agent is None:
            return  # the node is out already
        takes_part = simulation.takes_part(node)
        simulation.year.faults_in_run += takes_part
        node.until_s = simulation.now + fault.repair_s
        if fault.stays_bad:
            node.bad_until = node.until_s
        if fault.hidden < simulation.policy.found:
            node.found_until = node.until_s
        if takes_part and fault.kind is not Kind.SLOW:
            simulation.year.ledger.blame(fault.kind, simulation.now)
        _STRIKES[fault.kind](self, node)

    def _crash(self, node: Node) -> None:
        if node.assignment:
            self._simulation.fails(node, node.assignment, "a fault")

    def _hang(self, node: Node) -> None:
        simulation = self._simulation
        if simulation.takes_part(node) and node.assignment:
            simulation.gets_stuck(node)
            noticed_s = 0.0 if simulation.policy.is_noticed_at_once else simulation.policy.hang_noticed_s
            simulation.later(noticed_s, simulation.fails, node, node.assignment, "it hung")

    def _die(self, node: Node) -> None:
        simulation = self._simulation
        simulation.gets_stuck(node)
        simulation.silence(node)
        self._goes_down(node)

    def _is_killed(self, node: Node) -> None:
        """Kill agent and workers: the server sees their connections close, and the grace for the agent begins."""
        simulation = self._simulation
        simulation.gets_stuck(node)
        agent_id = node.agent.agent_id if node.agent else ""
        if simulation.policy.is_noticed_at_once:
            simulation.silence(node)
        self._goes_down(node)
        simulation.disconnect(agent_id)

    def _goes_down(self, node: Node) -> None:
        node.down_until = node.until_s
        self._simulation.ends(node)
        self._simulation.restarts_agent(node, node.until_s)

    def _is_cut(self, node: Node) -> None:
        simulation = self._simulation
        simulation.gets_stuck(node)
        simulation.silence(node)
        simulation.at(node.until_s, self._heals, node, node.agent)

    def _heals(self, node: Node, agent: Agent) -> None:
        if node.agent is agent:
            self._simulation.hears_again(node, agent)

    def _is_slow(self, node: Node) -> None:
        self._slow.add(node.index)
        self._simulation.at(node.until_s, self._is_fast, node)
        self._look_at_slow(node)

    def _is_fast(self, node: Node) -> None:
        self._slow.discard(node.index)
        self._simulation.account_anew()

    def _look_at_slow(self, node: Node) -> None:
        """Replace the node once it has been slow in the run for a while."""
        slow_noticed_s = self._simulation.policy.slow_noticed_s
        if slow_noticed_s is not None:
            self._simulation.later(slow_noticed_s, self._replace, node)

    def _replace(self, node: Node) -> None:
        simulation = self._simulation
        if node.index not in self._slow:
            return
        if simulation.takes_part(node):
            simulation.year.ledger.blame("a slow node", simulation.now)
            self._drain(node)
        else:
            self._look_at_slow(node)

    def _drain(self, node: Node) -> None:
        for_s = max(node.until_s - self._simulation.now, 1.0)
        self._simulation.operate(events.NodeDrained("maintenance", node_id=node.name, deadline_s=DRAIN_S, for_s=for_s))


_STRIKES: dict[Kind, Callable[[Faults, Node], None]] = {
    Kind.CRASH: Faults._crash,
    Kind.HANG: Faults._hang,
    Kind.DEATH: Faults._die,
    Kind.CUT: Faults._is_cut,
    Kind.AGENT_KILLED: Faults._is_killed,
    Kind.SLOW: Faults._is_slow,
    Kind.DRAIN: Faults._drain,
}
