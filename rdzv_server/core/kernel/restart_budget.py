"""Budget of restarts: what each restart costs, which failure is to blame, and when the run cannot afford another one.

A round that fails is charged one restart, however many workers failed in it. If the server learns before the next round
completes that a participant was lost or left, that departure caused the failures. Then the restart becomes a membership
change, which is free. So a charge is settled, and counted, only when the next round completes.

The first failure of a round is to blame, unless it is a consequence: its worker's output says that another worker was
gone. Then the first failure of the round that is no consequence is to blame. A consequence by itself does not end a run
at once. Its cause will follow, as another node's report or as the loss of that node. The run waits a moment for it, and
until the server has heard every other agent of the round. The connection of a dead agent may close without a sign.
"""

from msgspec import Struct
from rdzv_protocol.constraints import Count
from rdzv_protocol.messages import Failure

from rdzv_server.core.kernel import failed_rounds
from rdzv_server.core.kernel.run import CHARGED, Cause, FailureRecord, Opening, Restart, Run, keep_latest, remember
from rdzv_server.words import failures as words

CAUSE_WINDOW_S = 1.0
"""Seconds that a run with no restarts left waits for the cause of a consequence."""
FAILURES_OF_A_ROUND = 8
"""Most failures of a round that are remembered one by one, in addition to the root."""


class Verdict(Struct, frozen=True):
    """Decision that a failure ends the run, and why."""

    reason: str
    no_progress: bool = False
    """Whether the reason is that restarts brought no progress."""


class OwnBudget(Struct, frozen=True):
    """Budget of the restarts for one cause that are not charged to `max_restarts`."""

    used: Count
    most: Count


def note(run: Run, record: FailureRecord) -> None:
    """Count a failure of the last completed round."""
    blamed = run.first_of_round
    if is_to_blame(run, record.failure):
        if run.first_failure is None or run.first_failure == blamed:
            run.first_failure = record
        run.first_of_round = record
    if run.seat_of(record.agent_id):  # a drained node may no longer have one in this round
        run.failed.add(record.agent_id)
    _count(run, record)


def note_root(run: Run, record: FailureRecord) -> None:
    """Make a failure the root of its round: failures that follow when the workers are stopped are its consequences.

    It counts against a node only if its failure singles a worker out.
    """
    run.first_failure = run.first_failure or record
    run.first_of_round = record
    _count(run, record)


def _count(run: Run, record: FailureRecord) -> None:
    if len(run.failed) <= FAILURES_OF_A_ROUND or record is run.first_of_round:
        remember(run.failures, record)
    node_id = record.failure.node_id
    if record.failure.singled_out and not record.failure.consequence:
        keep_latest(run.failures_by_node, node_id, run.failures_by_node.get(node_id, 0) + 1, failed_rounds.MOST_NODES)


def is_to_blame(run: Run, failure: Failure) -> bool:
    """Return whether a failure that is reported now is the root of its round, as far as is known."""
    blamed = run.first_of_round
    return blamed is None or (blamed.failure.consequence and not failure.consequence)


def verdict(run: Run, failure: Failure, now: float) -> Verdict | None:
    """Return the verdict that this failure ends the run; None if a restart follows."""
    if failure.verdict == "fatal":
        return Verdict(words.fatal_rule(failure.rule))
    if is_fatal(run, failure):
        return Verdict(words.fatal_exit_code(failure.exit_code))
    if failure.verdict == "retry":
        return None
    if run.settings.fail_when_hopeless and (why := failed_rounds.restart_useless(run, failure.recurs, now)):
        return Verdict(words.hopeless(words.restart_useless(why)))
    return without_progress(run, now) or (None if left(run, now) > 0 else spent_verdict(run))


def without_progress(run: Run, now: float) -> Verdict | None:
    """Return the verdict that the run ends because its restarts made no progress; None if it does not."""
    reason = failed_rounds.no_progress(run, now)
    return Verdict(reason, no_progress=True) if reason else None


def spent_verdict(run: Run) -> Verdict:
    """Return the verdict that the run ends because no restart is left."""
    return Verdict(words.no_restarts_left(run.settings.max_restarts, run.settings.restart_window_s))


def left(run: Run, now: float) -> int:
    """Return the number of restarts that may still be charged before a failure ends the run."""
    return run.settings.max_restarts - used(run, now)


def used(run: Run, now: float) -> int:
    """Return the number of charged restarts that count against `max_restarts` now."""
    window_s = run.settings.restart_window_s
    counted = sum(times for cause, times in run.restarts.items() if _spends_max_restarts(run, cause))
    spent = counted if window_s is None else sum(at > now - window_s for at in run.charged_at)
    return min(spent, run.settings.max_restarts)


def own_budgets(run: Run) -> dict[Cause, OwnBudget]:
    """Return the budgets of the causes whose restarts are charged, but not to `max_restarts`."""
    return {
        cause: OwnBudget(run.restarts.get(cause, 0), most)
        for cause, own in CHARGED.items()
        if (most := own(run.settings)) is not None
    }


def _spends_max_restarts(run: Run, cause: Cause) -> bool:
    """Return whether restarts for this cause are charged to `max_restarts`: the cause has no budget of its own."""
    return cause in CHARGED and CHARGED[cause](run.settings) is None


def is_fatal(run: Run, failure: Failure) -> bool:
    """Return whether the user declared that such a failure ends the run, even within the budget."""
    return failure.verdict == "fatal" or failure.exit_code in run.settings.fatal_exit_codes


def cause_of(failure: Failure) -> Cause:
    """Return the cause of the restart that follows this failure. It is charged unless the user has declared it free."""
    return Cause.RETRIED if failure.verdict == "retry" else Cause.WORKER_FAILURE


def awaits_cause(run: Run, record: FailureRecord) -> bool:
    """Return whether the cause of this failure, the last one reported, may still be reported."""
    return record.failure.consequence and len(run.running) > len(run.failed)


def reclassify(opening: Opening, cause: Cause, reason: str) -> None:
    """Attribute the restart to a participant that is gone: the apparent failure was a membership change."""
    if opening.cause.is_failure or opening.cause is Cause.NODE_ARRIVED:
        opening.cause = cause
        opening.reason = reason
        opening.backoff_until = None


def settle(run: Run, now: float) -> None:
    """Add to the ledger why the completing round was opened, and charge the restart if that was a failure."""
    opening = run.opening
    if opening.cause is Cause.FIRST:
        return
    charged = opening.cause.is_charged
    failed_rounds.settle(run, charged=charged, failed=opening.cause.is_failure)
    run.restart_count += charged
    if _spends_max_restarts(run, opening.cause) and run.settings.restart_window_s is not None:
        run.charged_at = [*run.charged_at, now][-run.settings.max_restarts :]
    run.first_charged = run.first_charged or (run.first_of_round if charged else None)
    run.restarts[opening.cause] = run.restarts.get(opening.cause, 0) + 1
    remember(run.ledger, Restart(run.round, opening.cause, charged, opening.reason, now))
