"""Time ledger of a run: what its time has gone into, from its creation to its end.

Every moment belongs to one phase, so that the phases sum up to the run's age. It is counted by the times of facts
alone: a server that replays them counts the same, and the time in which no server was there belongs to the phase in
which it went.
"""

from typing import Annotated

from msgspec import Meta, Struct

from rdzv_server.core import legal_sizes
from rdzv_server.core.run import Cause, Run, Stage, TimePhase

Duration = Annotated[float, Meta(description="seconds")]


class TimeStatus(Struct, frozen=True, kw_only=True):
    """What the run's time has gone into, in seconds: the first four sum up to its age, or to its length if it ended."""

    running: Duration
    forming: Annotated[Duration, Meta(description="until its first round began, with the minimum of nodes there")]
    restarting: Annotated[Duration, Meta(description="until a later round began, with the minimum of nodes there")]
    waiting: Annotated[Duration, Meta(description="with fewer nodes than the minimum")]
    restarts: Annotated[dict[str, Duration], Meta(description="of restarting and waiting, by the restart's cause")]


def phase(run: Run) -> TimePhase:
    """What the run's time goes into at present."""
    if run.stage is Stage.RUNNING:
        return "running"
    if run.stage is not Stage.FORMING:
        return "ended"
    if len(run.waiting) + len(run.stopping) < legal_sizes.smallest(run.settings):
        return "waiting"
    return "forming" if run.membership is None else "restarting"


def settle(run: Run, now: float) -> None:
    """Enter the time up to now, if another phase begins."""
    ledger, now_in = run.time, phase(run)
    if now_in == ledger.phase:
        return
    ledger.spent_s[ledger.phase] = ledger.spent_s.get(ledger.phase, 0.0) + now - ledger.since
    if now_in in ("running", "ended") and ledger.phase != "running" and run.opening.cause is not Cause.FIRST:
        cause = run.opening.cause
        ledger.restarts_s[cause] = ledger.restarts_s.get(cause, 0.0) + now - run.opening.at
    ledger.phase, ledger.since = now_in, now


def view(run: Run, now: float) -> TimeStatus:
    """The ledger as it stands, with the phase that goes on."""
    ledger, restarts = run.time, dict(run.time.restarts_s)
    seconds = {"running": 0.0, "forming": 0.0, "restarting": 0.0, "waiting": 0.0} | ledger.spent_s
    if ledger.phase != "ended":
        seconds[ledger.phase] += now - ledger.since
    if run.stage is Stage.FORMING and run.opening.cause is not Cause.FIRST:
        restarts[run.opening.cause] = restarts.get(run.opening.cause, 0.0) + now - run.opening.at
    return TimeStatus(
        **{name: round(value, 3) for name, value in seconds.items()},
        restarts={cause.value: round(value, 3) for cause, value in restarts.items()},
    )
