"""Exclusion: the rule by which the server itself excludes a node for a time.

Evidence against the node itself excludes it at once (`Fault.at_once`), such as a check that found it unfit. Otherwise
the server excludes a node that has been blamed `after` times within a window. Nodes that are lost together are not
blamed: they share a switch, a rack or a scheduler.
"""

from msgspec import Struct
from rdzv_protocol.text import clip

from rdzv_server.core.node_history import LOST, REASON_BYTES, Blame, Incident, NodeHistory
from rdzv_server.words import nodes as words

TOGETHER, TOGETHER_S = 3, 30.0
"""Number of nodes that must be lost within this many seconds to count as lost together, which blames none of them."""


class ExclusionPolicy(Struct, frozen=True):
    """Exclusion of a node for `for_s` seconds after runs have blamed it `after` times within `window_s` seconds."""

    after: int
    window_s: float
    for_s: float


class Verdict(Struct, frozen=True):
    """Exclusion of a node for `for_s` seconds.

    `reason` quotes the run that blamed it; `general` is the reason for other runs, and quotes nothing.
    """

    reason: str
    general: str
    for_s: float


def verdict(blame: Blame, history: NodeHistory, policy: ExclusionPolicy | None, now: float) -> Verdict | None:
    """Return the exclusion that follows from this blame, which is already in the history; None if none does."""
    fault = blame.fault
    if fault.at_once:
        for_s = policy.for_s if policy else fault.for_s
        return None if for_s is None else Verdict(blame.reason, fault.at_once, for_s)
    if policy is None:
        return None
    recent = [each for each in history.since_excluded(blame.node_id) if each.at > now - policy.window_s]
    counted = [each for each in recent if not _is_shared(each, history)]
    if len(counted) < policy.after:
        return None
    runs = len({each.run_id for each in counted})
    general = words.blamed(len(counted), policy.window_s, runs)
    return Verdict(words.last_blamed(general, clip(blame.reason, REASON_BYTES)), general, policy.for_s)


def _is_shared(incident: Incident, history: NodeHistory) -> bool:
    """Whether other nodes were lost at about the same time."""
    if incident.fault != LOST.name:
        return False
    nodes = sum(
        any(other.fault == LOST.name and abs(other.at - incident.at) <= TOGETHER_S for other in incidents)
        for incidents in history.by_node.values()
    )
    return nodes >= TOGETHER
