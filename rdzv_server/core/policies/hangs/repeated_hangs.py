"""Hangs that one limit finds repeatedly: after three restarts in a row, the limit is suspected, not the workers.

A limit may be too short for a first evaluation or a slow checkpoint. Then it finds a hang in each round, and uses up
the restarts of a healthy run. So after `MOST_IN_ROW` restarts in a row by one source's limit, its further hangs are
only reported, with the setting to change. If the standstill lasts `STANDSTILL_S` longer, the hang was real: then it
costs a restart like any other.

A row ends with a failure of another kind, or with a hang by another source. It also ends if the run has got further
since the last hang and has lasted for `failed_rounds.steady_s` before the next standstill. Free restarts do not end it.

Once a hang was only reported, failures and time no longer end the row. Only a hang that a higher limit finds ends it: a
user has raised the limit, or the agents have learned one. Hangs that the evidence proves, and hangs without a limit,
are not part of a row. `--on-hang fail` and `--max-restarts-without-progress` take precedence.
"""

from rdzv_protocol.hang_sources import LOG_RULE, PREPARATION, PROGRESS, SILENCE

from rdzv_server.core.kernel import failed_rounds
from rdzv_server.core.kernel.restart_budget import Verdict
from rdzv_server.core.kernel.run import Cause, Run
from rdzv_server.core.policies.hangs import words
from rdzv_server.core.policies.hangs.suspicions import Hang, HangFound, HangsState, RepeatedHangs

MOST_IN_ROW = 3
"""Number of restarts in a row by one source's limit after which its hangs are only reported."""
STANDSTILL_S = 1_800.0
"""Seconds that a standstill must last after such a report to cost a restart: as long as a silent start may take."""
_SETTINGS = {PROGRESS: "--progress-timeout", SILENCE: "--silence-timeout"}


def is_withheld(run: Run, state: HangsState, fact: HangFound, verdict: Verdict | None, now: float) -> bool:
    """Return whether this hang is only reported. `verdict`: how the run would end because of it; None if it would
    restart.
    """
    is_final = run.settings.on_hang != "restart" or (verdict is not None and verdict.no_progress)
    has_lasted = state.hang is not None and state.hang.charge_at is not None and now >= state.hang.charge_at
    return not is_final and not has_lasted and _in_row(run, state, fact, now) >= MOST_IN_ROW


def withhold(run: Run, state: HangsState, hang: Hang, fact: HangFound, now: float) -> None:
    """Note that a hang is only reported, and when it will cost a restart anyway."""
    row = state.repeated_hangs
    assert row and fact.limit_s is not None
    row.last_at, row.step, row.limit_s, row.withheld = now, run.highest_step, fact.limit_s, _sentence(fact)
    hang.charge_at = hang.charge_at or now + STANDSTILL_S


def note_restart(run: Run, state: HangsState, fact: HangFound, now: float) -> str:
    """Note that a hang restarts the run. Return a warning if it is the last one of its row that does, else ""."""
    if fact.limit_s is None:
        state.repeated_hangs = None
        return ""
    in_row, row = _in_row(run, state, fact, now), state.repeated_hangs
    since = row.since if row and in_row else now
    state.repeated_hangs = RepeatedHangs(fact.source, fact.limit_s, since=since, last_at=now, step=run.highest_step)
    return _sentence(fact) if in_row + 1 == MOST_IN_ROW else ""


def withheld(run: Run, state: HangsState, now: float) -> str:
    """Return the sentence about a limit whose hangs are only reported; empty if none, or none lately."""
    row = state.repeated_hangs
    if row is None or not row.withheld:
        return ""
    steps = [sign.progress.highest_step for sign in run.progress.values() if sign.progress.highest_step is not None]
    is_over = state.hang is None and _is_over(run, row, max(steps, default=run.highest_step), now)
    return "" if is_over else row.withheld


def _in_row(run: Run, state: HangsState, fact: HangFound, now: float) -> int:
    """Return the number of restarts in a row by the limit that has found this hang."""
    row = state.repeated_hangs
    if row is None or fact.limit_s is None or row.source != fact.source:
        return 0
    if row.withheld and fact.limit_s <= row.limit_s:
        return MOST_IN_ROW
    causes = [restart.cause for restart in run.ledger if restart.at >= row.since]
    has_failed = any(cause.is_failure and cause is not Cause.HANG for cause in causes)
    is_over = _is_over(run, row, run.highest_step, now - fact.limit_s)
    return 0 if has_failed or is_over else causes.count(Cause.HANG)


def _is_over(run: Run, row: RepeatedHangs, step: int | None, until: float) -> bool:
    """Whether, by `until`, the run had got further (if it reports steps) and had lasted long since the last hang."""
    has_got_further = step is None or row.step is None or step > row.step or run.steps_fall
    return has_got_further and until - row.last_at >= failed_rounds.steady_s(run)


def _sentence(fact: HangFound) -> str:
    assert fact.limit_s is not None
    return words.limit_doubted(MOST_IN_ROW, _setting(fact.source), fact.limit_s, STANDSTILL_S)


def _setting(source: str) -> str:
    """Return the flag that sets the limit of a source."""
    if source.startswith(LOG_RULE):
        return "--log-rule"
    if source.startswith(PREPARATION):
        return source.partition("(")[2].rstrip(")") or words.limit_of(source)
    return _SETTINGS.get(source, words.limit_of(source))
