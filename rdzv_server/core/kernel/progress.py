"""Progress of a run's workers, as their agents report it with polls.

Progress is a sign. Policies record facts about it, such as the steps that are known when a round ends.
"""

from math import inf

from rdzv_protocol.messages import Progress

from rdzv_server.core.kernel.run import Pace, ProgressSign, Run, Stage

STALLED = 3.0
"""Multiple of a step's usual time: workers without progress for longer than this are stalled."""
STANDSTILL_S = 60.0
"""Least seconds without progress of any node that are a standstill."""
STANDSTILL_STEPS = 20.0
"""Multiple of a step's usual time that a standstill lasts at least."""
UNKNOWN_STANDSTILL_S = 1_800.0
"""The same, if workers report progress but no new step, or only once in this round, and an earlier round had a pace."""
ONCE_STANDSTILL_S = 7_200.0
"""The same, if workers have reported progress only once and no round had a pace: they may report once an epoch."""
MOVED_S = 1.0
"""Smallest difference in seconds between two times of progress that counts: a sign may be delayed by less."""


def note(run: Run, agent_id: str, progress: Progress, now: float) -> None:
    """Keep the progress that an agent reports, if it is about workers of the running round and not a late copy."""
    before = run.progress.get(agent_id)
    if is_of_running_round(run, agent_id, progress) and not _is_overtaken(before, progress):
        run.pace.falls = run.pace.falls or _falls(before, progress)
        run.progress[agent_id] = ProgressSign(progress, now)
        _note_pace(run.pace, progress, now)
        if before and _has_stepped(before.progress, progress):
            run.pace.stepped_at = now
        _note_moved(run.pace.moved, agent_id, progress, now - progress.age_s)
        (run.pace.over.add if progress.is_over else run.pace.over.discard)(agent_id)


def _note_pace(pace: Pace, progress: Progress, now: float) -> None:
    moved_at, pace.told_at = now - progress.age_s, now
    if pace.begun_at is None:
        pace.begun_at = moved_at
    if pace.moved_at is not None and moved_at > pace.moved_at + STANDSTILL_S:
        pace.resumed_at = now
    if pace.moved_at is None or moved_at > pace.moved_at + MOVED_S:
        pace.moved_at = moved_at
    pace.step_s = pace.step_s if progress.step_s is None else progress.step_s
    pace.highest_step = higher(pace.highest_step, progress.highest_step)
    pace.checkpoint_step = higher(pace.checkpoint_step, progress.checkpoint_step)


def _has_stepped(before: Progress, progress: Progress) -> bool:
    """Return whether a node's workers report another step or checkpoint than in its report before."""
    if before.highest_step != progress.highest_step or before.lowest_step != progress.lowest_step:
        return True
    return before.checkpoint_step != progress.checkpoint_step


def _falls(before: ProgressSign | None, progress: Progress) -> bool:
    """Return whether the highest step of a node's workers is lower than in its report before."""
    highest = before.progress.highest_step if before else None
    return highest is not None and progress.highest_step is not None and progress.highest_step < highest


def _is_overtaken(before: ProgressSign | None, progress: Progress) -> bool:
    """Return whether the agent made this report before the last one that was noted: a network may deliver a copy late.

    The agent's time since its workers' start tells. The other times of a report are of workers, which may begin anew.
    """
    noted_s = before.progress.spawned_ago_s if before else None
    return noted_s is not None and progress.spawned_ago_s is not None and progress.spawned_ago_s < noted_s


def _note_moved(moved: dict[str, float], agent_id: str, progress: Progress, at: float) -> None:
    if progress.is_over or progress.step_s is None:
        moved.pop(agent_id, None)
    elif at > moved.get(agent_id, -inf) + MOVED_S:
        moved.pop(agent_id, None)
        moved[agent_id] = at


def higher(one: int | None, other: int | None) -> int | None:
    """Return the higher step; None if neither is known."""
    return one if other is None or (one is not None and one >= other) else other


def clear(run: Run) -> None:
    """Forget the progress of a round that has ended."""
    run.progress.clear()
    pace = run.pace
    run.pace = Pace(earlier_step_s=pace.earlier_step_s if pace.step_s is None else pace.step_s)


def is_of_running_round(run: Run, agent_id: str, progress: Progress) -> bool:
    is_current = run.stage is Stage.RUNNING and progress.round == run.round
    return is_current and run.seat_of(agent_id) is not None


def standstill_limit_s(step_s: float) -> float:
    """Return the seconds without progress after which workers stand still whose steps take `step_s` seconds."""
    return max(STANDSTILL_S, STANDSTILL_STEPS * step_s)


def first_standstill_limit_s(run: Run) -> float:
    """Return the same limit until a second step shows how long a step takes.

    The first step, and the steps of an earlier round, show about how long.
    """
    begun_after_s, earlier_step_s = (run.pace.begun_at or 0.0) - run.started_at, run.pace.earlier_step_s
    least_s = ONCE_STANDSTILL_S if earlier_step_s is None else UNKNOWN_STANDSTILL_S
    return max(least_s, STANDSTILL_STEPS * max(begun_after_s, earlier_step_s or 0.0))


def stalled_node(run: Run) -> str | None:
    """Return the agent whose workers moved longest ago; None if these do not stand still by their own pace.

    After a standstill of all nodes, only a report since then counts: in lockstep, all nodes continue together.
    """
    agent_id, moved_at = next(iter(run.pace.moved.items()), ("", 0.0))
    sign = run.progress.get(agent_id)
    if sign is None or sign.progress.step_s is None or sign.at <= run.pace.resumed_at:
        return None
    return agent_id if sign.at - moved_at > standstill_limit_s(sign.progress.step_s) else None


def is_over(run: Run) -> bool:
    """Return whether all workers that report progress have reported the end of their loop: what follows may take any
    time.
    """
    return bool(run.progress) and len(run.pace.over) == len(run.progress)


def pace(signs: list[ProgressSign]) -> tuple[float | None, float | None]:
    """Return the seconds that the slowest node takes for a step, and the time of the last step; None if unknown."""
    step_s = max((sign.progress.step_s for sign in signs if sign.progress.step_s is not None), default=None)
    return step_s, max((sign.at - sign.progress.age_s for sign in signs), default=None)
