"""Messages of an agent about itself: errors in it, requests that the server refuses, queries that it cannot answer."""


def bug(traceback: str) -> str:
    return f"this is a bug, please report it:\n{traceback}"


def internal_error(kind: str, error: str) -> str:
    return f"internal error: {kind}: {error}"


def node_rank_taken(asked: int, group_rank: int) -> str:
    return f"--node-rank {asked} belongs to another node; this node has rank {group_rank}"


def suspicion_refused(why: str) -> str:
    return f"rdzv-server rejected this node's report of a possible hang: {why}"


def message_refused(why: str) -> str:
    return f"rdzv-server rejected this node's report: {why}"


def query_too_slow(node_id: str) -> str:
    return f"node {node_id} did not finish in time"


def query_failed(node_id: str, kind: str, error: str) -> str:
    return (
        f"node {node_id} failed to answer: {kind}: {error}. If node-agent was upgraded since this agent "
        "started, restart the agent"
    )


def query_unknown(node_id: str) -> str:
    return f"node {node_id} cannot answer this query"
