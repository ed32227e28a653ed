"""Messages about each round and the run's end. A run without problems needs only this module."""

from collections.abc import Mapping

from rdzv_protocol.text import length


def round_started(
    round_: int,
    group_rank: int,
    nodes: int,
    first_rank: int,
    last_rank: int,
    workers: int,
    master: str,
    restarts: int,
    used: int,
    most: int,
) -> str:
    """This node's place in the round that starts. `restarts`: charged ones; `used`, `most`: of `--max-restarts`."""
    ranks = f"rank {first_rank}" if first_rank == last_rank else f"ranks {first_rank}-{last_rank}"
    # the budget may have forgotten old restarts, and restarts after hangs may have a budget of their own
    budget = f" of {most}" if restarts == used else f", {used} of {most} used"
    return (
        f"round {round_}: node {group_rank} of {nodes}, {ranks} of {workers}, master {master}, "
        f"restart {restarts}{budget}"
    )


def status_page(url: str) -> str:
    return f"status page: {url}"


def no_status_page(why: str) -> str:
    return f"cannot open the status page: {why}; the run continues without it"


def round_over(round_: int, reason: str) -> str:
    return f"round {round_} ended before it began on this node: {reason}"


def stopping_workers(round_: int, reason: str) -> str:
    """`reason`: empty if a failure message already gave it."""
    return f"stopping the workers of round {round_}{': ' if reason else ''}{reason}"


def worker_failed(rank: int, local_rank: int, pid: int, node_id: str, cause: str, error: str) -> str:
    return (
        f"worker rank {rank} (local rank {local_rank}, pid {pid}) on node {node_id} failed: "
        f"{cause}{': ' if error else ''}{error}"
    )


def run_failed(reason: str) -> str:
    return f"run failed: {reason}"


def run_succeeded(reason: str) -> str:
    return f"run succeeded: {reason}"


def run_succeeded_after_restarts(reason: str, restarts: int, charged: int) -> str:
    return f"{run_succeeded(reason)}; {restarts_charged(restarts, charged)}"


def restarts_charged(restarts: int, charged: int) -> str:
    return f"{restarts} restart{'s' * (restarts != 1)}, {charged or 'none'} charged"


def run_took(seconds: Mapping[str, float], ettr: float | None) -> str:
    """Time of the run by category, without those that took none, and its effective part if that is known."""
    shown = {name: length(spent) for name, spent in seconds.items()}
    parts = ", ".join(f"{spent} {name}" for name, spent in shown.items() if spent != length(0.0))
    ratio = "" if ettr is None else f"; effective training time ratio {ettr:.3f}"
    return f"the run took {length(sum(seconds.values()))}{parts and f': {parts}'}{ratio}"


OMP_NUM_THREADS = "OMP_NUM_THREADS=1 for each worker, so that workers share the cores; set it to tune your application"


def joining(run_id: str, address: str, node_id: str) -> str:
    return f"joining run {run_id} at {address} as node {node_id}"


def logs_are_in(folder: str) -> str:
    return f"logs: {folder}"


def not_imported(error: str) -> str:
    """Logged soon after the first start of workers, if the program's modules cannot be read any more."""
    return f"cannot load a part of node-agent ({error}): if workers fail, this agent may not be able to report why"
