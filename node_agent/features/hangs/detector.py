"""Hang detector: finds out from several sources when a node's workers have done nothing for too long.

`HangDetector` gets the observations of one round's workers and returns suspicions. It wakes at its deadlines, and a few
times between them to see whether the agent itself was held up. A worker's silence does not count while the agent did
not run, its console took no output, or the server did not answer (`CountedTime`).

A suspicion is only this node's view. The server, which knows all nodes, decides.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Protocol

from msgspec import Struct
from rdzv_protocol.hang_sources import PREPARATION, SILENCE, UNINTERRUPTIBLE

from node_agent.features.hangs import words
from node_agent.features.hangs.progress_source import (
    UNSEEN_S,
    UNSEEN_START_S,
    ProgressLimits,
    ProgressSource,
    Rhythm,
)
from node_agent.features.hangs.rule_source import LineMatch, LogRule, RuleSource
from node_agent.features.hangs.suspicion import SHOWN, CountedTime, Signs, Suspicion

LOOKS_A_LIMIT = 4
"""Looks within the shortest limit. Each look shows whether the agent was held up."""
MAX_CHECK_INTERVAL_S = 10.0
"""Most seconds between two checks, because learned limits become shorter meanwhile."""
LATE_S = 0.5
"""Seconds by which a look may be late. A later look shows that the agent was held up."""


class Source(Protocol):
    """Source of suspicions about the workers of one round."""

    @property
    def shortest_s(self) -> float:
        """Shortest of its limits at present, infinite if it expects nothing of the workers."""

    def look(self, signs: Signs, now: float) -> tuple[Suspicion | None, float]:
        """Return its verdict, None if it has none, and the time at which that may change."""


class Silence:
    """Output of the workers: at least one of them must write something, or report progress."""

    def __init__(self, limit_s: float, time: CountedTime, now: float) -> None:
        self.shortest_s, self._time, self._started_at = limit_s, time, now

    def look(self, signs: Signs, now: float) -> tuple[Suspicion | None, float]:
        if not signs.last_output_at:
            return None, inf
        limit_s = self.shortest_s
        told_at = max((reading.at for reading in signs.readings.values()), default=0.0)  # it works, even if it is quiet
        silent_s = self._time.between(max(self._started_at, signs.last_sign_at, min(told_at, now)), now)
        if silent_s < limit_s:
            return Suspicion(SILENCE, "", ()), now + limit_s - silent_s
        reason = words.no_output(silent_s, limit_s)
        return Suspicion(SILENCE, reason, tuple(signs.last_output_at), silent_s, limit_s), inf


class PreparationLimit(Struct, frozen=True):
    """Longest time in which a node prepares its workers, and the flag that sets it."""

    seconds: float
    flag: str


def preparation_limit(
    progress: ProgressLimits | None, silence_s: float | None, log_rules: Sequence[LogRule], ranks: range
) -> PreparationLimit | None:
    """Return the shortest limit that is meant for a start, None if there is none.

    No worker can write or report anything before it has started, so other limits do not apply as they are.
    """
    limits = [PreparationLimit(rule.first_s, "--log-rule") for rule in log_rules if rule.first_s and rule.rank in ranks]
    if silence_s is not None:
        limits.append(PreparationLimit(max(silence_s, UNSEEN_S), "--silence-timeout"))
    if progress:
        seconds = progress.preparation_s or progress.start_s or UNSEEN_START_S
        limits.append(PreparationLimit(seconds, "--progress-timeout"))
    return min(limits, key=lambda limit: limit.seconds, default=None)


class Preparation:
    """Preparations of a node, such as imports of `--preload`: its workers must start."""

    def __init__(self, limit: PreparationLimit, node_id: str, ranks: range, time: CountedTime, now: float) -> None:
        self.shortest_s, self._flag, self._node_id = limit.seconds, limit.flag, node_id
        self._ranks, self._time, self._began_at = tuple(range(len(ranks))), time, now

    def look(self, signs: Signs, now: float) -> tuple[Suspicion | None, float]:
        limit_s, source = self.shortest_s, f"{PREPARATION} ({self._flag})"
        took_s = self._time.between(self._began_at, now)
        if took_s < limit_s:
            return None, now + limit_s - took_s
        reason = words.prepares(self._node_id, signs.preparation, took_s, limit_s, self._flag)
        return Suspicion(source, reason, self._ranks, took_s, limit_s), inf


class Uninterruptible:
    """The kernel's view: no thread of a worker may be in uninterruptible sleep for too long."""

    def __init__(self, limit_s: float, time: CountedTime) -> None:
        self.shortest_s, self._time = limit_s, time
        self._asleep_since: dict[tuple[int, int], float] = {}

    def look(self, signs: Signs, now: float) -> tuple[Suspicion | None, float]:
        limit_s, since = self.shortest_s, self._asleep_since
        self._asleep_since = {thread: since.get(thread, now) for thread in signs.uninterruptible}
        asleep = {rank for (rank, _), at in self._asleep_since.items() if self._time.between(at, now) >= limit_s}
        late = tuple(sorted(asleep))
        reason = words.uninterruptible(limit_s) if late else ""
        silent_s = limit_s if late else 0.0
        return Suspicion(UNINTERRUPTIBLE, reason, late, silent_s), now + limit_s / LOOKS_A_LIMIT


