"""Measurement of a running round before something that may end it: its steps, and the time that it loses.

Signs are up to a keep-alive old, so the conclusions are cautious. Unless the server believes that the workers hang,
time counts as `detecting` only if the sign itself showed workers without progress for `progress.STALLED` steps. If an
operator restarts the run, the time of a standstill is enough.
"""

from collections.abc import Iterable
from math import inf

from msgspec import Struct
from rdzv_protocol.hang_sources import SILENCE

from rdzv_server.core import events
from rdzv_server.core.events import PolicyFact
from rdzv_server.core.kernel import progress
from rdzv_server.core.kernel.operations import RunRestarted
from rdzv_server.core.kernel.progress import STALLED, pace
from rdzv_server.core.kernel.run import ProgressSign, Run
from rdzv_server.core.policies.hangs.hang_policy import Hangs
from rdzv_server.core.policies.hangs.suspicions import Suspicion


class ProgressMeasured(PolicyFact, frozen=True):
    """Progress of the running round, as known before something that may end it. Times are in seconds."""

    step: int | None = None
    checkpoint_step: int | None = None
    checkpointing_s: float = 0.0
    """Seconds spent on checkpoints in this round."""
    detecting_s: float = 0.0
    """Seconds since the round last made progress, beyond the usual time of a step: a standstill if a fault ends it."""
    lost_s: float = 0.0
    """Seconds of work between the last checkpoint and the last progress."""
    standstill_s: float = 0.0
    """Seconds for which the workers have stood still, if they are believed to hang or if an operator restarts them."""
    saved_step: int | None = None
    """Step from which a restart can continue: of a checkpoint, or the one after which this round's workers continued.
    """
    steps_fall: bool = False
    """Whether the steps have fallen within the round."""


class LastStep(Struct, frozen=True):
    """Last step that got a round further: its number, how long a step usually takes, and its time; None if unknown."""

    step: int | None
    step_s: float | None
    at: float | None


def measure(run: Run, fact: events.Fact, now: float) -> ProgressMeasured:
    """Return the progress of the running round before this fact, by the latest signs."""
    signs = list(run.progress.values())
    reports = [sign.progress for sign in signs]
    checkpoint_step = max((each.checkpoint_step for each in reports if each.checkpoint_step is not None), default=None)
    standstill, last = standstill_s(run, now), last_step(run)
    if isinstance(fact, RunRestarted):  # an operator has noticed it
        standstill = max(standstill, _stalled_s(signs, now, progress.standstill_limit_s(last.step_s or 0.0)))
        if (stalled := _stalled_node(run)) and last.at is not None and _next_at(stalled) < last.at:
            last, standstill = stalled, max(standstill, now - _next_at(stalled))
    detecting_s = max(_stalled_s(signs, now), _unheard_s(run, fact, now))
    resumed = [each.resumed_step for each in reports if each.resumed_step is not None]
    known = run.checkpoint_step if checkpoint_step is None else checkpoint_step
    saved = max((each for each in (known, *resumed) if each is not None), default=None)
    lost_s = 0.0
    if last.step is not None and saved is not None and last.at is not None:
        work_s = (last.step - saved) * (last.step_s or 0.0)
        lost_s = max(0.0, work_s + now - last.at - max(detecting_s, standstill))
    checkpoint_s = max((each.checkpoint_s for each in reports), default=0.0)
    return ProgressMeasured(
        last.step, checkpoint_step, checkpoint_s, detecting_s, lost_s, standstill, saved, run.pace.falls
    )


def last_step(run: Run) -> LastStep:
    """Return the last step of the running round, of any worker.

    While the server believes that the run hangs, return the last step of the first worker that hangs. Later steps of
    other workers do not get the run further.
    """
    step_s, stepped_at = pace(list(run.progress.values()))
    steps = (sign.progress.highest_step for sign in run.progress.values() if sign.progress.highest_step is not None)
    last = LastStep(max(steps, default=None), step_s, stepped_at)
    hang = Hangs.of(run).hang
    if stepped_at is None or hang is None or not hang.is_believed:
        return last
    stuck = (_last_step_of(run, each) for each in hang.believed(len(run.running)) if each.source != SILENCE)
    first = min(stuck, key=_next_at, default=last)
    return first if _next_at(first) < stepped_at else last


def _last_step_of(run: Run, suspicion: Suspicion) -> LastStep:
    """Return the last step of the suspected workers, or a later one if their node has reported it since."""
    sign = run.progress.get(suspicion.agent_id)
    if sign is None:
        return LastStep(None, 0.0, suspicion.silent_since)
    at = max(suspicion.silent_since, sign.at - sign.progress.age_s)
    return LastStep(sign.progress.lowest_step, sign.progress.step_s or 0.0, at)


def _stalled_node(run: Run) -> LastStep | None:
    """Return the last step of the node that stands still by its own pace; None if none does."""
    if (agent_id := progress.stalled_node(run)) is None:
        return None
    told = run.progress[agent_id].progress
    return LastStep(told.lowest_step, told.step_s, run.pace.moved[agent_id])


def _next_at(last: LastStep) -> float:
    """Return when the next step would have been done."""
    return (last.at or 0.0) + (last.step_s or 0.0)


def standstill_s(run: Run, now: float) -> float:
    """Return the seconds without progress of workers that are believed to hang; 0 if no hang is believed.

    The time follows from their steps or, if they report none, from what their agents suspect.
    """
    hang = Hangs.of(run).hang
    if hang is None or not hang.is_believed:
        return 0.0
    last = last_step(run)
    since = hang.silent_since(len(run.running)) if last.at is None else _next_at(last)
    return 0.0 if since == inf else max(0.0, now - since)


def _stalled_s(signs: list[ProgressSign], now: float, least_s: float = 0.0) -> float:
    """Return the seconds since the last step beyond the usual time of a step; 0 if they are not more than `least_s`."""
    signs = [sign for sign in signs if not sign.progress.is_over]
    step_s, stepped_at = pace(signs)
    limit_s = max(least_s, STALLED * (step_s or 0.0))
    if step_s is None or stepped_at is None or any(sign.progress.age_s <= limit_s for sign in signs):
        return 0.0
    return max(0.0, now - stepped_at - step_s)


def _unheard_s(run: Run, fact: events.Fact, now: float) -> float:
    """Return the seconds since the lost participant was heard, or its connection closed; 0 for any other fact.

    If no agent of the run is heard, the result is the seconds since one was, for every kind of fact.
    """
    if run.unheard_since is not None and not run.leases.is_any_certain:
        return max(0.0, now - run.unheard_since)
    match fact:
        case events.NodeLost(agent_id=agent_id):
            lost: Iterable[str] = (agent_id,)
        case events.NodeJoined(replaces=replaces):
            lost = replaces
        case _:
            return 0.0
    heard_at = [run.leases.missed_since(agent_id, now) for agent_id in lost if run.seat_of(agent_id)]
    return max(0.0, now - min(heard_at, default=now))
