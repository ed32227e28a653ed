"""Notices: the server tells the workers of a round that it ends soon."""

from rdzv_protocol.text import count


def leaves(node_id: str, reason: str) -> str:
    return f"node {node_id} leaves: {reason}"


def replaced(slow: str) -> str:
    """`slow`: sentence about a node and how slow it is."""
    return f"{slow}; a standby node takes its place"


def given(reason: str, within_s: float) -> str:
    return f"{reason}; the workers get a notice and {within_s:.0f} s to save"


# How a notice ended. `after_s`: seconds since it was given, None if unknown.


def no_worker_notified(after_s: float | None) -> str:
    return f"no worker could get the notice: the round ends{_after(after_s)}"


def no_worker_listens(after_s: float | None) -> str:
    return f"no worker listens to notices: the round ends{_after(after_s)}"


def not_acknowledged(names: str, after_s: float | None) -> str:
    """`names`: nodes whose workers have not all acknowledged in time."""
    within = "" if after_s is None else f" within {after_s:.1f} s"
    return f"some workers of {names} did not acknowledge the notice{within}: the round ends"


def acknowledged(workers: int, after_s: float | None) -> str:
    return f"all {count(workers, 'listening worker')} acknowledged the notice{_after(after_s)}: the round ends"


def cut_short(reason: str) -> str:
    """The round ends for another reason before its notice is over."""
    return f"the round ends before all workers have acknowledged the notice: {reason}"


def _after(seconds: float | None) -> str:
    return "" if seconds is None else f" after {seconds:.1f} s"
