"""Agents that leave a run or are lost, and why."""


def left(node_id: str, detail: str) -> str:
    return f"node {node_id} left: {detail}"


def lost(node_id: str, cause: str) -> str:
    return f"node {node_id} lost: {cause}"


# Causes of a loss.


def not_heard(lease_s: float) -> str:
    return f"silent for {lease_s:g} s"


def not_back(grace_s: float) -> str:
    return f"its connection closed and it did not return within {grace_s:g} s"


PROBE_UNANSWERED = "another agent of the same node joined, and the old agent did not respond"
REPLACED = "a new agent of the same node joined"
CORROBORATED = "its connection closed and other nodes' workers failed"
SILENT = "it was silent"

# Excuses: why a loss is blamed on no node.

OTHERS_VANISHED = "other nodes vanished at the same time, so the server suspects the network path and blames no node"
NO_AGENT_HEARD = (
    "the server did not hear from any agent of the run then, so it suspects the network path and blames no node"
)


def excused(cause: str, excuse: str) -> str:
    return f"{cause}; {excuse}" if excuse else cause


# Answers to a lost agent, and to operators who wait for its answer.


def reported_late(node_id: str, failure: str) -> str:
    """`failure`: the sentence of the failure that the node's agent has reported."""
    return f"node {node_id} reports a failure after it was lost, too late to count: {failure}"


def gone(node_id: str, run_id: str, cause: str, *, left: bool) -> str:
    return f"node {node_id} is no longer part of run {run_id}: it {'left' if left else 'was lost'}: {cause}"


def not_part(agent_id: str, run_id: str) -> str:
    """The run no longer knows an agent."""
    return f"agent {agent_id} is no longer part of run {run_id}"


def cannot_answer(node_id: str, detail: str) -> str:
    return f"the agent of node {node_id} is gone: {detail}"
