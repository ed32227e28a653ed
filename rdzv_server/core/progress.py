"""Progress of a run's workers: signs that come with polls, and what is written down of them.

Two things are facts: the first progress of each round, and what is known of the round before something that may end it.

Signs are old by up to a keep-alive. What is made of them says so little that it holds all the same: unless the workers
are believed to hang, time counts as spent on detecting only if the sign itself was of workers that had got nowhere for
`STALLED` steps.
"""

from collections.abc import Iterable
from math import inf

from rdzv_protocol.messages import Progress

from rdzv_server.core import events
from rdzv_server.core.run import ProgressSign, Run, Stage

STALLED = 3.0
"""Multiple of the usual time of a step without progress after which workers stand still."""


def note(run: Run, agent_id: str, progress: Progress, now: float) -> None:
    """Keep the progress that an agent tells, if it is about workers of the running round."""
    if _is_of_running_round(run, agent_id, progress):
        run.progress[agent_id] = ProgressSign(progress, now)


def begins(run: Run, event: events.LeaseRenewed) -> bool:
    """Whether this is the first progress of the running round."""
    return (
        run.time.starting_s is None
        and event.progress is not None
        and _is_of_running_round(run, event.agent_id, event.progress)
    )


def first(run: Run, event: events.LeaseRenewed, now: float) -> events.TrainingBegan | None:
    """The first progress of the running round as a fact; None if this is not the first."""
    if not begins(run, event):
        return None
    assert event.progress
    told_s = event.progress.age_s if event.progress.telling_s is None else event.progress.telling_s
    return events.TrainingBegan(max(0.0, now - told_s - run.started_at))


def _is_of_running_round(run: Run, agent_id: str, progress: Progress) -> bool:
    is_current = run.stage is Stage.RUNNING and progress.round == run.round
    return is_current and run.seat_of(agent_id) is not None


def measure(run: Run, fact: events.Fact, now: float) -> events.ProgressMeasured:
    """Progress of the running round before this fact, by the latest signs."""
    signs = list(run.progress.values())
    told = [sign.progress for sign in signs]
    step = max((each.highest_step for each in told if each.highest_step is not None), default=None)
    checkpoint_step = max((each.checkpoint_step for each in told if each.checkpoint_step is not None), default=None)
    step_s, stepped_at = _pace(signs)
    standstill = standstill_s(run, now)
    detecting_s = max(_stalled_s(signs, now), _unheard_s(run, fact, now))
    saved = run.checkpoint_step if checkpoint_step is None else checkpoint_step
    lost_s = 0.0
    if step is not None and saved is not None and stepped_at is not None:
        lost_s = max(0.0, (step - saved) * (step_s or 0.0) + now - stepped_at - max(detecting_s, standstill))
    checkpoint_s = max((each.checkpoint_s for each in told), default=0.0)
    return events.ProgressMeasured(step, checkpoint_step, checkpoint_s, detecting_s, lost_s, standstill)


def goes_on(run: Run) -> bool:
    """Whether the workers of all nodes tell steps, and told the last one when it was due."""
    told = [run.progress[agent_id].progress for agent_id in run.running if agent_id in run.progress]
    steps_go_on = [each.step_s is not None and each.age_s <= STALLED * each.step_s for each in told]
    return bool(steps_go_on) and len(told) == len(run.running) and all(steps_go_on)


def standstill_s(run: Run, now: float) -> float:
    """Seconds for which workers that are believed to hang have got nowhere; 0 if no hang is believed.

    Their steps tell it or, without steps, what their agents suspect them for.
    """
    if run.hang is None or not run.hang.is_believed:
        return 0.0
    step_s, stepped_at = _pace(list(run.progress.values()))
    since = run.hang.silent_since(len(run.running)) if stepped_at is None else stepped_at + (step_s or 0.0)
    return 0.0 if since == inf else max(0.0, now - since)


def _pace(signs: list[ProgressSign]) -> tuple[float | None, float | None]:
    """Seconds that a step takes where it takes longest, and the time of the last one; None where not told."""
    step_s = max((sign.progress.step_s for sign in signs if sign.progress.step_s is not None), default=None)
    return step_s, max((sign.at - sign.progress.age_s for sign in signs), default=None)


def _stalled_s(signs: list[ProgressSign], now: float) -> float:
    step_s, stepped_at = _pace(signs)
    if step_s is None or stepped_at is None or any(sign.progress.age_s <= STALLED * step_s for sign in signs):
        return 0.0
    return max(0.0, now - stepped_at - step_s)


def _unheard_s(run: Run, fact: events.Fact, now: float) -> float:
    """Seconds since the lost participant was last heard, or its connection closed; 0 for any other fact.

    If no agent of the run is heard, whatever ends the round: seconds since one was.
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
