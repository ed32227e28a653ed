"""Costs of operators' actions, before they are carried out. None is charged to the restart budget."""

from collections.abc import Sequence

from rdzv_protocol.text import count, span

UNCHARGED = "charged: no"
NOTHING_RUNS = f"no workers run, so no work is lost; {UNCHARGED}"
NOTHING_STOPS = f"no worker stops; {UNCHARGED}"
NOTHING_TO_ADMIT = "no standby node waits for a free place, so no worker stops"
WORK_UNKNOWN = "the lost work is unknown, because the workers report no progress"


def work(lost_s: float, checkpoint_step: int) -> str:
    return f"about {span(round(lost_s))} of work since the latest checkpoint at step {checkpoint_step} is lost"


def work_without_checkpoint(ran_s: float) -> str:
    return f"up to {span(round(ran_s))} of work is lost, because the workers have reported no checkpoint"


def stop(workers: int, lost: str) -> str:
    """`lost`: what happens to the work, as from `work`."""
    return f"{_stop(workers)} for good; {lost}; {UNCHARGED}"


def restart(workers: int, lost: str, waits: str = "") -> str:
    """`waits`: message `stands_still`; empty if new workers start at once."""
    return f"{_stop(workers)}, and {waits or 'new ones start'}; {lost}; {UNCHARGED}"


def drain(own: int, others: int, lost: str, waits: str = "") -> str:
    """`own`: workers of the node; `others`: workers of the other nodes. `waits`: message `stands_still`; empty if the
    others restart at once."""
    again = _stop(others) if waits else f"{count(others, 'worker')} {'restarts' if others == 1 else 'restart'}"
    also = [f"{again} on other nodes"] * bool(others) + [waits] * bool(waits)
    return "; ".join((
        f"{_stop(own)} on this node, with time for a checkpoint", *also, f"without a new checkpoint, {lost}",
        "the node stays cordoned", UNCHARGED,
    ))  # fmt: skip


def stands_still(missing: int, join_timeout_s: float) -> str:
    """The run has too few nodes to continue, and no spare."""
    return f"no worker runs until {_join(missing)}; if this takes more than {span(join_timeout_s)}, the run fails"


def stands_still_later(missing: int, join_timeout_s: float) -> str:
    """The run has enough running workers, and too few nodes for the next round."""
    return (
        f"its workers continue, but the next restart waits for {count(missing, 'more node')}; if this takes more than "
        f"{span(join_timeout_s)}, the run fails"
    )


def nothing_stops(waits: str) -> str:
    """`waits`: message `stands_still`."""
    return f"no worker stops, but {waits}; {UNCHARGED}"


def _join(missing: int) -> str:
    return f"{count(missing, 'more node')} {'joins' if missing == 1 else 'join'}"


def _stop(workers: int) -> str:
    return f"{count(workers, 'worker')} {'stops' if workers == 1 else 'stop'}"


def waits(missing: int) -> str:
    return f"this round continues, but the next restart waits for {count(missing, 'more node')}; {UNCHARGED}"


def forget(events: int) -> str:
    return f"its {count(events, 'event')} and its failures are deleted"


def unknown_action(name: str, known: Sequence[str]) -> str:
    return f"there is no action {name[:40]!r}: the actions are {', '.join(known)}"


def of_run(run_id: str, cost: str) -> str:
    return f"run {run_id}: {cost}"
