"""Lines of every start: all of them are here, so that a start loads one module of sentences."""


def joining(run_id: str, address: str, node_id: str) -> str:
    return f"joining run {run_id} at {address} as node {node_id}"
