"""Policy of a simulated year: what an operator chooses."""

from dataclasses import dataclass

from rdzv_protocol.settings import RequestedSettings

from benchmarks.year.trace import DAY_S
from rdzv_server.core.node_history import ExclusionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Choices of an operator, and the time within which a hang is noticed."""

    spares: float = 0.02
    """Standbys, as a part of the run's nodes."""
    shrink: float = 0.1
    """Part of its nodes without which the run still goes on."""
    shrink_after_s: float = 0.0
    """Time that a replacement for a lost node is waited for before the run goes on with fewer."""
    lease_s: float = 10.0
    hang_noticed_s: float = 30.0
    """Seconds from the last step to the end of the worker to blame: detection, evidence and all."""
    slow_noticed_s: float | None = 600.0
    """Time after which a slow node is drained; None: it stays until it is repaired."""
    is_noticed_at_once: bool = False
    """Whether every fault is known the moment that it is there: an ideal, which nobody can have."""
    found: float = 0.0
    """Part of the faults of the kinds that a node's checks look for which they find; 0: nodes are not checked."""
    notice_s: float | None = None
    """Time that workers have to save before a node is drained or admitted; None: they are not told."""
    exclude_after: int | None = 2
    """Times that a node is blamed within `exclude_window_s` which keep it out for `exclude_for_s`."""
    exclude_window_s: float = 3600.0
    exclude_for_s: float = DAY_S
    max_restarts: int = 20
    restart_window_s: float | None = 3600.0

    @property
    def exclusion(self) -> ExclusionPolicy | None:
        if self.exclude_after is None:
            return None
        return ExclusionPolicy(self.exclude_after, self.exclude_window_s, self.exclude_for_s)

    def settings(self, nodes: int) -> RequestedSettings:
        return RequestedSettings(
            min_nodes=nodes - int(nodes * self.shrink),
            max_nodes=nodes,
            max_restarts=self.max_restarts,
            restart_window_s=self.restart_window_s,
            shrink_after_s=self.shrink_after_s,
            lease_s=self.lease_s,
            notice_timeout_s=self.notice_s,
            scale_up="immediate" if self.notice_s is None else "on-notice",
        )


def pool_size(nodes: int, policy: Policy) -> int:
    """Nodes of the run, and its spares."""
    return nodes + round(nodes * policy.spares)
