"""Messages of the features that are one file each."""

from collections.abc import Sequence

from rdzv_protocol.words import run

_MOST_NAMED = 8
"""Most pids that a warning names."""

# earlier_workers


def earlier_workers_run(pids: Sequence[int]) -> str:
    """Warning about an earlier agent's workers, which hold what this agent's workers need."""
    return (
        f"warning: workers of an earlier agent of this job still run on this node (pids {_some(pids)}). They may "
        f"hold its GPUs, memory and ports. Stop that agent, or end these processes: {_kill(pids)}"
    )


def left_behind(pids: Sequence[int]) -> str:
    """Warning about processes of a dead agent's workers. Its guardian, if there was one, could not end them."""
    return (
        f"warning: processes that a killed agent has left behind still run on this node (pids {_some(pids)}). They may "
        f"hold its GPUs, memory and ports. End them: {_kill(pids)}"
    )


def _some(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids[:_MOST_NAMED])) + (", ..." if len(pids) > _MOST_NAMED else "")


def _kill(pids: Sequence[int]) -> str:
    return f"kill -9 {' '.join(map(str, pids[:_MOST_NAMED]))}"


# recorded_errors


def exited_0_with_error(rank: int, error: str) -> str:
    return f"warning: {run.exited_0_with_error(rank, error)}"


# ended_scripts


def ended_scripts_unknown(kind: str, error: str) -> str:
    return (
        "cannot find out whether scripts of silent workers have ended, because of an error of this agent "
        f"({kind}: {error}). The workers continue"
    )


# evidence


def no_workers(node_id: str, round_: int) -> str:
    return f"node {node_id} has no workers of round {round_}: they have ended, or have not started yet"


def examined_workers(reason: str, result: str) -> str:
    """Logged with the folder of the findings, or with the problems."""
    because = f" ({reason})" if reason else ""
    return f"examined the workers{because}: {result}"


# extension_locks


def lock_left(path: str) -> str:
    return (
        f"{path} is the lock of a killed build of a torch extension. No process here has it open, and workers that "
        "load the extension wait for it forever. Remove it, unless another machine is building there now"
    )


# master_addr_check


def master_is_here(host: str) -> str:
    """For an address of this node, if no process of this machine has MASTER_PORT."""
    return _apart(
        host,
        "this node has the same address, but another machine has MASTER_PORT. Let containers use the network of their "
        "host (docker run --network host), or give each agent its own --local-addr",
    )


def no_route_to_master(host: str, why: str) -> str:
    return _apart(host, f"{why}. {_OTHER_ADDRESS}")


def master_unknown(host: str, why: str) -> str:
    return _apart(host, f"this node cannot look up that name ({why}). {_OTHER_ADDRESS}")


_OTHER_ADDRESS = "Give the agent on rank 0's node a --local-addr that every node can reach"


def _apart(host: str, why: str) -> str:
    apart = f"the workers of this node cannot reach rank 0 at MASTER_ADDR {host}, and may wait until a timeout"
    return f"warning: {apart}: {why}"


# file_timer

TIMER_EXPIRED = (
    "the code that the timer guards took longer than the timer allows: "
    "find out where the code waits, or allow more time"
)


def no_timer(why: str) -> str:
    return f"cannot offer a file timer: {why}"


def no_pipe(variable: str, path: str) -> str:
    return f"{variable}={path}: this path exists and is not a named pipe; choose another path"


def no_timer_request(path: str, line: bytes) -> str:
    return f"{path}: not a timer request: {line[:80]!r}"


def timer_expired(scope: str, pid: int) -> str:
    return f"timer {scope[:200]!r} of process {pid} has expired"


def timer_signals(scope: str, pid: int, signal_name: str) -> str:
    return f"{timer_expired(scope, pid)}: sending {signal_name} to the process"


def timer_cannot_signal(pid: int, why: str) -> str:
    return f"cannot signal process {pid}: {why}"
