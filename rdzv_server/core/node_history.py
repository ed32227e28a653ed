"""History of the nodes that have cost runs something, across runs and restarts, and the rule by which one is kept out.

Blame on a node is a fact of the journal, beside the cordons. A node is excluded at once by evidence against
itself (a check that found it unfit, failed hardware in a worker's last words), else when it has been blamed so many
times within a window. Nodes that are lost together are not blamed for it: they share a switch, a rack, a scheduler.
An exclusion, and an operator's word that the node is well, begin the count anew.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from rdzv_protocol.text import clip, count, span

Fault = Literal["lost", "failed", "hardware", "unfit", "slow", "excluded"]
MOST_NODES, MOST_INCIDENTS, MOST_OF_A_NODE = 500, 1_000, 32
"""Most nodes and incidents that are remembered, and incidents of one node: a snapshot of them is one record."""
OF_RUN = 32, 128
"""Most nodes and incidents that are remembered of a run whose blame counts only in the run."""
REASON_BYTES, RUN_BYTES = 96, 64
TOGETHER, TOGETHER_S = 3, 30.0
"""Number of nodes, and seconds within which as many must be lost to count as lost together, which blames none."""
AT_ONCE: dict[Fault, str] = {
    "hardware": "its hardware failed",
    "unfit": "a check found it unfit",
    "slow": "it was slower than the other nodes",
}
"""Faults that exclude a node at once, each in words that quote nothing."""


class ExclusionPolicy(Struct, frozen=True):
    """Exclusion of a node for `for_s` seconds after runs have blamed it `after` times within `window_s`."""

    after: int
    window_s: float
    for_s: float


class Incident(Struct, frozen=True):
    """Blame that a node has got, and when, by the server's clock and by the wall clock."""

    at: float
    fault: Fault
    run_id: str
    reason: str
    wall_at: float | None = None


class Blame(Struct, frozen=True):
    """Blame of a run on a node."""

    node_id: str
    fault: Fault
    reason: str


class Verdict(Struct, frozen=True):
    """Reason to exclude a node: `reason` quotes the run that blamed it, `general` tells other runs nothing of that."""

    reason: str
    general: str


class NodeHistory:
    """Incidents of each node; the node of the latest one is the last."""

    def __init__(self, most_nodes: int = MOST_NODES, most_incidents: int = MOST_INCIDENTS) -> None:
        self.by_node: dict[str, tuple[Incident, ...]] = {}
        self._most_nodes, self._most_incidents = most_nodes, most_incidents
        self._incidents = 0

    def restore(self, by_node: Mapping[str, tuple[Incident, ...]]) -> None:
        """Replace all incidents by those of a snapshot."""
        self.by_node = dict(by_node)
        self._incidents = sum(map(len, by_node.values()))

    def note(self, node_id: str, incident: Incident) -> None:
        known = self._pop(node_id)
        run_id, reason = clip(incident.run_id, RUN_BYTES), clip(incident.reason, REASON_BYTES)
        short = Incident(incident.at, incident.fault, run_id, reason, incident.wall_at)
        self.by_node[node_id] = latest = (*known, short)[-MOST_OF_A_NODE:]
        self._incidents += len(latest)
        while len(self.by_node) > self._most_nodes or self._incidents > self._most_incidents:
            self._pop(next(iter(self.by_node)))

    def forgive(self, node_id: str) -> None:
        """Forget a node's incidents: an operator says that it is well."""
        self._pop(node_id)

    def _pop(self, node_id: str) -> tuple[Incident, ...]:
        incidents = self.by_node.pop(node_id, ())
        self._incidents -= len(incidents)
        return incidents

    def verdict(self, blame: Blame, now: float, policy: ExclusionPolicy) -> Verdict | None:
        """Return why the node is to be excluded after this blame, which has been noted; None if it is not."""
        if blame.fault in AT_ONCE:
            return Verdict(blame.reason, AT_ONCE[blame.fault])
        counted = [each for each in self._since_excluded(blame.node_id) if each.at > now - policy.window_s]
        counted = [each for each in counted if not self._is_shared(each)]
        if len(counted) < policy.after:
            return None
        runs = len({each.run_id for each in counted})
        in_runs = f" in {runs} runs" if runs > 1 else ""
        general = f"blamed {count(len(counted), 'time')} within {span(policy.window_s)}{in_runs}"
        return Verdict(f"{general}, most recently: {clip(blame.reason, REASON_BYTES)}", general)

    def _since_excluded(self, node_id: str) -> tuple[Incident, ...]:
        incidents = self.by_node.get(node_id, ())
        ends = [index for index, each in enumerate(incidents) if each.fault == "excluded"]
        return incidents[ends[-1] + 1 :] if ends else incidents

    def _is_shared(self, incident: Incident) -> bool:
        """Whether other nodes were lost at about the same time."""
        if incident.fault != "lost":
            return False
        nodes = sum(
            any(other.fault == "lost" and abs(other.at - incident.at) <= TOGETHER_S for other in incidents)
            for incidents in self.by_node.values()
        )
        return nodes >= TOGETHER
