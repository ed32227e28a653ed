"""Progress of a run's workers, as their agents tell it with polls: signs.

The steps that are known when a round ends are written down by `policies.lost_time`.
"""

from rdzv_protocol.messages import Progress

from rdzv_server.core.kernel.run import ProgressSign, Run, Stage

STALLED = 3.0
"""Multiple of the usual time of a step without progress after which workers stand still."""


def note(run: Run, agent_id: str, progress: Progress, now: float) -> None:
    """Keep the progress that an agent tells, if it is about workers of the running round."""
    if is_of_running_round(run, agent_id, progress):
        run.progress[agent_id] = ProgressSign(progress, now)


def is_of_running_round(run: Run, agent_id: str, progress: Progress) -> bool:
    is_current = run.stage is Stage.RUNNING and progress.round == run.round
    return is_current and run.seat_of(agent_id) is not None


def goes_on(run: Run) -> bool:
    """Whether the workers of all nodes tell steps, and told the last one when it was due."""
    told = [run.progress[agent_id].progress for agent_id in run.running if agent_id in run.progress]
    steps_go_on = [each.step_s is not None and each.age_s <= STALLED * each.step_s for each in told]
    return bool(steps_go_on) and len(told) == len(run.running) and all(steps_go_on)


def pace(signs: list[ProgressSign]) -> tuple[float | None, float | None]:
    """Seconds that a step takes where it takes longest, and the time of the last one; None where not told."""
    step_s = max((sign.progress.step_s for sign in signs if sign.progress.step_s is not None), default=None)
    return step_s, max((sign.at - sign.progress.age_s for sign in signs), default=None)
