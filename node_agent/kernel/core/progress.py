"""Progress of a node's workers, from what each of them has told by `node_agent.progress`."""

from collections.abc import Iterable

from msgspec import Struct
from rdzv_protocol.constraints import MAX_SECONDS
from rdzv_protocol.messages import Progress


class Spent(Struct, frozen=True):
    """Work of one kind that a worker has told of: how often, its seconds in all, and the longest of them."""

    times: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0


class Reading(Struct, frozen=True):
    """Progress that one worker has told by `node_agent.progress` so far.

    `at`: the agent's monotonic clock when it told the last.
    """

    number: int
    """Number of times that the worker has told something."""
    step: int | None
    checkpoint_step: int | None
    kind: str
    at: float
    spent: dict[str, Spent]

    @property
    def first_at(self) -> float:
        """Time at which the worker told something for the first time: the kinds have all seconds since."""
        return self.at - sum(spent.total_s for spent in self.spent.values())


class Pace:
    """Seconds that a node's steps take at present: those that were done between two looks, of the slowest worker."""

    def __init__(self) -> None:
        self._last: dict[int, Reading] = {}
        self.step_s: float | None = None
        self.work_s: float | None = None
        """Part of the seconds that is the worker's own work; None: no worker tells it."""

    def look(self, readings: dict[int, Reading]) -> None:
        """Take the latest readings, by local rank."""
        work_s, wait_s = [], []
        for rank, reading in readings.items():
            before = self._last.get(rank)
            steps, wait = _since("step", reading, before)
            if steps < 0:  # the worker has overwritten what it told before
                self._last[rank] = reading
            if steps <= 0:
                continue
            parts, work = _since("work", reading, before)
            if parts > 0:  # a look may come between a step and its work: how much work a step has, all of them tell
                work *= reading.spent["work"].times / parts / reading.spent["step"].times
                work_s.append(work)
            wait_s.append(wait / steps + work)
            self._last[rank] = reading
        if wait_s:
            self.step_s = _sendable(max(wait_s))
            self.work_s = _sendable(max(work_s)) if work_s else None


def _since(kind: str, reading: Reading, before: Reading | None) -> tuple[int, float]:
    """Number of times that the worker has told this kind since the reading before, and its seconds."""
    now, then = reading.spent[kind], before.spent[kind] if before else Spent()
    return now.times - then.times, now.total_s - then.total_s


def summary(round_: int, readings: Iterable[Reading], pace: Pace, now: float) -> Progress | None:
    """Progress of a node in a round; None while no worker has told anything."""
    told = list(readings)
    if not told:
        return None
    steps = [reading.step for reading in told if reading.step is not None]
    checkpoints = [reading.checkpoint_step for reading in told if reading.checkpoint_step is not None]
    return Progress(
        round=round_,
        lowest_step=min(steps, default=None),
        highest_step=max(steps, default=None),
        age_s=_sendable(now - min(reading.at for reading in told)),
        step_s=pace.step_s,
        work_s=pace.work_s,
        checkpoint_step=max(checkpoints, default=None),
        checkpoint_s=_sendable(max(reading.spent["checkpoint"].total_s for reading in told)),
        telling_s=_sendable(now - min(reading.first_at for reading in told)),
    )


def _sendable(seconds: float) -> float:
    """Return the seconds that workers told, or the nearest number that a message allows."""
    return min(max(0.0, seconds), float(MAX_SECONDS))
