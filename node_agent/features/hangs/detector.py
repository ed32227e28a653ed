"""Hang detectors: find out from several sources when a node's workers have done nothing for too long.

`HangDetector` gets the observations of one round's workers and returns suspicions. It wakes at its deadlines, and a few
times between them to see whether the agent itself was held up. Time in which the agent did not run or the server did
not answer does not count as a worker's silence (`CountedTime`).

A suspicion is only this node's view. The server, which knows all nodes, decides.
"""

from collections.abc import Iterable, Mapping
from math import inf, isnan

from msgspec import Struct

from node_agent.features.hangs import words
from node_agent.kernel.core.progress import Reading

UNSEEN_S = 600.0
"""Learned limit for a phase that has not been seen yet: torch's own time-out for a collective with NCCL."""
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
LOOKS_A_LIMIT = 4
"""Looks within the shortest limit. Each look shows whether the agent was held up."""
MAX_CHECK_INTERVAL_S = 10.0
"""Most seconds between two checks, because learned limits become shorter meanwhile."""
LATE_S = 0.5
"""Seconds by which a look may be late. A later look shows that the agent was held up."""
SAME_SILENCE = 0.5
"""Ratio of a worker's silence to that of a worker that is late, from which on neither of them continues."""
MOST_PAUSES = 100
SHOWN = 120


class ProgressLimits(Struct, frozen=True, kw_only=True):
    """Longest times between two signs of progress, in seconds. None for learned limits."""

    start_s: float | None = None
    step_s: float | None = None
    checkpoint_s: float | None = None
    unseen_s: float = UNSEEN_S
    """Learned limit of a phase that has not been seen. Starts use `UNSEEN_START_S`."""
    factor: float = 2.0
    """Ratio of a learned limit to the longest time that was seen."""


class LogRule(Struct, frozen=True, kw_only=True):
    """Rule about lines of the workers' output that match the pattern."""

    pattern: str
    first_s: float | None = None
    """Seconds from the start in which the first such line must come, None for no limit."""
    every_s: float | None = None
    """Seconds from one such line in which the next must come, None for no limit."""
    rank: int = 0
    """Rank whose lines must come in time."""
    least: float = -inf
    most: float = inf
    """Limits for the number that the pattern captures, for any rank. A captured text that is not a number (nan) exceeds
    them."""
    points: int = 1
    """Consecutive numbers that must exceed the limits."""
    is_fault: bool = False
    """Whether a matching line of any rank is a fault."""
    is_stop: bool = False
    """Whether a matching line ends the training, so that no further lines of any node are expected."""

    @property
    def shortest_s(self) -> float:
        return min(self.first_s or inf, self.every_s or inf)


class LineMatch(Struct, frozen=True):
    """Line in which the pattern of a rule was found."""

    rule: int
    """Number of the rule, in the order of the flags."""
    text: str
    """Beginning of the line."""
    captured: str
    """Text that the pattern captures, or all that it matches if it captures nothing."""


class HangOptions(Struct, frozen=True, kw_only=True):
    """Sources of hang detection. All are off by default."""

    progress: ProgressLimits | None = None
    silence_s: float | None = None
    log_rules: tuple[LogRule, ...] = ()
    uninterruptible_s: float | None = None

    @property
    def is_on(self) -> bool:
        return self != HangOptions()


class Suspicion(Struct, frozen=True):
    """Workers that a source suspects, by local rank, the one furthest behind first. Empty if the suspicion is over."""

    source: str
    reason: str
    local_ranks: tuple[int, ...]
    silent_s: float = 0.0
    """Seconds for which all of them have shown no progress, 0 if an event caused the suspicion."""
    limit_s: float | None = None
    """Exceeded limit in seconds, None if the source is not a time limit or nothing is suspected."""
    ends_rules: bool = False
    """Whether a line has reported that all work is done. Then no log rule of any node expects anything any more."""
    is_untold: bool = False
    """Whether no worker of this node has reported progress in this round, and no suspected rank in an earlier one."""


