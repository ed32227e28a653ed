"""What a restart costs, and when the run cannot afford it.

A round that fails is charged one restart, however many workers failed in it. If it turns out before the next round
completes that a participant was lost or left, the failures were that departure's doing: the restart becomes a
membership change, which is free. So a charge is only settled, and counted, when the next round completes.
"""

from rdzv_server.core.run import Cause, Opening, Restart, Run, remember


def verdict(run: Run, exit_code: int) -> str | None:
    """Why a failure with this exit code ends the run, or None if a restart answers it."""
    if is_fatal(run, exit_code):
        return f"exit code {exit_code} is fatal for this run"
    if run.restart_count >= run.settings.max_restarts:
        return f"no restarts left: {run.restart_count} of {run.settings.max_restarts} used"
    return None


def is_fatal(run: Run, exit_code: int) -> bool:
    """Whether the user declared that this exit code fails the run whatever the budget."""
    return exit_code in run.settings.fatal_exit_codes


def explain(opening: Opening, reason: str) -> None:
    """The failure that the restart was put down to was the consequence of this one."""
    if opening.cause is Cause.WORKER_FAILURE:
        opening.reason = reason


def reclassify(opening: Opening, cause: Cause, reason: str) -> None:
    """A participant turned out to be gone: what looked like a failure was a membership change."""
    if opening.cause in (Cause.WORKER_FAILURE, Cause.NODE_ARRIVED):
        opening.cause = cause
        opening.reason = reason


def settle(run: Run, now: float) -> None:
    """The round completes: enter why it was opened into the ledger, and charge it if that was a failure."""
    opening = run.opening
    if opening.cause is Cause.FIRST:
        return
    charged = opening.cause is Cause.WORKER_FAILURE
    run.restart_count += charged
    run.first_charged = run.first_charged or (run.first_of_round if charged else None)
    run.restarts[opening.cause] = run.restarts.get(opening.cause, 0) + 1
    remember(run.ledger, Restart(run.round, opening.cause, charged, opening.reason, now))
