"""Health of a run, beside its phase: what is wrong with a run that has not ended, since when, and what to do about it.

`RULES` has one rule for each state: those of the rendezvous, which are here, and those of the policies
(`Policy.finding`). A rule reads the run and changes nothing; it takes no longer in a run with more nodes. Sentences do
not contain times, so that they change only when something happens. Times are in seconds by the run's clock.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice

from rdzv_protocol import words as protocol_words
from rdzv_protocol.messages import Failure
from rdzv_protocol.shell import quoted
from rdzv_protocol.states import HEALTH, Health
from rdzv_protocol.text import NextStep, clip, printable

from rdzv_server.core.kernel import (
    admission,
    completion,
    failed_rounds,
    finishing,
    legal_sizes,
    progress,
    restart_budget,
    silent_runs,
)
from rdzv_server.core.kernel.policy import Finding
from rdzv_server.core.kernel.run import Cause, Restart, Run, Stage
from rdzv_server.core.policies import POLICIES, time_ledger
from rdzv_server.core.policies.hangs.hang_policy import Hangs
from rdzv_server.core.views import run_view
from rdzv_server.words import completion as completion_words
from rdzv_server.words import health as words

ROUNDS_OF_A_LOOP = 3
"""A run is looping if the same failure has ended this many rounds in a row."""
DEPARTURES_OF_A_LOOP = 5
"""A run is looping, too, if departures of nodes have ended this many rounds in a row."""
MOST_RESTARTS, OFTEN_WITHIN_S = 5, 3_600.0
"""A run is unstable if it has restarted more often than this within so many seconds, for one of `_INVOLUNTARY`."""
REASON_BYTES = 240
"""Most bytes of the reason of a restart in a sentence about the run's health."""
STALLED_START_S = 1_800.0
"""Seconds from a round's start without progress after which a run is stalled whose workers reported some before."""
LACKS_NODES_S = 60.0
"""Seconds for which a forming round must have had too few nodes to lack them: longer than a restart usually takes."""
NO_AGENTS_S = 10.0
"""The same, if the run has no agent at all: nothing of it is left that could restart."""
MOST_NAMED = 3
"""Most nodes that a sentence names."""

_INVOLUNTARY = (Cause.WORKER_FAILURE, Cause.HANG, Cause.RETRIED, Cause.NODE_LOST, Cause.NODE_LEFT)
"""Causes of restarts that follow from trouble: no operator asked for them, and no node arrived."""

Rule = Callable[[Run, float], Finding | None]


def findings(run: Run, now: float) -> list[Finding]:
    """Return what is wrong with the run, the worst first; empty if nothing is, or if the run has ended.

    While the end of the run is not written, only the reason for that can be wrong.
    """
    if run.has_ended:
        return []
    if run.stage.is_end:
        return [found for found in [_undecided(run, now)] if found]
    by_state: dict[Health, Finding] = {}
    for rule in RULES:
        if found := rule(run, now):
            by_state.setdefault(found.state, found)
    return sorted(by_state.values(), key=_place)


def of(run: Run, now: float) -> list[Finding]:
    """Return the findings about a run that has not ended; the only one is `ok` if nothing is wrong."""
    return findings(run, now) or [Finding("ok", words.OK, run.stage_since, is_trouble=False)]


def next_steps(found: Sequence[Finding]) -> list[str]:
    """Return the steps of the worst finding, then those of the other troubles, each step once."""
    return list(dict.fromkeys(step for each in with_steps(found) for step in each.next))


def command_of(step: str) -> str:
    """Return the command at the end of a step; empty if it has none."""
    return step.command if isinstance(step, NextStep) else ""


