"""What a restart costs, and when the run cannot afford it.

A round that fails is charged one restart, however many workers failed in it. If it turns out before the next round
completes that a participant was lost or left, the failures were that departure's doing: the restart becomes a
membership change, which is free. So a charge is only settled, and counted, when the next round completes.
"""

from rdzv_server.core.run import Cause, Opening, Restart, Run


def verdict(run: Run, exit_code: int) -> str | None:
    """Why a failure with this exit code ends the run, or None if a restart answers it."""
    if exit_code in run.settings.fatal_exit_codes:
        return f"exit code {exit_code} is fatal for this run"
    if run.restart_count >= run.settings.max_restarts:
        return f"no restarts left: {run.restart_count} of {run.settings.max_restarts} used"
    return None


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
    run.restarts[opening.cause] = run.restarts.get(opening.cause, 0) + 1
    run.ledger.append(Restart(run.round, opening.cause, charged, opening.reason, now))
