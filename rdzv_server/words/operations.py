"""Answers to operators' actions, and messages for their runs about them."""

from collections.abc import Sequence

from rdzv_protocol.text import count, size_range, span

_AN_OPERATOR = "an operator"

TIME_OVER = "its time has ended"
"""Reason why a cordon ends by itself."""
DRAINED = "drained"
"""Reason why an agent of a drained node is gone that could not get the directive to leave."""


def run_over(run_id: str, stage: str, reason: str) -> str:
    """An action comes too late."""
    return f"run {run_id} has {stage}: {reason}; start its agents again"


def min_above_max(min_nodes: int, max_nodes: int) -> str:
    return f"min_nodes {min_nodes} is above max_nodes {max_nodes}: ask for MIN:MAX"


def no_legal_size(none_legal: str, run_id: str) -> str:
    """`none_legal`: a message of that kind, from `words.sizes`."""
    return f"{none_legal}: cannot resize run {run_id}"


def no_standby(run_id: str) -> str:
    return f"no standby node waits for a free place in run {run_id}"


def nothing_to_restart(run_id: str) -> str:
    return f"run {run_id} has no workers to restart: a round is forming and will start them"


def round_over(run_id: str, wanted: int, current: int) -> str:
    """An operator wants to restart the workers of an earlier round."""
    return f"round {wanted} of run {run_id} is over, so nothing restarts: the run is in round {current} now"


def has_size(run_id: str, min_nodes: int, max_nodes: int) -> str:
    return f"run {run_id} already has this size: {_nodes(min_nodes, max_nodes)}"


def not_cordoned(node_id: str) -> str:
    return f"node {node_id} is not cordoned"


def stopped(reason: str) -> str:
    return f"stopped by {_AN_OPERATOR}{_because(reason)}"


def restarted(reason: str) -> str:
    return f"restarted by {_AN_OPERATOR}{_because(reason)}"


def backoff_ended(reason: str) -> str:
    return f"{_AN_OPERATOR} ended the wait before the next restart{_because(reason)}"


def admitted(admitting: str, reason: str) -> str:
    return f"{admitting}; {_AN_OPERATOR} admits them{_because(reason)}"


def resized(min_nodes: int, max_nodes: int, reason: str) -> str:
    return f"resized to {_nodes(min_nodes, max_nodes)} by {_AN_OPERATOR}{_because(reason)}"


def forgotten(run_id: str, in_s: float, reason: str) -> str:
    when = f" in {in_s:.0f} s, when its agents know that it has ended" if in_s > 0 else ""
    why = f"; the operator's reason: {reason}" if reason else ""
    return f"run {run_id} is forgotten{when}{why}"


def cordoned(node_id: str, for_s: float | None, reason: str, waits: str = "") -> str:
    """`waits`: message `waiting_runs`; empty if every run has enough nodes."""
    return f"node {node_id} is cordoned{_for(for_s)} by {_AN_OPERATOR}{_because(reason)}{waits and '; '}{waits}"


def excluded(node_id: str, for_s: float | None, reason: str) -> str:
    """The server itself excludes a node."""
    return f"node {node_id} is excluded{_for(for_s)}{_because(reason)}"


def uncordoned(node_id: str, reason: str, *, by_operator: bool) -> str:
    return f"node {node_id} is uncordoned{f' by {_AN_OPERATOR}' if by_operator else ''}{_because(reason)}"


def drained(node_id: str, reason: str, waits: str = "") -> str:
    """`waits`: message `waiting_runs`; empty if every run has enough nodes."""
    return f"node {node_id} is drained by {_AN_OPERATOR}{_because(reason)}{waits and '; '}{waits}"


def waiting_runs(waits: Sequence[str], more: int) -> str:
    """Runs that have too few nodes after a drain or a cordon. `waits`: messages `costs.of_run`; `more`: number of
    further runs.
    """
    others = f"; {count(more, 'more run')} {'waits' if more == 1 else 'wait'} for nodes, too" if more else ""
    return "; ".join(waits) + others


def _nodes(least: int, most: int) -> str:
    return f"{size_range(least, most)} node{'s' * (most != 1)}"


def _for(seconds: float | None) -> str:
    return "" if seconds is None else f" for {span(seconds)}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