class Signs(Struct, frozen=True):
    """Observations of the running workers, by local rank. Times are by the agent's clock."""

    readings: Mapping[int, Reading]
    last_output_at: Mapping[int, float]
    """Time of each running worker's last output, 0 if it has written nothing yet."""
    last_sign_at: float = 0.0
    """Time at which any worker of the round, running or not, last wrote something or exited 0; 0 if none has yet."""
    lines_seen_until: float = inf
    """Time until which all output was compared with the rules, infinite if no output waits for that."""
    uninterruptible: frozenset[tuple[int, int]] = frozenset()
    """Threads of the workers in uninterruptible sleep at present, each with its worker's local rank first."""


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


class CountedTime:
    """Time without the periods in which the agent was held up or the server was silent."""

    def __init__(self) -> None:
        self._pauses: list[tuple[float, float]] = []

    def leave_out(self, begin: float, end: float) -> None:
        while self._pauses and self._pauses[-1][1] >= begin:  # they overlap, so they count as one pause
            earlier = self._pauses.pop()
            begin, end = min(begin, earlier[0]), max(end, earlier[1])
        self._pauses.append((begin, end))
        del self._pauses[:-MOST_PAUSES]

    def between(self, since: float, now: float) -> float:
        counted = now - since
        for begin, end in reversed(self._pauses):
            if end <= since:
                break
            counted -= min(end, now) - max(begin, since)
        return counted


