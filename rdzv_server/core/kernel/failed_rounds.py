"""Failed rounds in a row: the wait before the next restart, and when another restart is of no use.

Failed rounds form a row until one round lasts for `steady_s` or gets the run further. It does so by a higher step or a
later checkpoint than any round before it. The first restart of a row comes at once. After that each wait is twice the
previous one.

Whether a charged restart was without progress depends only on the steps and checkpoints that workers report
(`node_agent.progress`), not on how long the round lasted. If the workers of a run have never reported any, restarts
that follow each other quickly are counted instead. The same applies if the steps have fallen within a round. They are
then counted within each epoch, so a lower step than in an earlier round shows nothing.

The same measure decides how many rounds in a row the same failure has ended. Failures are the same if their exit codes
are equal and their errors differ only in numbers. Without an error, the causes are compared.

The restarts after lost nodes and nodes that left are free, so no budget ends a run whose nodes come and go forever.
The same measure decides how many rounds departures have ended in a row, and how many of them each node's loss has
ended. If the user limits the restarts without progress, a node that is lost more often than that ends the run. If
reports cannot show progress, a round without the node ends its row: the other nodes may have got the run further.
"""

import re

from rdzv_protocol.messages import Recurs
from rdzv_protocol.text import clip

from rdzv_server.core.kernel.run import Agent, Cause, DeparturesInRow, Run, SameFailure, Stage, keep_latest
from rdzv_server.words import failures as words

STEADY_BACKOFFS = 2.0
"""Multiple of the longest wait that a round must last to end a row: 10 minutes by default, as in Kubernetes."""
MOST_DOUBLINGS = 60
FAILURE_BYTES = 240
"""Most bytes of a failure that are kept for comparison with the next one."""
_NUMBERS = r"0x[0-9a-fA-F]+|\d+"
MOST_NODES = 10_000
"""Most nodes of a run whose failures or losses are counted: those that failed, or were lost, last."""
START_S = 600.0
"""A round that ends within this many seconds without having reported a step counts as failed at its start."""


def steady_s(run: Run) -> float:
    """Return the seconds that a round must last so that its failure is no longer part of a row."""
    return STEADY_BACKOFFS * run.settings.restart_backoff_max_s


def backoff_s(run: Run, now: float) -> float:
    """Return the seconds to wait before the restart if the running round fails now."""
    first_s, in_row = run.settings.restart_backoff_s, _in_row(run, now)
    if not first_s or not in_row:
        return 0.0
    return min(first_s * 2.0 ** min(in_row - 1, MOST_DOUBLINGS), run.settings.restart_backoff_max_s)


def no_progress(run: Run, now: float) -> str | None:
    """Return why the run gives up, for lack of progress, if its round fails now; None if it does not."""
    most, made = run.settings.max_restarts_without_progress, _without_progress(run, now)
    if most is None or made < most:
        return None
    if not shows_progress(run):
        return words.no_steps(made + 1, steady_s(run), fall=run.steps_fall)
    return words.no_progress(made + 1, run.highest_step, run.checkpoint_step)


def note_lost(run: Run, agent: Agent) -> None:
    """Note that an agent was lost, after the run has drawn its conclusions. It counts if it had a seat in the round
    that has ended.
    """
    if run.stage is Stage.FORMING and run.seat_of(agent.agent_id):
        run.lost_nodes.add(agent.node_id)
        most = run.settings.max_restarts_without_progress
        if most is not None and run.losses_without_progress.get(agent.node_id, 0) >= most:
            run.lost_too_often.add(agent.node_id)


def lost_too_often(run: Run) -> str | None:
    """Return the node whose losses end the run, because it made no progress between them; None if none does.

    The run needs no node that is kept out of it.
    """
    if not run.lost_too_often or run.opening.cause is not Cause.NODE_LOST or _makes_progress(run, run.opening.at):
        return None
    return min((node_id for node_id in run.lost_too_often if node_id not in run.cordons), default=None)


def repeated_losses(run: Run, node_id: str) -> str:
    """Return why the run ends after the loss of this node: see `lost_too_often`."""
    rounds = run.losses_without_progress.get(node_id, 0) + 1
    if not shows_progress(run):
        return words.lost_without_steps(node_id, rounds, steady_s(run), fall=run.steps_fall)
    return words.lost_without_progress(node_id, rounds, run.highest_step, run.checkpoint_step)


def restart_useless(run: Run, recurs: Recurs, now: float) -> str | None:
    """Return why a restart does not help after such a failure in the running round; None if it may help."""
    if recurs == "at_start" and not _reports_progress(run) and not run.restarts and now - run.started_at < START_S:
        return words.FAILED_AT_START
    step = run.step_of_round
    if recurs == "at_step" and step is not None and step == run.recurring_step and not run.steps_fall:
        return words.failed_at_step(step)
    return None


