"""Source of hang detection: the time that workers may need until their next progress, given by the user or learned.

Learned limits follow from the longest time of each kind of work, over all rounds with the same world size (`Rhythm`).
"""

from collections.abc import Iterable, Mapping
from math import inf

from msgspec import Struct
from rdzv_protocol.hang_sources import PROGRESS

from node_agent.features.hangs import words
from node_agent.features.hangs.suspicion import CountedTime, Signs, Suspicion
from node_agent.kernel.core.progress import Reading

UNSEEN_S = 600.0
"""Learned limit for a phase that has not been seen yet: torch's own timeout for a collective with NCCL."""
UNSEEN_START_S = 1_800.0
"""Learned limit for the time to the first progress, until it has been seen: compilation, data, loading a checkpoint."""
SHORTEST_S, SHORTEST_START_S = 10.0, 60.0
"""Smallest learned limits, even if steps are fast: of a phase, and of a start."""
STEPS_TO_LEARN = 10
"""Steps of a round before a limit is learned from them. The first steps compile and warm up."""
TIMES_TO_LEARN = {"evaluation": 2}
"""Times in one round after which a kind counts as seen, if not 1. Many frameworks begin with a short evaluation."""
LEAST_GROWTH = 2.0
"""Least ratio of the next limit to a silence that a restart has cut off."""
SAME_SILENCE = 0.5
"""Ratio of a worker's silence to that of a worker that is late, from which on neither of them continues."""


class ProgressLimits(Struct, frozen=True, kw_only=True):
    """Longest times between two signs of progress, in seconds. None for learned limits."""

    start_s: float | None = None
    step_s: float | None = None
    checkpoint_s: float | None = None
    unseen_s: float = UNSEEN_S
    """Learned limit of a phase that has not been seen. Starts use `UNSEEN_START_S`."""
    factor: float = 2.0
    """Ratio of a learned limit to the longest time that was seen."""
    preparation_s: float | None = None
    """Longest time of a node's preparations before its workers start. None for `start_s`, or `UNSEEN_START_S`."""


class Rhythm:
    """Pace of workers of one world size, over all rounds of this agent."""

    def __init__(self) -> None:
        self._longest_s: dict[str, float] = {}
        """Longest time of each kind of phase."""
        self._seen: set[str] = set()
        """Kinds that have been seen often enough."""
        self.ranks: set[int] = set()
        """Ranks that have reported progress in any round."""
        self.cut_off_s: dict[str, float] = {}
        """Longest silence of each kind that the end of a round has cut off. It might have ended by itself."""
        self._first_step: int | None = None
        """First step that workers reported in the first round, None if they report none."""
        self._has_saved = self._is_resumed = self._knows_resumed = False
        self.is_same_size = True
        """Whether the workers of the previous round had the same world size, so that no checkpoint must be resharded.
        """

    @property
    def knows_start(self) -> bool:
        """Whether a start like that of this round has been seen: from a checkpoint, and with the same world size."""
        return self.is_same_size and self._knows_resumed

    def begin(self) -> None:
        """Begin a round."""
        self._is_resumed = self.is_same_size and self._has_saved

    def longest_s(self, kind: str) -> float | None:
        """Return the longest time of this kind, None if it has not been seen."""
        return self._longest_s.get(kind) if kind in self._seen else None

    def note(self, kind: str, seconds: float, times: int = 1) -> None:
        """Record that a kind has taken up to this many seconds, and how often it came in this round."""
        self._longest_s[kind] = max(self._longest_s.get(kind, 0.0), seconds)
        if times >= TIMES_TO_LEARN.get(kind, 1):
            self._seen.add(kind)

    def cut_off(self, kind: str, seconds: float) -> None:
        """Record a silence that the end of its round has cut off."""
        self.cut_off_s[kind] = max(self.cut_off_s.get(kind, 0.0), seconds)

    def note_reading(self, reading: Reading) -> None:
        """Take what a worker has reported so far in this round."""
        for kind, spent in reading.spent.items():
            if spent.times:
                self.note(kind, spent.longest_s, spent.times)
        self._has_saved = self._has_saved or reading.spent["checkpoint"].times > 0
        if self._is_resumed and has_warmed_up(reading):
            self._knows_resumed = True

    def note_first_step(self, step: int) -> None:
        """Take the first step of a round. If it is beyond that of the first round, a checkpoint was loaded."""
        if self._first_step is None:
            self._first_step = step
        elif step > self._first_step and self.is_same_size:
            self._is_resumed = True


