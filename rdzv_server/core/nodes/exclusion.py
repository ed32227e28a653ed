"""Exclusion: the rule by which the server itself keeps a node out for a time.

A node is excluded at once by evidence against itself (a check that found it unfit, failed hardware in a worker's last
words), else when it has been blamed so many times within a window. Nodes that are lost together are not blamed for it:
they share a switch, a rack, a scheduler.
"""

from msgspec import Struct
from rdzv_protocol.text import clip

from rdzv_server.core.node_history import REASON_BYTES, Blame, Fault, Incident, NodeHistory
from rdzv_server.words import nodes as words

TOGETHER, TOGETHER_S = 3, 30.0
"""Number of nodes, and seconds within which as many must be lost to count as lost together, which blames none."""
AT_ONCE: dict[Fault, str] = {
    "hardware": words.HARDWARE_FAILED,
    "unfit": words.FOUND_UNFIT,
    "slow": words.WAS_SLOW,
}
"""Faults that exclude a node at once, each in words that quote nothing."""


class ExclusionPolicy(Struct, frozen=True):
    """Exclusion of a node for `for_s` seconds after runs have blamed it `after` times within `window_s`."""

    after: int
    window_s: float
    for_s: float


SLOW_NODES = ExclusionPolicy(after=1, window_s=3_600.0, for_s=3_600.0)
"""Exclusion of a replaced straggler on a server that excludes no nodes otherwise: else it would get its seat back."""


class Verdict(Struct, frozen=True):
    """Exclusion of a node for `for_s` seconds: `reason` quotes the run that blamed it, `general` tells other runs
    nothing of that."""

    reason: str
    general: str
    for_s: float


def verdict(blame: Blame, history: NodeHistory, policy: ExclusionPolicy | None, now: float) -> Verdict | None:
    """Return how the node is to be excluded after this blame, which the history has; None if it is not."""
    policy = policy or (SLOW_NODES if blame.fault == "slow" else None)
    if policy is None:
        return None
    if blame.fault in AT_ONCE:
        return Verdict(blame.reason, AT_ONCE[blame.fault], policy.for_s)
    recent = [each for each in history.since_excluded(blame.node_id) if each.at > now - policy.window_s]
    counted = [each for each in recent if not _is_shared(each, history)]
    if len(counted) < policy.after:
        return None
    runs = len({each.run_id for each in counted})
    general = words.blamed(len(counted), policy.window_s, runs)
    return Verdict(words.last_blamed(general, clip(blame.reason, REASON_BYTES)), general, policy.for_s)


def _is_shared(incident: Incident, history: NodeHistory) -> bool:
    """Whether other nodes were lost at about the same time."""
    if incident.fault != "lost":
        return False
    nodes = sum(
        any(other.fault == "lost" and abs(other.at - incident.at) <= TOGETHER_S for other in incidents)
        for incidents in history.by_node.values()
    )
    return nodes >= TOGETHER
