"""Messages of an agent that leaves its run, or returns to it."""

from typing import Literal


def error(reason: str) -> str:
    return f"error: {reason}"


def leaving(why: str) -> str:
    return f"{why}: leaving the run"


def leaving_with_workers(why: str, within_s: float, signal_name: str) -> str:
    return f"{leaving(why)}; its workers have {within_s:g} s to end, and another {signal_name} kills them"


def leaving_after_success(why: str, ago_s: float) -> str:
    """`ago_s`: seconds since the last worker has exited 0. The signal may have come to the workers before the agent."""
    return (
        f"{leaving(why)}; all workers of this node exited 0, the last one {ago_s:.2f} s before. An eviction may have "
        "ended them early, so this is no success: start the agent again to finish the run"
    )


def leaving_after_notice(why: str, within_s: float) -> str:
    return f"{leaving(why)} when the workers of all nodes have saved, after {within_s:g} s at most"


WORKERS_ENDED_AFTER_NOTICE = "all workers have ended after the notice: waiting for the end of the round"


def leaves_already(signal_name: str) -> str:
    return f"{signal_name}: the agent already waits for its workers to save; another {signal_name} ends the wait"


def workers_end_already(signal_name: str) -> str:
    return f"{signal_name}: the workers are already ending; another {signal_name} kills them"


def killing_workers(signal_name: str) -> str:
    return f"{signal_name} again: killing the workers"


def drained(reason: str, remaining_s: float, has_workers: bool) -> str:
    grace = f"; its workers have {remaining_s:.0f} s" if has_workers else ""
    return f"leaving the run: {reason}{grace}"


WORKERS_GONE = "the workers have ended: this node leaves the run"
"""Last line of an agent whose node was drained while its workers ran."""


def kept_out(reason: str) -> str:
    """For an agent that exits so that another node can take its place (`--exit-when-excluded`)."""
    return f"rdzv-server excludes this node ({reason}): replace it"


def crashed(reason: str) -> str:
    return f"error: {reason}; leaving the run"


def reason_to_leave(why: Literal["drained", "found unfit", "excluded"]) -> str:
    """Reason that the agent sends to the server, for people."""
    return why


def got_signal(signal_name: str) -> str:
    """Error of an agent that leaves because of a signal, worded as in torchrun."""
    return f"SignalException: the agent got {signal_name}"


# Without the server, which may not know of this agent any more.

WORKERS_SUCCEEDED = "all workers of this node exited 0; the outcome of the run is unknown"
OUTCOME_NEEDED = (
    "with --exit-with-run, this agent exits 0 only if it knows that the run has succeeded. To see whether the workers "
    "of the other nodes also exited 0, read their logs"
)


def outcome_unknown(refusal: str) -> str:
    return f"{refusal}; {WORKERS_SUCCEEDED}"


def run_done(reason: str) -> str:
    return f"{reason}; all workers of the run, which was on this node only, exited 0"


def leaving_without_server(signal_name: str) -> str:
    return f"{signal_name}: leaving without rdzv-server; all workers of this node exited 0"


def rejoining(reason: str, slept_s: float) -> str:
    """`slept_s`: seconds for which the agent did not run, 0 if it ran."""
    why = f"; this agent did not run for {slept_s:.0f} s, as after SIGSTOP" if slept_s else ""
    return f"{reason}{why}; joining again"