def with_steps(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings whose steps people should read: the worst one, and the other troubles."""
    return [each for each in found if each.is_trouble or each is found[0]]


def _place(found: Finding) -> int:
    return HEALTH.index(found.state)


# The rules.


def _unhealthy(run: Run, now: float) -> Finding | None:
    if not run_view.is_apart(run):
        return None
    run_id = quoted(run.run_id)
    steps = words.REPORT_ERROR, words.FIXED_SERVER, words.stop(run_id), words.forget(run_id)
    return Finding("unhealthy", run.set_apart, run.set_apart_at, steps)


def _undecided(run: Run, now: float) -> Finding | None:
    found = run.undecided()
    if found is None:
        return None
    return Finding("undecided", printable(words.undecided(found.reason)), found.since, (words.MEND_SERVER,))


def _lacks_nodes(run: Run, now: float) -> Finding | None:
    """Return a finding if the round cannot start unless other nodes come than those that still stop their workers."""
    missing, since = run_view.missing(run), run.opening.below_since
    least_s = LACKS_NODES_S if run.agents else NO_AGENTS_S
    if missing is None or now - since < least_s or missing.more_nodes <= len(missing.stopping):
        return None
    run_id, more = quoted(run.run_id), missing.more_nodes - len(missing.stopping)
    kept_out = [agent.node_id for agent in islice(run.cordoned.values(), min(more, MOST_NAMED))]
    refused = islice(missing.refused.items(), min(more, MOST_NAMED))
    steps = (
        *map(words.uncordon, map(quoted, kept_out)),
        *(protocol_words.run.correct_agent(printable(node_id), why) for node_id, why in refused),
        words.start_nodes(more, run_id),
        words.stop(run_id),
    )
    return Finding("lacks_nodes", printable(completion.shortfall(run)), since, steps)


def _silent(run: Run, now: float) -> Finding | None:
    if not run_view.waits_for_agents(run):
        return None
    steps = words.LOOK_AT_NODES, words.START_AGENTS, words.stop(quoted(run.run_id))
    if run.unheard_since is not None:
        return Finding("silent", completion_words.no_agent_heard(silent_runs.MOST_S), run.unheard_since, steps)
    absent = run.leases.absent_since
    if not absent:  # the server has just restarted, and no agent has been missed yet
        return None
    return Finding("silent", _none_connected(run), next(reversed(absent.values())), steps)


def _none_connected(run: Run) -> str:
    names = [seat.node_id for seat in islice(run.seats.values(), MOST_NAMED)]
    return printable(words.none_connected(names, len(run.seats) - len(names)))


def _overdue(run: Run, now: float) -> Finding | None:
    if run.is_unheard:
        return None
    steps = words.stacks(quoted(run.run_id)), words.stop(quoted(run.run_id))
    if run.still_running and (found := finishing.view(run)):
        return Finding("overdue", found.sentence, found.at, steps)
    return _loops_over(run, steps)


def _loops_over(run: Run, steps: tuple[str, ...]) -> Finding | None:
    """Return a finding if all workers that report progress have ended their loop long ago, and none has exited."""
    pace, limit_s = run.pace, finishing.WARNED_AFTER_S
    if run.stage is not Stage.RUNNING or finishing.has_begun(run):
        return None
    if not progress.is_over(run) or pace.moved_at is None or pace.told_at - pace.moved_at <= limit_s:
        return None
    return Finding("overdue", words.loops_over(limit_s), pace.moved_at, steps)


def _looping(run: Run, now: float) -> Finding | None:
    row = failed_rounds.same_failure(run, now)
    if row is None or row.rounds < ROUNDS_OF_A_LOOP:
        return _losing_nodes(run, now)
    record = run_view.last_failure(run) or run.first_failure
    last = record.failure if record and record.failure.singled_out else None
    logs = () if row.rank is None else (_read_output(run, row.rank, last),)
    steps = *logs, words.events(quoted(run.run_id)), words.stop_and_mend(quoted(run.run_id))
    where = words.worker_at(last.rank, last.node_id) if last else ""
    sentence = words.looping(row.rounds, row.failure, where, tells_steps=failed_rounds.shows_progress(run))
    return Finding("looping", printable(sentence), row.since, steps)


def _losing_nodes(run: Run, now: float) -> Finding | None:
    """Return a finding if nodes come and go, so that the run does not get further. These restarts are free."""
    row = failed_rounds.departures_in_row(run, now)
    if row is None or row.rounds < DEPARTURES_OF_A_LOOP:
        return None
    departures = [gone for gone in run.departures if gone.at >= row.since]
    (node_id, times), *_ = Counter(gone.node_id for gone in departures).most_common(1) or [("", 0)]
    steps = [words.history(quoted(run.run_id)), words.stop_and_mend(quoted(run.run_id))]
    if times < ROUNDS_OF_A_LOOP:
        node_id = ""
    elif not any(gone.left for gone in departures if gone.node_id == node_id):
        steps[0] = words.losses(quoted(run.run_id), printable(node_id))
    if node_id and not admission.lacks(run, node_id):
        steps.insert(0, words.keep_out(quoted(node_id)))
    tells_steps = failed_rounds.shows_progress(run)
    sentence = words.losing_nodes(row.rounds, node_id, times, tells_steps=tells_steps)
    return Finding("looping", printable(sentence), row.since, tuple(steps))


def _unstable(run: Run, now: float) -> Finding | None:
    """Return a finding if one of `_INVOLUNTARY` restarts the run often, unless the run is looping."""
    if len(run.ledger) <= MOST_RESTARTS or _looping(run, now):
        return None
    rows = ([each for each in run.ledger if each.cause is cause] for cause in _INVOLUNTARY)
    found = max((row for row in rows if _is_frequent(row, now)), key=len, default=None)
    if found is None:
        return None
    number = len(found)  # of the restarts up to the one with which the state began, in the end
    while _is_frequent(found[: number - 1], found[number - 1].at):
        number -= 1
    reason = clip(printable(found[-1].reason), REASON_BYTES)
    sentence = words.unstable(MOST_RESTARTS, OFTEN_WITHIN_S, found[-1].cause.value, reason)
    return Finding("unstable", sentence, found[number - 1].at, _steps_of_unstable(run, found))


def _is_frequent(restarts: Sequence[Restart], now: float) -> bool:
    """Return whether so many of these restarts were recent that the run was unstable at that time."""
    return len(restarts) > MOST_RESTARTS and now - restarts[-MOST_RESTARTS - 1].at < OFTEN_WITHIN_S


def _steps_of_unstable(run: Run, restarts: Sequence[Restart]) -> tuple[str, ...]:
    history = words.history(quoted(run.run_id))
    if restarts[-1].cause.is_failure:
        record = run_view.last_failure(run) or run.first_failure
        last = record.failure if record and record.failure.singled_out else None
        return (_read_output(run, last.rank, last), history) if last else (history,)
    went = Counter(gone.node_id for gone in run.departures if gone.at >= restarts[-MOST_RESTARTS - 1].at)
    (node_id, times), *_ = went.most_common(1) or [("", 0)]
    keeps_out = times >= ROUNDS_OF_A_LOOP and not admission.lacks(run, node_id)
    return (words.keep_out(quoted(node_id)), history) if keeps_out else (history,)


def _read_output(run: Run, rank: int, last: Failure | None) -> str:
    """Return where the output of the rank that fails is, as far as the agents of its node say."""
    agents = run.agents_of(last.node_id) if last else []
    if last and agents and not any(agent.join.log_dir for agent in agents):
        return protocol_words.run.read_console(printable(last.node_id))
    return protocol_words.run.read_output(quoted(run.run_id), rank)


def _stalled(run: Run, now: float) -> Finding | None:
    """Return a finding if the last step is old, by the agents' own reports: with a long lease, they report rarely.

    A notice to the workers hides nothing: they may save, or hang. Its round ends by itself, so it needs no restart.
    """
    if run.stage is not Stage.RUNNING or run.is_unheard or finishing.has_begun(run):
        return None
    hang = Hangs.of(run).hang
    if hang and hang.is_believed:
        return None
    restart = (words.restart(quoted(run.run_id), admission.lacks(run)),) if run.notice_since is None else ()
    pace, steps = run.pace, (words.stacks(quoted(run.run_id)), *restart)
    start_s = max(STALLED_START_S, progress.standstill_limit_s(pace.earlier_step_s or 0.0))
    if time_ledger.present(run) == time_ledger.STARTING and now - run.started_at > start_s:
        return Finding("stalled", words.stalled_start(start_s), run.started_at, steps)
    if pace.moved_at is None or progress.is_over(run):
        return None
    if pace.step_s is None:
        limit_s = progress.first_standstill_limit_s(run)
        sentence = words.stalled_early(limit_s, pace.highest_step)
    else:
        limit_s = progress.standstill_limit_s(pace.step_s)
        sentence = words.stalled(limit_s, pace.step_s, pace.highest_step)
    if pace.told_at - pace.moved_at > limit_s:
        return Finding("stalled", sentence, pace.moved_at, steps)
    return _stalled_node(run, steps) or _without_steps(run, steps)


def _without_steps(run: Run, steps: tuple[str, ...]) -> Finding | None:
    """Return a finding if workers report progress for a long time, but the step of no node changes any more."""
    pace = run.pace
    if pace.stepped_at is None or pace.highest_step is None:
        return None
    limit_s = max(progress.UNKNOWN_STANDSTILL_S, progress.standstill_limit_s(pace.step_s or 0.0))
    if pace.told_at - pace.stepped_at <= limit_s:
        return None
    return Finding("stalled", words.without_steps(limit_s, pace.highest_step), pace.stepped_at, steps)


def _stalled_node(run: Run, steps: tuple[str, ...]) -> Finding | None:
    """Return a finding if the node whose workers moved longest ago stands still, by its own pace."""
    if (agent_id := progress.stalled_node(run)) is None:
        return None
    told, moved_at = run.progress[agent_id].progress, run.pace.moved[agent_id]
    step_s, node_id = told.step_s or 0.0, printable(run.agents[agent_id].node_id)
    sentence = words.stalled(progress.standstill_limit_s(step_s), step_s, told.lowest_step, node_id)
    return Finding("stalled", sentence, moved_at, steps)


def _last_restart_spent(run: Run, now: float) -> Finding | None:
    if not run.restart_count or not run.settings.max_restarts or restart_budget.left(run, now):
        return None
    since = next((restart.at for restart in reversed(run.ledger) if restart.charged), run.stage_since)
    sentence = words.last_restart_spent(run.settings.max_restarts, run.settings.restart_window_s)
    return Finding("last_restart_spent", sentence, since, (words.events(quoted(run.run_id)),))


def _below_size(run: Run, now: float) -> Finding | None:
    largest = legal_sizes.largest(run.settings)
    if run.stage is not Stage.RUNNING or len(run.seats) >= largest:
        return None
    sentence = words.below_size(len(run.seats), largest)
    return Finding("below_size", sentence, run.started_at, (words.why(quoted(run.run_id)),), is_trouble=False)


RULES: tuple[Rule, ...] = (
    *(policy.finding for policy in POLICIES if "finding" in vars(policy)),
    _undecided,
    _lacks_nodes,
    _silent,
    _overdue,
    _looping,
    _stalled,
    _unstable,
    _last_restart_spent,
    _unhealthy,
    _below_size,
)
"""Rules of the policies and of the rendezvous itself. If two find the same state, the first one counts: a policy knows
the cause."""
