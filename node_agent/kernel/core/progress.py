"""Progress of a node's workers, as each of them reports it through `node_agent.progress`."""

from collections.abc import Iterable

from msgspec import Struct
from rdzv_protocol.constraints import sendable
from rdzv_protocol.messages import Progress


class Spent(Struct, frozen=True):
    """Work of one kind that a worker has reported: its count, its seconds in all, and its longest time in seconds."""

    times: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0


class Reading(Struct, frozen=True):
    """Progress that one worker has reported through `node_agent.progress` so far.

    `at`: time of its last report, by the agent's monotonic clock.
    """

    number: int
    """Number of reports from the worker."""
    step: int | None
    checkpoint_step: int | None
    kind: str
    at: float
    spent: dict[str, Spent]
    starts: dict[str, float] = {}
    """Times at which phases of its start were complete, by phase. Phases that it has not reported are left out."""
    resumed_step: int | None = None
    """Step after which it continued in this round."""

    @property
    def first_at(self) -> float:
        """Time of the worker's first report. The seconds of all kinds add up from there."""
        return self.at - sum(spent.total_s for spent in self.spent.values())


class Pace:
    """Seconds that a node's steps take at present: those done between two looks, of the slowest worker."""

    def __init__(self) -> None:
        self._last: dict[int, Reading] = {}
        self.step_s: float | None = None
        self.work_s: float | None = None
        """Part of the seconds that is the worker's own work, None if no worker reports it."""

    def look(self, readings: dict[int, Reading]) -> None:
        """Take the latest readings, by local rank."""
        work_s, wait_s = [], []
        for rank, reading in readings.items():
            before = self._last.get(rank)
            steps, wait = _since("step", reading, before)
            if steps < 0:  # the worker has overwritten its earlier reports
                self._last[rank] = reading
            if steps <= 0:
                continue
            parts, work = _since("work", reading, before)
            # a look may come between a step and its work; all reports together tell how much work a step has
            if parts > 0:
                work *= reading.spent["work"].times / parts / reading.spent["step"].times
                work_s.append(work)
            wait_s.append(wait / steps + work)
            self._last[rank] = reading
        if wait_s:
            self.step_s = sendable(max(wait_s))
            self.work_s = sendable(max(work_s)) if work_s else None


def _since(kind: str, reading: Reading, before: Reading | None) -> tuple[int, float]:
    """Return how often the worker has reported this kind since the previous reading, and its seconds."""
    now, then = reading.spent[kind], before.spent[kind] if before else Spent()
    return now.times - then.times, now.total_s - then.total_s


def summary(
    round_: int, readings: Iterable[Reading], pace: Pace, now: float, spawned_at: float | None = None
) -> Progress | None:
    """Return the progress of a node in a round, None until a worker has reported something."""
    reported = list(readings)
    if not reported:
        return None
    steps = [reading.step for reading in reported if reading.step is not None]
    checkpoints = [reading.checkpoint_step for reading in reported if reading.checkpoint_step is not None]
    expected = [reading for reading in reported if reading.kind != "end"]
    resumed = [reading.resumed_step for reading in reported if reading.resumed_step is not None]
    return Progress(
        round=round_,
        lowest_step=min(steps, default=None),
        highest_step=max(steps, default=None),
        age_s=sendable(now - min(reading.at for reading in expected or reported)),
        step_s=pace.step_s,
        work_s=pace.work_s,
        checkpoint_step=max(checkpoints, default=None),
        checkpoint_s=sendable(max(reading.spent["checkpoint"].total_s for reading in reported)),
        telling_s=sendable(now - min(reading.first_at for reading in reported)),
        spawned_ago_s=None if spawned_at is None else sendable(now - spawned_at),
        imported_ago_s=_ago(reported, "imported", now),
        initialized_ago_s=_ago(reported, "initialized", now),
        loaded_ago_s=_ago(reported, "loaded", now),
        resumed_step=min(resumed, default=None),
        is_over=not expected,
    )


def _ago(reported: Iterable[Reading], phase: str, now: float) -> float | None:
    """Return the seconds since the last worker completed this phase; None if no worker has reported it."""
    times = [reading.starts[phase] for reading in reported if phase in reading.starts]
    return sendable(now - max(times)) if times else None
