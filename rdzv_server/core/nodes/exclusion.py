"""Exclusion: the rule by which the server itself excludes a node for a time.

Evidence against the node itself excludes it at once (`Blame.is_evidence`), such as a check that found a permanent
condition. Otherwise the server excludes a node that has been blamed `after` times within a window.

Nodes that are lost together are not blamed: they share a switch, a rack or a scheduler. The same holds for nodes whose
checks find the same condition together: they share storage, or the server's clock is wrong. A check without a name for
what it finds counts as well, if it reports the same in the same words. The exclusions of the first of these nodes end
when there are enough to know that.
"""

from msgspec import Struct
from rdzv_protocol.text import clip

from rdzv_server.core.kernel.run import Run
from rdzv_server.core.node_history import LOST, REASON_BYTES, UNFIT, Blame, Incident, NodeHistory
from rdzv_server.words import nodes as words

TOGETHER, TOGETHER_S = 3, 30.0
"""Number of nodes and seconds. If this many nodes are lost, or found unfit in the same way, within this time, the
server blames none of them. Two that are found unfit are enough if their run has no other node."""


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


def verdict(blame: Blame, history: NodeHistory, policy: ExclusionPolicy | None, now: float, run: Run) -> Verdict | None:
    """Return the exclusion that follows from a run's blame, which is already in the history; None if none does."""
    fault = blame.fault
    if sharing(blame, history, now, run):
        return None
    if blame.is_evidence:
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
    latest = blame.reason if fault is UNFIT else clip(blame.reason, REASON_BYTES)  # its end may name the condition
    return Verdict(words.last_blamed(general, latest), general, policy.for_s)


def sharing(blame: Blame, history: NodeHistory, now: float, run: Run) -> list[tuple[str, Incident]]:
    """Return the nodes that were lost, or found unfit in the same way, at about this time; empty if too few."""
    if not blame.condition:
        return []
    like = _like(Incident(now, blame.fault.name, "", blame.reason, condition=blame.condition), history)
    nodes, others = {node_id for node_id, _ in like}, {agent.node_id for agent in run.agents.values()}
    are_all = blame.fault is UNFIT and len(nodes) > 1 and others <= nodes
    return like if len(nodes) >= TOGETHER or are_all else []


def _is_shared(incident: Incident, history: NodeHistory) -> bool:
    """Return whether other nodes were lost at about the same time, or were found unfit in the same way."""
    is_candidate = incident.fault == LOST.name or bool(incident.condition)
    return is_candidate and len({node_id for node_id, _ in _like(incident, history)}) >= TOGETHER


def _like(incident: Incident, history: NodeHistory) -> list[tuple[str, Incident]]:
    """Return the nodes with such an incident at about the same time."""
    kind = incident.fault, incident.condition
    return [
        (node_id, each)
        for node_id, incidents in history.by_node.items()
        for each in incidents
        if (each.fault, each.condition) == kind and abs(each.at - incident.at) <= TOGETHER_S
    ]
