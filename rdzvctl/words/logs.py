"""Messages about the output of workers and their stacks, and where those are."""


def log_not_shown(why: str) -> str:
    return f"not shown here: {why}"


CUT = "the file has more lines before these"


def no_rank(run_id: str, rank: int, highest: int | None) -> str:
    """`highest`: the highest rank of the run; None if no worker has been started."""
    known = "no worker has started" if highest is None else f"the highest rank is {highest}"
    return f"no node of run {run_id} has rank {rank}: {known}, or its node is gone"


def next_log(round: int, path: str, node_id: str) -> str:
    return f"round {round}: {path} on node {node_id}"


def stacks(round: int, sentence: str) -> str:
    return f"round {round}: {sentence}"