def settle(run: Run, *, charged: bool, failed: bool) -> None:
    """Count the round that has ended, for any reason, and reset the measurements for the next one."""
    ended_at = run.opening.at
    run.restarts_in_row = _in_row(run, ended_at) + failed
    run.restarts_without_progress = _without_progress(run, ended_at) + charged
    run.losses_without_progress = _losses(run, ended_at)
    if run.opening.cause is Cause.NODE_LOST:
        row = {node_id: run.losses_without_progress.get(node_id, 0) + 1 for node_id in sorted(run.lost_nodes)}
        for node_id, rounds in row.items():
            keep_latest(run.losses_without_progress, node_id, rounds, MOST_NODES)
    run.lost_nodes, run.lost_too_often = set(), set()
    run.same_failure = _same_failure(run, ended_at, failed=failed)
    run.departures_in_row = _departures_in_row(run, ended_at)
    root = run.first_of_round.failure if run.first_of_round else None
    run.recurring_step = run.step_of_round if root and root.recurs == "at_step" else None
    run.step_of_round = None
    run.step_before, run.checkpoint_before = run.highest_step, run.checkpoint_step


def same_failure(run: Run, now: float) -> SameFailure | None:
    """Return the row of rounds that the same failure has ended until now; None if there is none, or it is over."""
    if run.stage is Stage.FORMING and run.membership:
        return _same_failure(run, run.opening.at, failed=run.opening.cause.is_failure)
    return None if _gets_further(run, now) else run.same_failure


def departures_in_row(run: Run, now: float) -> DeparturesInRow | None:
    """Return the row of rounds that departures have ended until now; None if there is none, or it is over."""
    if run.stage is Stage.FORMING and run.membership:
        return _departures_in_row(run, run.opening.at)
    return None if _gets_further(run, now) else run.departures_in_row


def _same_failure(run: Run, ended_at: float, *, failed: bool) -> SameFailure | None:
    """Return the rounds in a row that the same failure has ended, after the end of the last completed round."""
    row = None if _makes_progress(run, ended_at) else run.same_failure
    if not failed or run.first_of_round is None:
        return row
    root = run.first_of_round.failure
    failure = clip(root.error or root.cause, FAILURE_BYTES)
    rounds, since = 0, run.first_of_round.at
    if row and row.exit_code == root.exit_code and re.sub(_NUMBERS, "#", row.failure) == re.sub(_NUMBERS, "#", failure):
        rounds, since = row.rounds, row.since
    return SameFailure(failure, root.exit_code, rounds + 1, since, root.rank if root.singled_out else None)


def _departures_in_row(run: Run, ended_at: float) -> DeparturesInRow | None:
    """Return the rounds in a row that departures have ended, after the end of the last completed round."""
    row = None if _makes_progress(run, ended_at) else run.departures_in_row
    if run.opening.cause not in (Cause.NODE_LOST, Cause.NODE_LEFT):
        return row
    return DeparturesInRow(row.rounds + 1, row.since) if row else DeparturesInRow(1, ended_at)


def _in_row(run: Run, now: float) -> int:
    return 0 if _got_further(run) or _is_steady(run, now) else run.restarts_in_row


def _without_progress(run: Run, now: float) -> int:
    return 0 if _makes_progress(run, now) else run.restarts_without_progress


def _losses(run: Run, ended_at: float) -> dict[str, int]:
    """Return in how many rounds before the last completed one each node was lost without progress since then."""
    if not run.losses_without_progress or _makes_progress(run, ended_at):
        return {}
    if shows_progress(run):
        return dict(run.losses_without_progress)
    seated = {seat.node_id for seat in run.seats.values()}
    return {node_id: rounds for node_id, rounds in run.losses_without_progress.items() if node_id in seated}


def _makes_progress(run: Run, now: float) -> bool:
    """Return whether the last round got the run further, or, if reports cannot show that, lasted long enough."""
    return _got_further(run) or (not shows_progress(run) and _is_steady(run, now))


def _gets_further(run: Run, now: float) -> bool:
    """Return whether the round that runs now has got the run further, by its latest signs too, or has lasted long
    enough.
    """
    pace = run.pace
    has_more_steps = _is_beyond(pace.highest_step, run.step_before)
    return has_more_steps or _is_beyond(pace.checkpoint_step, run.checkpoint_before) or _makes_progress(run, now)


def shows_progress(run: Run) -> bool:
    """Return whether the reports of the workers show if a round got the run further."""
    return _reports_progress(run) and not run.steps_fall


def _reports_progress(run: Run) -> bool:
    return run.highest_step is not None or run.checkpoint_step is not None


def _got_further(run: Run) -> bool:
    """Return whether the last round got further than all rounds before it."""
    return _is_beyond(run.highest_step, run.step_before) or _is_beyond(run.checkpoint_step, run.checkpoint_before)


def _is_beyond(reached: int | None, before: int | None) -> bool:
    return reached is not None and (before is None or reached > before)


def _is_steady(run: Run, now: float) -> bool:
    return now - run.started_at >= steady_s(run)
