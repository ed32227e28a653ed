"""Costs of operators' actions, before they are carried out. None is charged to the restart budget."""

from rdzv_protocol.text import count, span

UNCHARGED = "charged: no"
NOTHING_RUNS = f"no workers run, so no work is lost; {UNCHARGED}"
NOTHING_STOPS = f"no worker stops; {UNCHARGED}"
WORK_UNKNOWN = "the lost work is unknown, because the workers report no progress"


def work(lost_s: float, checkpoint_step: int) -> str:
    return f"about {span(round(lost_s))} of work since the latest checkpoint at step {checkpoint_step} is lost"


def work_without_checkpoint(ran_s: float) -> str:
    return f"the workers have reported no checkpoint: up to {span(round(ran_s))} of work is lost"


def stop(workers: int, lost: str) -> str:
    """`lost`: what happens to the work, as from `work`."""
    return f"{_stop(workers)} for good; {lost}; {UNCHARGED}"


def restart(workers: int, lost: str) -> str:
    return f"{_stop(workers)}, and new ones start; {lost}; {UNCHARGED}"


def drain(own: int, others: int, lost: str) -> str:
    """`own`: workers of the node; `others`: workers of the other nodes, which restart."""
    again = f"; {count(others, 'worker')} of other nodes {'restarts' if others == 1 else 'restart'}" if others else ""
    return (
        f"{_stop(own)} on this node, with time for a checkpoint{again}; without a new checkpoint, {lost}; "
        f"the node stays cordoned; {UNCHARGED}"
    )


def _stop(workers: int) -> str:
    return f"{count(workers, 'worker')} {'stops' if workers == 1 else 'stop'}"


def waits(missing: int) -> str:
    return f"this round continues, but the next restart waits for {count(missing, 'more node')}; {UNCHARGED}"


def forget(events: int) -> str:
    return f"its {count(events, 'event')} and its failures are deleted"


def of_run(run_id: str, cost: str) -> str:
    return f"run {run_id}: {cost}"
