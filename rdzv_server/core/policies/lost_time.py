"""Measurement of a running round before something that may end it: its steps, and the time that it loses.

Signs are up to a keep-alive old, so the conclusions are cautious. Unless the workers are believed to hang, time counts
as spent on detecting only if the sign itself showed workers without progress for `progress.STALLED` steps, or for the
time of a standstill if an operator restarts the run.
"""

from collections.abc import Iterable
from math import inf

from rdzv_server.core import events
from rdzv_server.core.events import PolicyFact
from rdzv_server.core.kernel import progress
from rdzv_server.core.kernel.operations import RunRestarted
from rdzv_server.core.kernel.progress import STALLED, pace
from rdzv_server.core.kernel.run import ProgressSign, Run
from rdzv_server.core.policies.hangs.hang_policy import Hangs


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


def measure(run: Run, fact: events.Fact, now: float) -> ProgressMeasured:
    """Return the progress of the running round before this fact, by the latest signs."""
    signs = list(run.progress.values())
    reports = [sign.progress for sign in signs]
    step = max((each.highest_step for each in reports if each.highest_step is not None), default=None)
    checkpoint_step = max((each.checkpoint_step for each in reports if each.checkpoint_step is not None), default=None)
    step_s, stepped_at = pace(signs)
    standstill = standstill_s(run, now)
    if isinstance(fact, RunRestarted):  # an operator has noticed it
        standstill = max(standstill, _stalled_s(signs, now, progress.standstill_limit_s(step_s or 0.0)))
    detecting_s = max(_stalled_s(signs, now), _unheard_s(run, fact, now))
    resumed = [each.resumed_step for each in reports if each.resumed_step is not None]
    known = run.checkpoint_step if checkpoint_step is None else checkpoint_step
    saved = max((each for each in (known, *resumed) if each is not None), default=None)
    lost_s = 0.0
    if step is not None and saved is not None and stepped_at is not None:
        lost_s = max(0.0, (step - saved) * (step_s or 0.0) + now - stepped_at - max(detecting_s, standstill))
    checkpoint_s = max((each.checkpoint_s for each in reports), default=0.0)
    return ProgressMeasured(step, checkpoint_step, checkpoint_s, detecting_s, lost_s, standstill, saved)


def standstill_s(run: Run, now: float) -> float:
    """Return the seconds without progress of workers that are believed to hang; 0 if no hang is believed.

    The time follows from their steps or, if they report none, from what their agents suspect.
    """
    hang = Hangs.of(run).hang
    if hang is None or not hang.is_believed:
        return 0.0
    step_s, stepped_at = pace(list(run.progress.values()))
    since = hang.silent_since(len(run.running)) if stepped_at is None else stepped_at + (step_s or 0.0)
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