class HangDetector:
    """Detector for the workers of one round, which have just been started or are prepared.

    `gap_s`: most seconds between two answers of a healthy server. `node_id`: name of this node, for `preparation`. The
    other arguments turn the sources on.
    """

    def __init__(
        self,
        ranks: range,
        rhythm: Rhythm,
        gap_s: float,
        now: float,
        *,
        progress: ProgressLimits | None = None,
        silence_s: float | None = None,
        uninterruptible_s: float | None = None,
        log_rules: Sequence[LogRule] = (),
        preparation: PreparationLimit | None = None,
        node_id: str = "",
    ) -> None:
        self._gap_s = gap_s
        self._heard_at = now
        self._time = time = CountedTime()
        self._progress = ProgressSource(progress, ranks, rhythm, time, now) if progress else None
        self._rules = [RuleSource(number, rule, ranks, time, now) for number, rule in enumerate(log_rules, 1)]
        self._sources: list[Source] = [
            *([self._progress] if self._progress else []),
            *([Silence(silence_s, time, now)] if silence_s is not None else []),
            *([Uninterruptible(uninterruptible_s, time)] if uninterruptible_s is not None else []),
            *([Preparation(preparation, node_id, ranks, time, now)] if preparation else []),
            *self._rules,
        ]
        self._suspected: dict[str, tuple[int, ...]] = {}
        self._look_at: float | None = now
        self._is_server_silent = False

    @property
    def unwatched(self) -> list[int]:
        """Local ranks that have never reported progress, if another worker has done enough steps to know."""
        return self._progress.unwatched if self._progress else []

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
        given_up = set(numbers)
        over = [state.give_up() for number, state in enumerate(self._rules) if number in given_up]
        return [suspicion for suspicion in over if self._note_if_new(suspicion)]

    def take_back(self) -> list[Suspicion]:
        """Return that nothing is suspected any more, for each source that suspects something."""
        over = [Suspicion(source, "", ()) for source in self._suspected]
        return [suspicion for suspicion in over if self._note_if_new(suspicion)]

    def look(self, signs: Signs, now: float) -> list[Suspicion]:
        """Examine the workers. Return new suspicions, and those that have ended."""
        if self._look_at is not None and now > self._look_at + LATE_S:
            self._time.leave_out(self._look_at, now)
        if signs.held_since is not None:
            self._time.leave_out(min(signs.held_since, now), now)
        if now - self._heard_at > self._gap_s:
            self._is_server_silent = True
            return []
        verdicts = [source.look(signs, now) for source in self._sources]
        due = min((at for _, at in verdicts), default=inf)
        shortest = min((source.shortest_s for source in self._sources), default=inf)
        tick_s = min(shortest / LOOKS_A_LIMIT, MAX_CHECK_INTERVAL_S)
        self._look_at = None if shortest == inf else max(now + LATE_S / 2, min(due, now + tick_s))
        return [suspicion for suspicion, _ in verdicts if suspicion and self._note_if_new(suspicion)]

    def cut_off(self, signs: Signs, now: float) -> None:
        """Record that the round ends now. The present silences, suspected or not, might have ended by themselves."""
        if self._progress:
            self._progress.cut_off(signs, now)

    def _note_if_new(self, suspicion: Suspicion) -> bool:
        """Note the suspicion unless it is known. Return False if it is."""
        known = self._suspected.get(suspicion.source, ())
        if known == suspicion.local_ranks or (known and suspicion.local_ranks):  # more workers may hang than before
            return False
        self._suspected[suspicion.source] = suspicion.local_ranks
        return True
