"""Progress of a run's workers: signs that come with polls, and what is written down of them when a round may end.

Signs are old by up to a keep-alive. What is made of them says so little that it holds all the same: time counts as
spent on detecting only if the sign itself was of workers that had got nowhere for `STALLED` steps.
"""

from rdzv_protocol.messages import Progress

from rdzv_server.core import events
from rdzv_server.core.run import ProgressSign, Run, Stage

STALLED = 3.0
"""Multiple of the usual time of a step without progress after which workers stand still."""


def note(run: Run, agent_id: str, progress: Progress, now: float) -> None:
    """Keep the progress that an agent tells, if it is about workers of the running round."""
    if run.stage is Stage.RUNNING and progress.round == run.round and run.seat_of(agent_id):
        run.progress[agent_id] = ProgressSign(progress, now)


def measure(run: Run, fact: events.Fact, now: float) -> events.ProgressMeasured | None:
    """Progress of the running round before this fact, by the latest signs; None if there is nothing to record."""
    signs = list(run.progress.values())
    told = [sign.progress for sign in signs]
    step = max((each.highest_step for each in told if each.highest_step is not None), default=None)
    checkpoint_step = max((each.checkpoint_step for each in told if each.checkpoint_step is not None), default=None)
    step_s, stepped_at = _pace(signs)
    detecting_s = max(_stalled_s(signs, now), _unheard_s(run, fact, now))
    saved = run.checkpoint_step if checkpoint_step is None else checkpoint_step
    lost_s = 0.0
    if step is not None and saved is not None and stepped_at is not None:
        lost_s = max(0.0, (step - saved) * (step_s or 0.0) + now - stepped_at - detecting_s)
    measured = events.ProgressMeasured(
        step, checkpoint_step, max((each.checkpoint_s for each in told), default=0.0), detecting_s, lost_s
    )
    return None if measured == events.ProgressMeasured() else measured


def goes_on(run: Run) -> bool:
    """Whether the workers of all nodes tell steps, and told the last one when it was due."""
    told = [run.progress[agent_id].progress for agent_id in run.running if agent_id in run.progress]
    steps_go_on = [each.step_s is not None and each.age_s <= STALLED * each.step_s for each in told]
    return bool(steps_go_on) and len(told) == len(run.running) and all(steps_go_on)


def standstill_s(run: Run, now: float) -> float:
    """Seconds for which workers that are believed to hang have made no step; 0 if they do not tell their steps."""
    if run.hang is None or not run.hang.is_believed:
        return 0.0
    return _stalled_s(list(run.progress.values()), now)


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
    """Seconds since the lost participant was last heard, or its connection closed; 0 for any other fact."""
    if not isinstance(fact, events.NodeLost) or run.seat_of(fact.agent_id) is None:
        return 0.0
    heard_at = run.leases.absent_since.get(fact.agent_id, run.leases.renewed_at.get(fact.agent_id, now))
    return max(0.0, now - heard_at)
