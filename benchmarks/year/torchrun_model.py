"""Model of torchrun with its c10d rendezvous in the same year: a calculation that runs none of its code.

Its assumptions come from torchrun's documentation, its code, or docs/explanation/torchrun-defects.md:

- After the end of a worker its agent asks for a new rendezvous, and the others follow. A node that dies, is cut off, or
  hangs is noticed when a collective operation of its peers times out.
- Every such restart uses a restart of `--max-restarts`, also for a lost node.
- The job ends when the budget is used up. With an outer retry loop on every node, all of them begin again after a
  while; otherwise a person starts them.
- The agent of node 0 hosts the rendezvous: when it ends, every agent ends, and a person chooses another host.
- A bad node is not excluded: workers fail on it again until the budget is used up, and a person removes it.
- Spares wait and replace a lost node. When a node returns and there is room, all nodes restart, which does not use up a
  restart.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

from benchmarks.year.kinds import Kind
from benchmarks.year.model import Costs, Ledger
from benchmarks.year.trace import DAY_S, DAYS, Fault

UNNOTICED = frozenset((Kind.HANG, Kind.DEATH, Kind.CUT))
OUT = frozenset((Kind.DEATH, Kind.CUT, Kind.AGENT_KILLED, Kind.DRAIN))
"""Kinds after which the node is not in the run until it is repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunPolicy:
    """Way in which torchrun is run."""

    collective_timeout_s: float = 600.0
    """Timeout of a collective operation: the default of NCCL; gloo's is 1800 s."""
    max_restarts: int = 3
    retry_s: float | None = None
    """Seconds from the end of the job until an outer retry loop starts it again on all nodes; None without a loop."""
    rendezvous_s: float = 10.0
    last_call_s: float = 30.0
    """Wait for more nodes if there are fewer than the maximum."""
    spares: float = 0.02
    shrink: float = 0.1


class TorchrunYear:
    """The year under torchrun. The ledger has the same phases as ours."""

    def __init__(
        self, nodes: int, faults: list[Fault], policy: TorchrunPolicy, costs: Costs, days: float = DAYS
    ) -> None:
        self.ledger = Ledger(costs, nodes)
        self.persons = self.faults = self.faults_in_run = 0
        self.restarts = -1
        self.first_person_day: float | None = None
        self._policy, self._costs, self._nodes = policy, costs, nodes
        self._pool = nodes + round(nodes * policy.spares)
        self._least = nodes - int(nodes * policy.shrink)
        self._out: list[float] = []
        """Ends of the faults of nodes that are out."""
        self._until = [0.0] * self._pool
        self._left = policy.max_restarts
        self._now = 0.0
        self._end_s = days * DAY_S
        self._faults = faults

    def play(self) -> "TorchrunYear":
        self._start()
        for fault in self._faults:
            self._nodes_return(fault.at_s)
            if self._now < self._end_s:
                self._strike(fault)
        self._nodes_return(self._end_s)
        self.ledger.save(max(self._now, self._end_s))
        return self

    def _strike(self, fault: Fault) -> None:
        self.faults += 1
        if fault.at_s < self._until[fault.node]:
            return
        self._until[fault.node] = fault.at_s + fault.repair_s
        is_spare = fault.node >= self._nodes
        if fault.kind in OUT:
            heappush(self._out, self._until[fault.node])
        if is_spare or fault.kind is Kind.SLOW:
            return
        self.faults_in_run += 1
        self._now = max(self._now, fault.at_s)
        self._passes("detecting", self._policy.collective_timeout_s if fault.kind in UNNOTICED else 0.0)
        if fault.node == 0 and fault.kind in OUT:
            self._person()
        elif fault.stays_bad:
            self._passes("starting", (self._left + 1) * self._costs.start_s)
            heappush(self._out, self._until[fault.node])
            self._person()
        else:
            self._charge()
        self._start()

    def _charge(self) -> None:
        self._left -= 1
        if self._left >= 0:
            return
        if self._policy.retry_s is None:
            self._person()
        else:
            self._passes("restarting", self._policy.retry_s)
        self._left = self._policy.max_restarts

    def _person(self) -> None:
        self.persons += 1
        if self.first_person_day is None:
            self.first_person_day = self._now / DAY_S
        self._passes("person", self._costs.person_s)
        self._left = self._policy.max_restarts

    def _nodes_return(self, until_s: float) -> None:
        """Restart the run for each node that returns, if the run lacks nodes."""
        while self._out and self._out[0] < until_s:
            at, lacked = heappop(self._out), self._pool - len(self._out) - 1 < self._nodes
            if lacked and at < self._end_s:
                self._now = max(self._now, at)
                self._start()

    def _start(self) -> None:
        """Pass the time of a rendezvous, and of the workers' start until their first step."""
        while self._pool - len(self._out) < self._least:
            self._passes("waiting", max(0.0, heappop(self._out) - self._now))
        self.restarts += 1
        there = min(self._nodes, self._pool - len(self._out))
        short = there < self._nodes
        self._passes("restarting", self._policy.rendezvous_s + (self._policy.last_call_s if short else 0.0))
        self._passes("starting", self._costs.start_s)
        self.ledger.enter("training", self._now)
        self.ledger.on(there)

    def _passes(self, phase: str, seconds: float) -> None:
        """Let time pass in this phase."""
        self.ledger.enter(phase, self._now)
        self._now += seconds
