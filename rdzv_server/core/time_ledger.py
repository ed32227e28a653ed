"""Time ledger of a run: its time by what it went into, from its creation to its end.

Every moment belongs to one phase, so that the phases sum up to the run's age. It is counted by the times of facts
alone: a server that replays them counts the same, and the time in which no server was there belongs to the phase in
which it went.

Parts of the running phase bring the run no further: writing checkpoints, the time until somebody notices that it has
come to a standstill, and work that a restart repeats. They are entered when the round ends, from what was written down
before; what the workers do not tell (`node_agent.progress`) counts as training. Until then the running round shows its
checkpoints as they are told, and a standstill as long as it is believed to be a hang.
"""

from typing import Annotated

from msgspec import Meta, Struct
from rdzv_protocol.messages import RunTime

from rdzv_server.core import legal_sizes, progress
from rdzv_server.core.run import Cause, Run, Stage, TimePhase

FAULTS = (Cause.WORKER_FAILURE, Cause.NODE_LOST, Cause.HANG, Cause.RETRIED)
"""Causes of a round's end that had to be detected; the others are announced."""
PARTS = ("checkpointing", "detecting", "lost")
Duration = Annotated[float, Meta(description="seconds")]


class TimeStatus(Struct, frozen=True, kw_only=True):
    """Time of a run by what it went into, in seconds: the first four sum up to its age, or its length if ended."""

    running: Duration
    forming: Annotated[Duration, Meta(description="until its first round began, with the minimum of nodes there")]
    restarting: Annotated[Duration, Meta(description="until a later round began, with the minimum of nodes there")]
    waiting: Annotated[Duration, Meta(description="with fewer nodes than the minimum")]
    training: Annotated[Duration, Meta(description="of running: what the next three leave of it")]
    checkpointing: Annotated[Duration, Meta(description="of running: as the workers tell")]
    detecting: Annotated[Duration, Meta(description="of running: from a standstill until it was noticed, or until now")]
    lost: Annotated[Duration, Meta(description="of running: work since the last checkpoint that a restart repeats")]
    ettr: Annotated[float | None, Meta(description="training divided by the age; null: the run has no age yet")]
    restarts: Annotated[dict[str, Duration], Meta(description="of restarting and waiting, by the restart's cause")]


def total(run: Run) -> RunTime | None:
    """Time of a run that has ended, by what it went into; None if it took none."""
    spent = view(run, run.ended_at or run.time.since)
    parts = ("training", *PARTS, "forming", "restarting", "waiting")
    if spent.ettr is None:
        return None
    return RunTime(**{f"{part}_s": getattr(spent, part) for part in parts}, ettr=spent.ettr)


def phase(run: Run) -> TimePhase:
    """Phase to which the run's time is counted at present."""
    if run.stage is Stage.RUNNING:
        return "running"
    if run.stage is not Stage.FORMING:
        return "ended"
    if len(run.waiting) + len(run.stopping) < legal_sizes.smallest(run.settings):
        return "waiting"
    return "forming" if run.membership is None else "restarting"


def settle(run: Run, now: float) -> None:
    """Enter the time of the present phase up to now, if another one begins."""
    ledger, now_in = run.time, phase(run)
    if now_in == ledger.phase:
        return
    ledger.spent_s[ledger.phase] = ledger.spent_s.get(ledger.phase, 0.0) + now - ledger.since
    if ledger.phase == "running":
        for part, seconds in _of_running(run, now - ledger.since).items():
            ledger.of_running_s[part] = ledger.of_running_s.get(part, 0.0) + seconds
        run.measured = None
    if now_in in ("running", "ended") and ledger.phase != "running" and run.opening.cause is not Cause.FIRST:
        cause = run.opening.cause
        ledger.restarts_s[cause] = ledger.restarts_s.get(cause, 0.0) + now - run.opening.at
    ledger.phase, ledger.since = now_in, now


def _of_running(run: Run, whole_s: float) -> dict[str, float]:
    """Seconds without training of a round that has ended after `whole_s`, by part; no second counts twice."""
    measured, parts, left_s = run.measured, {}, whole_s
    if measured is None:
        return {}
    known = {"checkpointing": measured.checkpointing_s}
    if run.stage is not Stage.SUCCEEDED:
        is_fault = run.stage is Stage.FAILED or run.opening.cause in FAULTS
        known |= {"detecting": measured.detecting_s if is_fault else 0.0, "lost": measured.lost_s}
    for part, seconds in known.items():
        if taken := min(seconds, left_s):
            parts[part] = taken
            left_s -= taken
    return parts


def entered(run: Run, now: float) -> dict[str, float]:
    """Seconds of each phase without the time of the present one; `running` without its parts, which stand beside it.

    Parts of the running round count already: `running` is below 0 until the seconds of the round are added.
    """
    spent: dict[str, float] = {word: seconds for word, seconds in run.time.spent_s.items() if word != "ended"}
    parts = {part: seconds for part, seconds in _parts(run, now).items() if seconds}
    if parts:
        spent["running"] = spent.get("running", 0.0) - sum(parts.values())
    return spent | parts


def _parts(run: Run, now: float) -> dict[str, float]:
    """Seconds of each part of the running phase, a present standstill included, which may turn out to be none."""
    parts = counted(run, now)
    parts["detecting"] += standstill_s(run, now)
    return parts


def counted(run: Run, now: float) -> dict[str, float]:
    """Seconds of each part of the running phase that only grow: of the rounds before, and checkpoints of this one."""
    parts = dict.fromkeys(PARTS, 0.0) | run.time.of_running_s
    parts["checkpointing"] += _saving_s(run, now)
    return parts


def standstill_s(run: Run, now: float) -> float:
    """Seconds of the running round in which its workers, which are believed to hang, have made no step."""
    if run.time.phase != "running":
        return 0.0
    return min(progress.standstill_s(run, now), now - run.time.since - _saving_s(run, now))


def _saving_s(run: Run, now: float) -> float:
    if run.time.phase != "running":
        return 0.0
    told = max((sign.progress.checkpoint_s for sign in run.progress.values()), default=0.0)
    return min(told, now - run.time.since)


def view(run: Run, now: float) -> TimeStatus:
    """Status of the ledger, with the present phase up to now."""
    ledger, restarts = run.time, dict(run.time.restarts_s)
    seconds = {"running": 0.0, "forming": 0.0, "restarting": 0.0, "waiting": 0.0} | ledger.spent_s
    if ledger.phase != "ended":
        seconds[ledger.phase] += now - ledger.since
    if run.stage is Stage.FORMING and run.opening.cause is not Cause.FIRST:
        restarts[run.opening.cause] = restarts.get(run.opening.cause, 0.0) + now - run.opening.at
    parts = _parts(run, now)
    training, age = max(0.0, seconds["running"] - sum(parts.values())), sum(seconds.values())
    return TimeStatus(
        **{name: round(value, 3) for name, value in (seconds | parts).items()},
        training=round(training, 3),
        ettr=round(training / age, 4) if age else None,
        restarts={cause.value: round(value, 3) for cause, value in restarts.items()},
    )
