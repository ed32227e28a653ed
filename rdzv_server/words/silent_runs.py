"""A running round in which no agent is heard."""

from rdzv_protocol.text import span

NODES_OR_PATH_GONE = "its nodes, or the network path to them, are gone"


def not_heard(for_s: float) -> str:
    return f"the server has not heard from any agent of the run for {span(for_s)}: {NODES_OR_PATH_GONE}"


def awaited(for_s: float) -> str:
    return f"{not_heard(for_s)}; the server waits for them"


def heard_again(after_s: float, node_id: str, *, has_others: bool) -> str:
    """`has_others`: whether the run has other agents."""
    others = "; each of the other agents gets a fresh lease" if has_others else ""
    return f"the server hears from an agent of the run again after {span(after_s)}: node {node_id}{others}"


def gave_place(for_s: float, *, to_agents: bool) -> str:
    """A silent run ends because the server is full. `to_agents`: of agents, rather than of runs."""
    to = "new agents (--max-agents)" if to_agents else "a new run (--max-runs)"
    return f"{not_heard(for_s)}; the server was full, so the run gave its place to {to}"
