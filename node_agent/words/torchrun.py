"""Messages of our rendezvous handler within torchrun."""

from rdzv_protocol.text import count

BUG = "this is a bug, please report it:"
HAS_LEFT = "it has left"
WORKERS_DONE = "its workers are done"
WORKERS_FAILED = "its workers failed"
TORCHRUN_EXITS = "torchrun exits"
WORKERS_RESTART = "torchrun restarts its workers; its log shows which one failed"


def no_restarts_left(cause: str) -> str:
    return f"{cause}, and torchrun has no restarts left"


def succeeded_without(reason: object) -> str:
    return f"the run has succeeded without this node: {reason}"


def no_longer_part(reason: object) -> str:
    return f"this node is no longer part of the run: {reason}"


def store(address: str) -> str:
    return f"group rank 0's store at {address}"


def nodes_missing(nodes: int, round_: int, address: str) -> str:
    return f"{count(nodes)} of round {round_} {'has' if nodes == 1 else 'have'} not reached {store(address)}"


def store_unreachable(address: str, reason: str) -> str:
    return f"cannot reach {store(address)}: {reason}"


def only_for_node_agent(key: str) -> str:
    return f"--rdzv-conf: {key} is for node-agent: here torchrun's own agent starts the workers"


def own_run(endpoint: str, run_id: str) -> str:
    return (
        f"--rdzv-endpoint {endpoint}: this process is a worker of run {run_id} there, and cannot also be a node of it. "
        "Give another --rdzv-id, or --standalone to run on this node only"
    )
