"""Queries of operators that a run's agents cannot answer."""

from rdzv_protocol.shell import quoted


def run_over(run_id: str, stage: str) -> str:
    return f"run {run_id} has {stage}, and its agents are gone: read the log files on the nodes"


def agent_gone(node_id: str, rank: int) -> str:
    return f"the agent of node {node_id}, which last had rank {rank}, is gone"


def agent_too_old(node_id: str) -> str:
    return (
        f"the agent of node {node_id} is older than this server and cannot answer this query: upgrade node-agent there"
    )


def no_agent_of_node(run_id: str, node_id: str) -> str:
    return f"run {run_id} has no agent of node {node_id}: rdzvctl nodes {quoted(run_id)} lists its nodes"


def too_many_open(node_id: str, most: int) -> str:
    return f"node {node_id} already has {most} open queries, its limit: try again when one of them is answered"


def no_ranks_yet(run_id: str) -> str:
    return f"run {run_id} has no ranks yet: its first round has not started"


def no_such_rank(run_id: str, rank: int, round_: int, last: int) -> str:
    return f"run {run_id} has no rank {rank}: round {round_} has ranks 0 to {last}"
