"""Model of torchrun with its c10d rendezvous in the same year: a calculation, none of its code runs here.

What is assumed, where we know it from torchrun's documentation, its code, or docs/explanation/torchrun-defects.md:

- A worker that ends makes its agent ask for a new rendezvous, and the others follow. A node that dies, is cut off, or
  hangs is noticed when a collective operation of its peers times out.
- Every such restart is charged to `--max-restarts`, also those that a lost node causes.
- The budget used up, the job ends. With an outer retry loop on every node, all of them begin again after a while;
  without one, a person starts them.
- The rendezvous lives in the agent of node 0: when that goes, every agent ends, and a person chooses another host.
- Nothing keeps a bad node out: workers fail on it again until the budget is used up, and a person takes it away.
- Spares wait and take a lost node's place. When a node comes back and there is room, all restart, which is free.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

from benchmarks.year.kinds import Kind
from benchmarks.year.model import Costs, Ledger
from benchmarks.year.trace import DAY_S, DAYS, Fault

UNNOTICED = frozenset((Kind.HANG, Kind.DEATH, Kind.CUT))
OUT = frozenset((Kind.DEATH, Kind.CUT, Kind.AGENT_KILLED, Kind.DRAIN))
"""Kinds after which the node has no part until it is repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunPolicy:
    """Way in which torchrun is run."""

    collective_timeout_s: float = 600.0
    """Time-out of a collective operation: NCCL's default; gloo's is 1800 s."""
    max_restarts: int = 3
    retry_s: float | None = None
    """Seconds from the end of the job until an outer retry loop has begun it again on all nodes; None: no loop."""
    rendezvous_s: float = 10.0
    last_call_s: float = 30.0
    """Wait for more nodes, whenever fewer than the maximum are there."""
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
        """Restart the run, if it lacks nodes, for each node that is back."""
        while self._out and self._out[0] < until_s:
            at, lacked = heappop(self._out), self._pool - len(self._out) - 1 < self._nodes
            if lacked and at < self._end_s:
                self._now = max(self._now, at)
                self._start()

    def _start(self) -> None:
        """Pass a rendezvous, and the workers' start up to their first step."""
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
