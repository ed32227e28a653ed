"""Final report of a run, which every agent gets when the run ends. Its size does not depend on the number of nodes.

It contains text that users' scripts have written, and every agent gets it at once. So it always stays below 16 KiB.
"""

from typing import Any

from msgspec.structs import replace
from rdzv_protocol.messages import Failure, Finish, RestartEntry
from rdzv_protocol.text import clip, last_lines

from rdzv_server.core.kernel.run import FailureRecord, Restart, Run, Stage

OTHERS, RESTARTS = 4, 8
REASON_BYTES, RESTART_BYTES = 1_024, 240
NAME_BYTES = 256
DETAIL_BYTES, SUMMARY_BYTES = 400, 160
"""Most bytes of the exit status and of the error, each as text: with the evidence, and in a summary."""
CAUSE_BYTES = 640
"""Most bytes of the cause with the evidence: a policy's cause may say what all ranks did."""
EVIDENCE_BYTES = 2_340
"""Most bytes of the last lines that a failed worker wrote."""
EVIDENCE_LINES = 32


def finish(run: Run, **more: Any) -> Finish:
    """Return the directive that tells agents how the run has ended; `more`: fields that policies fill in."""
    ended_by, first = _ended_by(run), run.first_charged if run.stage is Stage.FAILED else None
    others = [record.failure for record in run.failures if ended_by and _is_beside(record, ended_by)][:OTHERS]
    return Finish(
        succeeded=run.stage is Stage.SUCCEEDED,
        reason=clip(run.end_reason, REASON_BYTES),
        failure=details(ended_by.failure) if ended_by else None,
        round=ended_by.round if ended_by else 0,
        first_failure=details(first.failure) if first else None,
        first_round=first.round if first else 0,
        others=tuple(map(summary, others)),
        more_failures=max(0, len(run.failed) - 1 - len(others)) if ended_by else 0,
        restarts=_restarts(run),
        restart_total=sum(run.restarts.values()),
        charged_restarts=run.restart_count,
        join_timed_out=run.join_timed_out,
        no_progress=run.no_progress,
        **more,
    )


def _ended_by(run: Run) -> FailureRecord | None:
    """Return the failure that ended the run, even if a restart began; None if a departure explains the end."""
    to_blame = run.end_failure or run.opening.cause.is_failure
    return run.first_of_round if run.stage is Stage.FAILED and to_blame else None


def _is_beside(record: FailureRecord, root: FailureRecord) -> bool:
    return record.round == root.round and record != root


def details(failure: Failure) -> Failure:
    """Clip a failure with its evidence: the traceback, or if there is none the worker's last lines."""
    written = () if failure.traceback else last_lines(failure.stderr_tail, EVIDENCE_LINES, EVIDENCE_BYTES)
    traceback = last_lines(failure.traceback, EVIDENCE_LINES, EVIDENCE_BYTES)
    cause = clip(failure.cause, CAUSE_BYTES)
    return replace(_clipped(failure, DETAIL_BYTES), cause=cause, traceback=traceback, stderr_tail=written)


def summary(failure: Failure) -> Failure:
    """Reduce a failure to its cause and error, without the evidence."""
    return replace(_clipped(failure, SUMMARY_BYTES), traceback=(), stderr_tail=(), hint="", error_file="", rule="")


def _clipped(failure: Failure, most_bytes: int) -> Failure:
    texts = {
        name: clip(getattr(failure, name), most_bytes) for name in ("cause", "error", "hint", "error_file", "rule")
    }
    return replace(failure, node_id=clip(failure.node_id, NAME_BYTES), **texts)


def _restarts(run: Run) -> tuple[RestartEntry, ...]:
    """Return the latest restarts of the ledger, and one for a membership change that did not complete."""
    ledger, opening = list(run.ledger), run.opening
    has_begun = run.membership is None or run.membership.round == run.round
    if not has_begun and not opening.cause.is_failure:
        ledger.append(Restart(run.round, opening.cause, False, opening.reason, opening.at))
    return tuple(
        RestartEntry(
            round=restart.round,
            cause=restart.cause.value,
            charged=restart.charged,
            reason=clip(restart.reason, RESTART_BYTES),
            at=run.wall_clock(restart.at),
        )
        for restart in ledger[-RESTARTS:]
    )