class Rhythms:
    """Rhythm of each world size: with fewer nodes a step may take many times as long."""

    def __init__(self) -> None:
        self._of: dict[int, Rhythm] = {}
        self._world_size: int | None = None

    def next_round(self, world_size: int) -> Rhythm:
        """Return the rhythm for the workers of the round that begins."""
        rhythm = self._of.setdefault(world_size, Rhythm())
        rhythm.is_same_size = self._world_size == world_size
        self._world_size = world_size
        return rhythm


def has_warmed_up(reading: Reading) -> bool:
    """Return whether a worker has done the steps of this round that may compile or warm up."""
    return reading.spent["step"].times >= STEPS_TO_LEARN


class ProgressSource:
    """Progress of the workers of one round, which have just been started."""

    def __init__(self, limits: ProgressLimits, ranks: range, rhythm: Rhythm, time: CountedTime, now: float) -> None:
        self._limits, self._ranks, self._rhythm, self._time = limits, ranks, rhythm, time
        rhythm.begin()
        self._started_at = now
        self._learned_of: dict[int, int] = {}
        """Number of each local rank's last reading that the rhythm includes."""
        self._has_warmed_up = False
        """Whether any worker has done the steps of this round that may compile or warm up."""
        self._limit_of: dict[int, float] = {}
        """Most seconds until the next progress of each local rank that runs."""

    @property
    def shortest_s(self) -> float:
        shortest = min(self._limit_of.values(), default=inf)
        return shortest if shortest == inf else min(shortest, self._limits.step_s or inf)  # a first step comes any time

    @property
    def unwatched(self) -> list[int]:
        """Local ranks that have never reported progress, if another worker has done enough steps to know."""
        return [rank for rank in self._limit_of if self._has_warmed_up and not self._reports(rank)]

    def look(self, signs: Signs, now: float) -> tuple[Suspicion | None, float]:
        if self._learn(signs) or self._limit_of.keys() != signs.last_output_at.keys():
            self._limit_of = {rank: self._limit(signs.readings.get(rank)) for rank in signs.last_output_at}
        late, due = [], inf
        silences = {rank: self._silent_s(signs.readings.get(rank), now) for rank in signs.last_output_at}
        for rank, silent_s in silences.items():
            reading, limit_s = signs.readings.get(rank), self._limit_of[rank]
            if not self._is_expected(rank):
                continue
            if silent_s >= limit_s:
                step = reading.step if reading and reading.step is not None else -1
                since = reading.at if reading else self._started_at
                late.append((step, since, rank, _progress_reason(reading, silent_s, limit_s), limit_s))
            else:
                due = min(due, now + limit_s - silent_s)
        if not late:
            return Suspicion(PROGRESS, "", ()), due
        late.sort()  # the worker furthest behind is first: the others wait for it
        *_, reason, limit_s = late[0]
        ranks = [each[2] for each in late]
        ranks += [rank for rank in silences if rank not in ranks and self._is_as_silent(signs, silences, rank, ranks)]
        is_untold = not (self._learned_of or any(map(self._reports, ranks)))
        silent_s = min(silences[rank] for rank in ranks)
        return Suspicion(PROGRESS, reason, tuple(ranks), silent_s, limit_s, is_untold=is_untold), due

    def _is_expected(self, local_rank: int) -> bool:
        """Return whether this worker has to report progress.

        Many scripts report progress from one rank only. So if another worker of the node reports it, a worker that
        never did need not.
        """
        return not self._learned_of or self._reports(local_rank)

    def _reports(self, local_rank: int) -> bool:
        return local_rank in self._learned_of or self._ranks[local_rank] in self._rhythm.ranks

    def _is_as_silent(self, signs: Signs, silences: Mapping[int, float], rank: int, late: Iterable[int]) -> bool:
        """Return whether a worker has been silent for nearly as long as one that is late, so that it does not continue.

        In lockstep, all workers are silent from the same step on, and the first one that is late is no more to blame.
        """
        reading = signs.readings.get(rank)
        if reading is not None and reading.kind == "end":
            return False
        return silences[rank] >= SAME_SILENCE * max(silences[each] for each in late)

    def _silent_s(self, reading: Reading | None, now: float) -> float:
        return self._time.between(reading.at if reading else self._started_at, now)

    def _limit(self, reading: Reading | None) -> float:
        """Return the most seconds that may pass after this reading of a worker."""
        if reading is None:
            return self._start_limit()
        if reading.kind == "end":
            return inf
        checkpoint_s = self._checkpoint_limit()
        if reading.kind == "saving":
            return checkpoint_s
        step_s = self._step_limit(reading) if self._limits.step_s is None else self._limits.step_s
        announces = reading.spent["saving"].times > 0
        return step_s if announces else max(step_s, checkpoint_s)

    def _start_limit(self) -> float:
        limits = self._limits
        if limits.start_s is not None:
            return limits.start_s
        longest_s = self._rhythm.longest_s("start") if self._rhythm.knows_start else None
        learned = UNSEEN_START_S if longest_s is None else max(SHORTEST_START_S, limits.factor * longest_s)
        return max(learned, self._grown("start", UNSEEN_START_S))

    def _checkpoint_limit(self) -> float:
        limits = self._limits
        if limits.checkpoint_s is not None:
            return limits.checkpoint_s
        if limits.step_s is not None:  # a limit for steps only also applies to checkpoints
            return limits.step_s
        return max(self._learned("checkpoint"), self._grown("checkpoint", UNSEEN_S))

    def _step_limit(self, reading: Reading) -> float:
        """Return the limit for work that is not announced: a step, an evaluation, or the loading of an epoch.

        A silence may be any of these, so all of them must have been seen.
        """
        knows_steps = self._rhythm.knows_start or has_warmed_up(reading)
        learned = max(self._learned(kind, 0.0) for kind in ("step", "work")) if knows_steps else self._limits.unseen_s
        return max(learned, self._learned("evaluation"), self._learned("other"), self._grown("step", UNSEEN_S))

    def _learned(self, kind: str, unseen_s: float | None = None) -> float:
        longest_s = self._rhythm.longest_s(kind)
        if longest_s is None:
            return self._limits.unseen_s if unseen_s is None else unseen_s
        return max(SHORTEST_S, self._limits.factor * longest_s)

    def _grown(self, kind: str, most_s: float) -> float:
        """Return the limit after restarts that have cut off silences of this kind. Their full length is unknown."""
        growth = max(LEAST_GROWTH, self._limits.factor)
        return min(most_s, growth * self._rhythm.cut_off_s.get(kind, 0.0))

    def cut_off(self, signs: Signs, now: float) -> None:
        """Record that the round ends now. The present silences, suspected or not, might have ended by themselves."""
        self._learn(signs)
        for rank in signs.last_output_at:
            reading = signs.readings.get(rank)
            kind = "start" if reading is None else "checkpoint" if reading.kind == "saving" else "step"
            if reading is None or reading.kind != "end":
                self._rhythm.cut_off(kind, self._silent_s(reading, now))

    def _learn(self, signs: Signs) -> bool:
        """Add the longest time of each kind to the rhythm, without time that does not count. Return whether a reading
        is new.
        """
        new = {rank: each for rank, each in signs.readings.items() if self._learned_of.get(rank) != each.number}
        for rank, reading in new.items():
            if rank not in self._learned_of:
                self._learn_start(reading)
            self._rhythm.note_reading(reading)
            self._rhythm.ranks.add(self._ranks[rank])
            self._has_warmed_up = self._has_warmed_up or has_warmed_up(reading)
            self._learned_of[rank] = reading.number
        return bool(new)

    def _learn_start(self, reading: Reading) -> None:
        self._rhythm.note("start", self._time.between(self._started_at, reading.first_at))
        if reading.number == 1 and reading.step is not None:
            self._rhythm.note_first_step(reading.step)


def _progress_reason(reading: Reading | None, silent_s: float, limit_s: float) -> str:
    if reading is None:
        return words.no_first_progress(silent_s, limit_s)
    return words.no_progress(silent_s, limit_s, reading.step)
