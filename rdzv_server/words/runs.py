"""Beginning and end of a run."""

from rdzv_protocol.text import count

BEGINS = "the run begins"


def joined(node_id: str) -> str:
    return f"node {node_id} joined"


def succeeded(nodes: int, doubt: str = "", more: int = 0) -> str:
    """`doubt`: phrase about a worker that has reported an error; empty if none has. `more`: number of other such
    workers, if there is one.
    """
    and_others = f"; {count(more, 'other worker')} reported one, too" if more > 0 else ""
    return f"all workers of {count(nodes)} exited 0" + (f", but {doubt}{and_others}" if doubt else "")


def ends(reason: str) -> str:
    """`reason`: why the run ends. The server has not written this yet."""
    return f"the run ends as soon as the server has written this: {reason}"


def may_be_one(run_id: str, other: str) -> str:
    """Two runs with the same command wait for nodes."""
    return (
        f"runs {run_id} and {other} both wait for nodes, and have the same command: if they are one run, give every "
        "node the same --rdzv-id"
    )


def join_timeout(too_few: str) -> str:
    """`too_few`: message of that kind, from `words.completion`."""
    return f"join timeout: {too_few}"


def superseded(*, has_agents: bool) -> str:
    """`has_agents`: whether silent agents were still part of the run."""
    return f"{'every agent was silent' if has_agents else 'every node left'}, and a new attempt began"


def ended(run_id: str, stage: str, reason: str) -> str:
    return f"run {run_id} has {stage}: {reason}"
