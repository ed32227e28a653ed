"""Source of hang detection: lines of the workers' output that a `--log-rule` expects or takes for a fault."""

from math import inf, isnan

from msgspec import Struct
from rdzv_protocol.hang_sources import LOG_RULE

from node_agent.features.hangs import words
from node_agent.features.hangs.suspicion import SHOWN, CountedTime, Signs, Suspicion


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


class LineMatch(Struct, frozen=True):
    """Line in which the pattern of a rule was found."""

    rule: int
    """Number of the rule, in the order of the flags."""
    text: str
    """Beginning of the line."""
    captured: str
    """Text that the pattern captures, or all that it matches if it captures nothing."""


class RuleSource:
    """Lines that one rule expects of the workers of a round, which have just been started."""

    def __init__(self, number: int, rule: LogRule, ranks: range, time: CountedTime, now: float) -> None:
        self.rule = rule
        self._ranks, self._time = ranks, time
        self.since = now
        """Time of the last line, or of the start."""
        self._has_matched = False
        self._beyond: dict[int, int] = {}
        """Consecutive numbers beyond the limits, by local rank."""
        self.is_over = self.may_be_over = False
        name = f"{LOG_RULE} {number}"
        self.source = f"{name}: {rule.pattern}"[:SHOWN]
        """Source of suspicions that a line is overdue, which the next line takes back."""
        self._source_of_lines = f"{name} lines: {rule.pattern}"[:SHOWN]
        """Source of suspicions because of what the lines report, which no line takes back."""

    @property
    def shortest_s(self) -> float:
        return inf if self.is_over else min(self.rule.first_s or inf, self.rule.every_s or inf)

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

    def look(self, signs: Signs, now: float) -> tuple[Suspicion | None, float]:
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
        silent_s = self._time.between(self.since, max(self.since, min(now, signs.lines_seen_until)))
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
