"""Messages about the output of workers and their stacks, and where those are."""

from rdzv_protocol.shell import quoted
from rdzv_protocol.text import age


def place(run_id: str, rank: int, local_rank: int, node_id: str, addr: str) -> str:
    return f"rank {rank} of run {run_id}: local rank {local_rank} on node {node_id} ({addr})"


def from_file(stream: str, round: int, path: str) -> str:
    return f"{stream} of round {round}, from the file {path} on that node"


def in_folder(folder: str) -> str:
    return f"log files on that node: {folder}/"


NO_FILES = "no log files: the worker writes to its agent's console; node-agent -t 3 --log-dir DIR writes files, too"


def log_not_shown(why: str) -> str:
    return f"not shown here: {why}"


def needs_rank(run_id: str) -> str:
    return f"give the rank of a worker, too: rdzvctl logs {quoted(run_id)} 0"


def ranks(run_id: str, highest: int | None) -> str:
    """`highest`: the highest rank of the run; None if no worker has been started."""
    if not highest:
        return f"run {run_id} has {'no worker yet' if highest is None else 'only rank 0'}"
    return f"run {run_id} has ranks 0 to {highest}"


CUT = "the file has more lines before these"


def no_rank(run_id: str, rank: int, highest: int | None) -> str:
    """`highest`: the highest rank of the run; None if no worker has been started."""
    known = "no worker has started" if highest is None else f"the highest rank is {highest}"
    return f"no node of run {run_id} has rank {rank}: {known}, or its node is gone"


def was_on(run_id: str, rank: int, node_id: str, for_s: float, cause: str) -> str:
    """The worker's node is gone."""
    return f"rank {rank} of run {run_id} was on node {node_id}, which has been gone for {age(for_s)}: {cause}"


ITS_CONSOLE = "look there, in the output of its agent: the worker had no log files"


def gone(node_id: str, round: int, for_s: float, cause: str) -> str:
    """A node that may have had the rank."""
    return f"node {node_id} has been gone for {age(for_s)}, since round {round}: {cause}"


LOOK_THERE = "if such a node had the rank, look there: in its agent's output, and in its --log-dir with -t or -r"


def next_log(round: int, path: str, node_id: str) -> str:
    return f"round {round}: {path} on node {node_id}"


def in_round(round: int, sentence: str) -> str:
    return f"round {round}: {sentence}"


NO_STACK_FILES = "the agents wrote no files"


def stack_files(folder: str, node_id: str) -> str:
    return f"files with all threads: {folder} on node {node_id}; each node keeps its own"