class HangDetector:
    """Detector for the workers of one round, which have just been started.

    `gap_s`: most seconds between two answers of a healthy server.
    """

    def __init__(self, options: HangOptions, ranks: range, rhythm: Rhythm, gap_s: float, now: float) -> None:
        self._options = options
        self._ranks = ranks
        self._rhythm = rhythm
        rhythm.begin()
        self._gap_s = gap_s
        self._started_at = self._heard_at = now
        self._time = CountedTime()
        self._learned_of: dict[int, int] = {}
        """Number of each local rank's last reading that the rhythm includes."""
        self._has_warmed_up = False
        """Whether any worker has done the steps of this round that may compile or warm up."""
        self._limit_of: dict[int, float] = {}
        """Most seconds until the next progress of each local rank that runs."""
        self._rules = [_RuleState(number, rule, ranks, now) for number, rule in enumerate(options.log_rules, 1)]
        self._asleep_since: dict[tuple[int, int], float] = {}
        self._suspected: dict[str, tuple[int, ...]] = {}
        self._look_at: float | None = now
        self._is_server_silent = False

    @property
    def unwatched(self) -> list[int]:
        """Local ranks that have never reported progress, if another worker has done enough steps to know."""
        if not self._options.progress or not self._has_warmed_up:
            return []
        return [local_rank for local_rank in self._limit_of if not self._reports(local_rank)]

    def next_deadline(self) -> float | None:
        """Return the time of the next look, None while the server is silent or nothing is expected of the workers."""
        return None if self._is_server_silent else self._look_at

    def server_answered(self, now: float) -> None:
        """Record that the server has answered a poll, so that this agent knows the server's decisions until now."""
        if now - self._heard_at > self._gap_s:
            self._time.leave_out(self._heard_at, now)
            self._look_at = now
        self._heard_at, self._is_server_silent = now, False

    def line(self, local_rank: int, match: LineMatch, now: float) -> list[Suspicion]:
        """Take a line of a worker in which the pattern of a rule was found."""
        state = self._rules[match.rule]
        if state.rule.is_stop and not state.is_over:
            over = self.give_up_rules(range(len(self._rules)))
            return [*over, Suspicion(state.source, match.text.strip()[:SHOWN], (), ends_rules=True)]
        suspicion = state.line(local_rank, match, now)
        return [suspicion] if suspicion and self._note_if_new(suspicion) else []

    def lines_lost(self, now: float) -> None:
        """Record that lines were not compared with the rules. A rule may have waited for any of them.

        If one of them may have ended the rules, each rule expects no line until its next one shows that work continues.
        """
        may_be_over = any(state.rule.is_stop for state in self._rules)
        for state in self._rules:
            state.since, state.may_be_over = now, may_be_over

    def give_up_rules(self, numbers: Iterable[int]) -> list[Suspicion]:
        """Stop expecting lines for these rules. Return the suspicions of overdue lines that this takes back."""
        over = [self._rules[number].give_up() for number in numbers]
        return [suspicion for suspicion in over if self._note_if_new(suspicion)]

    def look(self, signs: Signs, now: float) -> list[Suspicion]:
        """Examine the workers. Return new suspicions, and those that have ended."""
        if self._look_at is not None and now > self._look_at + LATE_S:
            self._time.leave_out(self._look_at, now)
        if now - self._heard_at > self._gap_s:
            self._is_server_silent = True
            return []
        if self._options.progress and (self._learn(signs) or self._limit_of.keys() != signs.last_output_at.keys()):
            self._limit_of = {rank: self._limit(signs.readings.get(rank)) for rank in signs.last_output_at}
        found, due = self._judge(signs, now)
        shortest = min(self._limits(), default=inf)
        tick_s = min(shortest / LOOKS_A_LIMIT, MAX_CHECK_INTERVAL_S)
        self._look_at = None if shortest == inf else max(now + LATE_S / 2, min(due, now + tick_s))
        return [suspicion for suspicion in found if self._note_if_new(suspicion)]

    def _note_if_new(self, suspicion: Suspicion) -> bool:
        """Note the suspicion unless it is known. Return False if it is."""
        is_new = self._suspected.get(suspicion.source, ()) != suspicion.local_ranks
        if is_new and suspicion.local_ranks and self._suspected.get(suspicion.source):
            is_new = False  # more workers hang than before: the suspicion is already known
        if is_new:
            self._suspected[suspicion.source] = suspicion.local_ranks
        return is_new

    def _judge(self, signs: Signs, now: float) -> tuple[list[Suspicion], float]:
        """Return the verdict of each source, and the time at which one of them may change."""
        found, due = [], inf
        for source in (self._progress, self._silence, self._uninterruptible):
            suspicion, at = source(signs, now)
            found += [suspicion] if suspicion else []
            due = min(due, at)
        for rule in self._rules:
            suspicion, at = rule.look(signs, self._time, now)
            found += [suspicion] if suspicion else []
            due = min(due, at)
        return found, due

    def _limits(self) -> Iterable[float]:
        options = self._options
        if options.progress:
            now = min(self._limit_of.values(), default=inf)
            yield now if now == inf else min(now, options.progress.step_s or inf)  # a first step may come at any time
        yield options.silence_s or inf
        yield options.uninterruptible_s or inf
        yield from (rule.rule.shortest_s for rule in self._rules if not rule.is_over)

    # Progress.

    def _progress(self, signs: Signs, now: float) -> tuple[Suspicion | None, float]:
        if self._options.progress is None:
            return None, inf
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
            return Suspicion("progress", "", ()), due
        late.sort()  # the worker furthest behind is first: the others wait for it
        *_, reason, limit_s = late[0]
        ranks = [each[2] for each in late]
        ranks += [rank for rank in silences if rank not in ranks and self._is_as_silent(signs, silences, rank, ranks)]
        is_untold = not (self._learned_of or any(map(self._reports, ranks)))
        silent_s = min(silences[rank] for rank in ranks)
        return Suspicion("progress", reason, tuple(ranks), silent_s, limit_s, is_untold=is_untold), due

    def _is_expected(self, local_rank: int) -> bool:
        """Whether this worker has to report progress.

        Many scripts report progress from one rank only. So if another worker of the node reports it, a worker that
        never did need not.
        """
        return not self._learned_of or self._reports(local_rank)

    def _reports(self, local_rank: int) -> bool:
        return local_rank in self._learned_of or self._ranks[local_rank] in self._rhythm.ranks

    def _is_as_silent(self, signs: Signs, silences: Mapping[int, float], rank: int, late: Iterable[int]) -> bool:
        """Whether a worker has been silent for nearly as long as one that is late, so that it does not continue.

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
        limits = self._options.progress
        assert limits
        if reading is None:
            return self._start_limit(limits)
        if reading.kind == "end":
            return inf
        checkpoint_s = self._checkpoint_limit(limits)
        if reading.kind == "saving":
            return checkpoint_s
        step_s = self._step_limit(limits, reading) if limits.step_s is None else limits.step_s
        announces = reading.spent["saving"].times > 0
        return step_s if announces else max(step_s, checkpoint_s)

    def _start_limit(self, limits: ProgressLimits) -> float:
        if limits.start_s is not None:
            return limits.start_s
        longest_s = self._rhythm.longest_s("start") if self._rhythm.knows_start else None
        learned = UNSEEN_START_S if longest_s is None else max(SHORTEST_START_S, limits.factor * longest_s)
        return max(learned, self._grown("start", UNSEEN_START_S))

    def _checkpoint_limit(self, limits: ProgressLimits) -> float:
        if limits.checkpoint_s is not None:
            return limits.checkpoint_s
        if limits.step_s is not None:  # a limit for steps only also applies to checkpoints
            return limits.step_s
        return max(self._learned("checkpoint"), self._grown("checkpoint", UNSEEN_S))

    def _step_limit(self, limits: ProgressLimits, reading: Reading) -> float:
        """Return the limit for work that is not announced: a step, an evaluation, or the loading of an epoch.

        A silence may be any of these, so all of them must have been seen.
        """
        knows_steps = self._rhythm.knows_start or has_warmed_up(reading)
        learned = max(self._learned(kind, 0.0) for kind in ("step", "work")) if knows_steps else limits.unseen_s
        return max(learned, self._learned("evaluation"), self._learned("other"), self._grown("step", UNSEEN_S))

    def _learned(self, kind: str, unseen_s: float | None = None) -> float:
        limits = self._options.progress
        assert limits
        longest_s = self._rhythm.longest_s(kind)
        if longest_s is None:
            return limits.unseen_s if unseen_s is None else unseen_s
        return max(SHORTEST_S, limits.factor * longest_s)

    def _grown(self, kind: str, most_s: float) -> float:
        """Return the limit after restarts that have cut off silences of this kind. Their full length is unknown."""
        assert self._options.progress
        growth = max(LEAST_GROWTH, self._options.progress.factor)
        return min(most_s, growth * self._rhythm.cut_off_s.get(kind, 0.0))

    def cut_off(self, signs: Signs, now: float) -> None:
        """Record that the round ends now. The present silences, suspected or not, might have ended by themselves."""
        if self._options.progress is None:
            return
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
        first_at = reading.at - sum(spent.total_s for spent in reading.spent.values())
        self._rhythm.note("start", self._time.between(self._started_at, first_at))
        if reading.number == 1 and reading.step is not None:
            self._rhythm.note_first_step(reading.step)

    # Output, and the kernel's view.

    def _silence(self, signs: Signs, now: float) -> tuple[Suspicion | None, float]:
        limit_s = self._options.silence_s
        if limit_s is None or not signs.last_output_at:
            return None, inf
        told_at = max((reading.at for reading in signs.readings.values()), default=0.0)  # it works, even if it is quiet
        silent_s = self._time.between(max(self._started_at, signs.last_sign_at, min(told_at, now)), now)
        if silent_s < limit_s:
            return Suspicion("silence", "", ()), now + limit_s - silent_s
        reason = words.no_output(silent_s, limit_s)
        return Suspicion("silence", reason, tuple(signs.last_output_at), silent_s, limit_s), inf

    def _uninterruptible(self, signs: Signs, now: float) -> tuple[Suspicion | None, float]:
        limit_s = self._options.uninterruptible_s
        if limit_s is None:
            return None, inf
        since = self._asleep_since
        self._asleep_since = {thread: since.get(thread, now) for thread in signs.uninterruptible}
        asleep = {rank for (rank, _), at in self._asleep_since.items() if self._time.between(at, now) >= limit_s}
        late = tuple(sorted(asleep))
        reason = words.uninterruptible(limit_s) if late else ""
        silent_s = limit_s if late else 0.0
        return Suspicion("uninterruptible", reason, late, silent_s), now + limit_s / LOOKS_A_LIMIT


class _RuleState:
    """State of one rule while output arrives."""

    def __init__(self, number: int, rule: LogRule, ranks: range, now: float) -> None:
        self.rule = rule
        self._ranks = ranks
        self.since = now
        """Time of the last line, or of the start."""
        self._has_matched = False
        self._beyond: dict[int, int] = {}
        """Consecutive numbers beyond the limits, by local rank."""
        self.is_over = self.may_be_over = False
        name = f"log rule {number}"
        self.source = f"{name}: {rule.pattern}"[:SHOWN]
        """Source of suspicions that a line is overdue, which the next line takes back."""
        self._source_of_lines = f"{name} lines: {rule.pattern}"[:SHOWN]
        """Source of suspicions because of what the lines report, which no line takes back."""

    def give_up(self) -> Suspicion:
        """Stop expecting lines. Return that none is overdue."""
        self.is_over = True
        return Suspicion(self.source, "", ())

    def line(self, local_rank: int, match: LineMatch, now: float) -> Suspicion | None:
        rule = self.rule
        if self.is_over or rule.is_stop:
            return None
        if self._ranks[local_rank] == rule.rank:
            self.since, self._has_matched, self.may_be_over = now, True, False
        if rule.is_fault:
            return Suspicion(self._source_of_lines, words.wrote_line(match.text.strip()[:SHOWN]), (local_rank,))
        if rule.least > -inf or rule.most < inf:
            return self._number(local_rank, match.captured)
        return None

    def look(self, signs: Signs, time: CountedTime, now: float) -> tuple[Suspicion | None, float]:
        """Return a suspicion if a line is overdue, and the time at which the next one will be.

        Output that was not compared with the rules yet may contain the line. A worker that has ended owes no line.
        """
        rule = self.rule
        limit_s = rule.every_s if self._has_matched else rule.first_s
        if self.is_over or limit_s is None or rule.rank not in self._ranks:
            return None, inf
        local_rank = rule.rank - self._ranks[0]
        if self.may_be_over or local_rank not in signs.last_output_at:
            return Suspicion(self.source, "", ()), inf
        silent_s = time.between(self.since, max(self.since, min(now, signs.lines_seen_until)))
        if silent_s < limit_s:
            return Suspicion(self.source, "", ()), now + limit_s - silent_s
        reason = words.no_line(rule.pattern[:SHOWN], silent_s, limit_s)
        return Suspicion(self.source, reason, (local_rank,), silent_s, limit_s), inf

    def _number(self, local_rank: int, text: str) -> Suspicion | None:
        rule = self.rule
        try:
            value = float(text)
        except ValueError:
            return None
        is_beyond = isnan(value) or not rule.least <= value <= rule.most
        in_a_row = self._beyond[local_rank] = self._beyond.get(local_rank, 0) + 1 if is_beyond else 0
        if in_a_row < rule.points:
            return None
        if isnan(value):
            reason = words.wrote_no_number(text[:SHOWN], in_a_row)
        elif value < rule.least:
            reason = words.wrote_below(text[:SHOWN], in_a_row, rule.least)
        else:
            reason = words.wrote_above(text[:SHOWN], in_a_row, rule.most)
        return Suspicion(self._source_of_lines, reason, (local_rank,))


def _progress_reason(reading: Reading | None, silent_s: float, limit_s: float) -> str:
    if reading is None:
        return words.no_first_progress(silent_s, limit_s)
    return words.no_progress(silent_s, limit_s, reading.step)
