"""A round that finishes: which workers have exited 0, and which still run."""

from collections.abc import Sequence

from rdzv_protocol.text import count


def finishing(finished: str, still_running: str) -> str:
    """It does not contain a time, so that it changes only when something happens."""
    return f"{finished} finished; still running: {still_running}"


def still_run(finished: str, minutes_ago: int, still_running: str) -> str:
    return f"{finished} finished {minutes_ago} min ago; still running: {still_running}"


# Phrases that these messages contain.


def workers_of(nodes: int, of_nodes: int) -> str:
    return f"workers of {nodes} of {count(of_nodes)}"


def on_nodes(workers: Sequence[str], more_nodes: int) -> str:
    return ", ".join(workers) + (f" and {count(more_nodes, 'more node')}" if more_nodes else "")


def on_node(ranks: str, node_id: str) -> str:
    return f"{ranks} on node {node_id}"
