"""Exclusion: the rule by which the server itself excludes a node for a time.

Evidence against the node itself excludes it at once: a check that found it unfit, or failed hardware in a worker's last
words. Otherwise the server excludes a node that has been blamed `after` times within a window. Nodes that are lost
together are not blamed: they share a switch, a rack or a scheduler.
"""

from msgspec import Struct
from rdzv_protocol.text import clip

from rdzv_server.core.node_history import REASON_BYTES, Blame, Fault, Incident, NodeHistory
from rdzv_server.words import nodes as words

TOGETHER, TOGETHER_S = 3, 30.0
"""Number of nodes that must be lost within this many seconds to count as lost together, which blames none of them."""
IMMEDIATE_FAULTS: dict[Fault, str] = {
    "hardware": words.HARDWARE_FAILED,
    "unfit": words.FOUND_UNFIT,
    "slow": words.WAS_SLOW,
}
"""Faults that exclude a node at once, each with a reason that quotes no run."""


class ExclusionPolicy(Struct, frozen=True):
    """Exclusion of a node for `for_s` seconds after runs have blamed it `after` times within `window_s` seconds."""

    after: int
    window_s: float
    for_s: float


SLOW_NODES = ExclusionPolicy(after=1, window_s=3_600.0, for_s=3_600.0)
"""Exclusion of a replaced straggler on a server that otherwise excludes no nodes: else it would get its seat back."""


class Verdict(Struct, frozen=True):
    """Exclusion of a node for `for_s` seconds.

    `reason` quotes the run that blamed it; `general` is the reason for other runs, and quotes nothing.
    """

    reason: str
    general: str
    for_s: float


def verdict(blame: Blame, history: NodeHistory, policy: ExclusionPolicy | None, now: float) -> Verdict | None:
    """Return the exclusion that follows from this blame, which is already in the history; None if none does."""
    policy = policy or (SLOW_NODES if blame.fault == "slow" else None)
    if policy is None:
        return None
    if blame.fault in IMMEDIATE_FAULTS:
        return Verdict(blame.reason, IMMEDIATE_FAULTS[blame.fault], policy.for_s)
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
