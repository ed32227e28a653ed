"""Messages for operators and runs about a server's nodes, beside the answers to actions on nodes."""

from rdzv_protocol.text import count, span

HARDWARE_FAILED = "its hardware failed"
FOUND_UNFIT = "a check found it unfit"
SHARED = "several nodes were lost, or found unfit in the same way, at about the same time"
"""Reason why an exclusion ends early."""


def unknown_node(node_id: str) -> str:
    """A drain is refused."""
    return f"no agent of node {node_id} is part of a run here; to keep the node out, cordon it"


def too_many_cordons(most: int) -> str:
    return f"this server has {most} cordons, its limit: uncordon some nodes"


def blamed(times: int, within_s: float, runs: int) -> str:
    """Reason of an exclusion, which does not quote a run. `runs`: number of runs that blamed the node."""
    in_runs = f" in {runs} runs" if runs > 1 else ""
    return f"blamed {count(times, 'time')} within {span(within_s)}{in_runs}"


def last_blamed(blames: str, latest: str) -> str:
    """`blames`: message `blamed`. `latest`: reason of the latest blame."""
    return f"{blames}, most recently: {latest}"
