"""History of the nodes that have cost runs something, across runs and restarts.

Blame on a node is a fact in the nodes' journal. The count starts again after an exclusion, and after an operator
declares the node healthy. `exclusion` decides what counts, and when a node is excluded for it.
"""

import re
from collections.abc import Mapping
from zlib import crc32

from msgspec import Struct
from rdzv_protocol.node_conditions import condition
from rdzv_protocol.text import clip

from rdzv_server.words import nodes as words

MOST_NODES, MOST_INCIDENTS, MOST_OF_A_NODE = 500, 1_000, 32
"""Most nodes, most incidents, and most incidents of one node that are remembered: a snapshot of all is one record."""
OF_RUN = 32, 128
"""Most nodes and incidents that are remembered for a run whose blame counts only in that run."""
REASON_BYTES, RUN_BYTES, CONDITION_BYTES = 96, 64, 32


class Fault(Struct, frozen=True):
    """Fault that a run blames nodes for. A policy may declare more of them: see `Policy.faults`."""

    name: str
    at_once: str = ""
    """Reason of an exclusion at once, which does not quote a run; empty if one such fault is not enough for an
    exclusion.
    """
    for_s: float | None = None
    """Seconds of this exclusion on a server without an exclusion policy; None if that server does not exclude the node.
    """


LOST, FAILED = Fault("lost"), Fault("failed")
HARDWARE, UNFIT = Fault("hardware", words.HARDWARE_FAILED), Fault("unfit", words.FOUND_UNFIT)
OF_KERNEL = (LOST, FAILED, HARDWARE, UNFIT)
"""Faults that the kernel itself blames nodes for."""
EXCLUDED = "excluded"
"""Name that stands for a fault in the incident of an exclusion."""


_WORD_WITH_NUMBER = r"(?<!\S)[^\s\d]*+\d\S*"
"""Pattern that looks at each character once: an agent chooses the text."""


class Incident(Struct, frozen=True):
    """Blame on a node, and when it was recorded: `at` by the server's clock, `wall_at` by the wall clock."""

    at: float
    fault: str
    """Name of the fault, or `EXCLUDED`."""
    run_id: str
    reason: str
    wall_at: float | None = None
    condition: str = ""
    """Cause that other nodes may share, as in `Blame`; empty in records of older servers."""


class Blame(Struct, frozen=True):
    """Blame that a run puts on a node."""

    node_id: str
    fault: Fault
    reason: str

    @property
    def condition(self) -> str:
        """Cause that several nodes may share, such as full storage or a dead switch; empty if the fault is of no such
        kind.

        It is the name of a check's finding. If the finding has no name, it is a checksum of the words with which the
        check reports it.
        """
        if self.fault is not UNFIT:
            return LOST.name if self.fault is LOST else ""
        return clip(condition(self.reason)[0], CONDITION_BYTES) or f"={crc32(self._without_details.encode()):08x}"

    @property
    def _without_details(self) -> str:
        """The reason without the parts that differ between nodes with the same problem: the node's name and numbers."""
        own_name = rf"(?<!\w){re.escape(self.node_id)}(?!\w)"
        return re.sub(_WORD_WITH_NUMBER, "", re.sub(own_name, "", self.reason))

    @property
    def is_evidence(self) -> bool:
        """Whether it excludes the node at once. A temporary condition does not: the next check may find none."""
        is_temporary = self.fault is UNFIT and condition(self.reason)[1] == "temporary"
        return bool(self.fault.at_once) and not is_temporary


class NodeHistory:
    """Incidents of each node, the node with the latest incident last."""

    def __init__(self, most_nodes: int = MOST_NODES, most_incidents: int = MOST_INCIDENTS) -> None:
        self.by_node: dict[str, tuple[Incident, ...]] = {}
        self._most_nodes, self._most_incidents = most_nodes, most_incidents
        self._incidents = 0

    def restore(self, by_node: Mapping[str, tuple[Incident, ...]]) -> None:
        """Replace all incidents with those of a snapshot."""
        self.by_node = dict(by_node)
        self._incidents = sum(map(len, by_node.values()))

    def note(self, node_id: str, incident: Incident) -> None:
        known = self._pop(node_id)
        run_id, reason = clip(incident.run_id, RUN_BYTES), clip(incident.reason, REASON_BYTES)
        short = Incident(incident.at, incident.fault, run_id, reason, incident.wall_at, incident.condition)
        self.by_node[node_id] = latest = (*known, short)[-MOST_OF_A_NODE:]
        self._incidents += len(latest)
        while len(self.by_node) > self._most_nodes or self._incidents > self._most_incidents:
            self._pop(next(iter(self.by_node)))

    def forgive(self, node_id: str) -> None:
        """Forget a node's incidents, since an operator declares it healthy."""
        self._pop(node_id)

    def since_excluded(self, node_id: str) -> tuple[Incident, ...]:
        """Return the incidents of a node since it was last excluded."""
        incidents = self.by_node.get(node_id, ())
        ends = [index for index, each in enumerate(incidents) if each.fault == EXCLUDED]
        return incidents[ends[-1] + 1 :] if ends else incidents

    def _pop(self, node_id: str) -> tuple[Incident, ...]:
        incidents = self.by_node.pop(node_id, ())
        self._incidents -= len(incidents)
        return incidents
