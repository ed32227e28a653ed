"""Timeline of a run: its rounds, its progress and what happened to it, small enough for a picture of any length.

Everything follows from facts, so a restarted server has the same timeline. Each of the three lists has a limit. If one
is full, the policy merges what a picture shows least: the two shortest neighbouring rounds, the two marks of a kind
that are closest together, or the samples of two neighbouring intervals.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from msgspec import Struct, field
from rdzv_protocol.events import EventKind, RunEvent
from rdzv_protocol.messages import Progress

from rdzv_server.core.events import PolicyFact
from rdzv_server.core.kernel import progress
from rdzv_server.core.kernel.policy import Policy, Rule, Rules
from rdzv_server.core.kernel.run import PolicyState, Run
from rdzv_server.core.policies import time_ledger
from rdzv_server.core.policies.time_ledger import TimeLedger

MOST_ROUNDS, MOST_SAMPLES, MOST_MARKS = 64, 256, 64
FIRST_INTERVAL_S = 10.0
"""Seconds between two samples of a young run: twice as many each time that there are `MOST_SAMPLES`."""
BURST_S, BURSTS = 10.0, 200.0
"""Events of a kind are one mark if they come within `BURST_S`, or within the run's age divided by `BURSTS` if longer:
about what a picture cannot show apart."""

Lane = Literal["fault", "warning", "notice", "node", "action"]
LANES: dict[EventKind, Lane] = {
    "workers_failed": "fault", "node_lost": "fault", "hang_found": "fault", "node_unfit": "fault",
    "hang_suspected": "warning", "straggler_found": "warning", "warning": "warning",
    "notice_given": "notice",
    "node_joined": "node", "node_left": "node",
    "node_drained": "action", "node_cordoned": "action", "node_uncordoned": "action", "nodes_admitted": "action",
    "run_restarted": "action", "run_resized": "action", "run_stopped": "action", "stacks_asked": "action",
}  # fmt: skip
"""Kinds of events that are marks, each with its lane in a picture."""


class RoundSpan(Struct, gc=False):
    """Round of the run, or several neighbouring ones: times, and seconds by what they went into."""

    first: int
    last: int
    opened_at: float
    started_at: float | None = None
    """Start of the first of them that started; None: none has."""
    ended_at: float | None = None
    """None: the round forms or runs."""
    waiting_s: float = 0.0
    forming_s: float = 0.0
    running_s: float = 0.0
    starting_s: float = 0.0
    checkpointing_s: float = 0.0
    detecting_s: float = 0.0
    lost_s: float = 0.0
    """`starting_s` and what follows it are parts of `running_s`: see `time_ledger`."""


SECONDS = tuple(name for name in RoundSpan.__struct_fields__ if name.endswith("_s"))


class Sample(Struct, frozen=True, gc=False):
    """Progress of a round that was known at a time."""

    at: float
    round: int
    step: int
    checkpoint_step: int | None
    checkpoint_s: float
    """Seconds that had gone into checkpoints in the round."""


class Mark(Struct, gc=False):
    """Events of a kind that happened together."""

    kind: EventKind
    at: float
    until: float
    count: int
    number: int
    """Number of the first of them."""
    node_id: str | None
    """Node of the first of them."""


class TimelineState(PolicyState):
    rounds: list[RoundSpan] = field(default_factory=list)
    waited_before_s: float = 0.0
    """Seconds for which the run had waited below its minimum when the last round was opened."""
    samples: list[Sample] = field(default_factory=list)
    sample_interval_s: float = FIRST_INTERVAL_S
    """At most one sample is kept of each interval of this many seconds: the latest."""
    marks: list[Mark] = field(default_factory=list)

    def validate(self, run: Run) -> None:
        assert len(self.rounds) <= MOST_ROUNDS and len(self.samples) <= MOST_SAMPLES and len(self.marks) <= MOST_MARKS
        assert all(one.last < other.first for one, other in pairwise(self.rounds))
        assert all(one.at < other.at for one, other in pairwise(self.samples))
        assert all(span.ended_at is not None for span in self.rounds[:-1])


class TimelineSigns(Struct):
    """Seconds that have gone into checkpoints in the running round, where most has, as agents tell them."""

    of_round: int = 0
    checkpoint_s: float = 0.0


class ProgressSampled(PolicyFact, frozen=True):
    """Progress of the running round, written down from time to time."""

    step: int
    checkpoint_step: int | None = None
    checkpoint_s: float = 0.0


class Timeline(Policy[TimelineState, TimelineSigns]):
    name = "timeline"
    State = TimelineState
    Signs = TimelineSigns

    def first_state(self, now: float) -> TimelineState:
        return TimelineState(rounds=[RoundSpan(1, 1, now)])

    def told(self, event: RunEvent, now: float) -> None:
        kind = event.kind
        if kind in LANES:
            self._mark(event, now)
        elif kind == "round_started":
            self._formed(self._span(), now)
            self._span().started_at = now
        elif kind == "round_opened":
            self._ended(now)
            self.state.rounds.append(RoundSpan(self.run.round, self.run.round, now))
            self.state.waited_before_s = time_ledger.waited_s(self.run, now)
            _merge_shortest(self.state.rounds)

    def run_ended(self, now: float) -> None:
        self._ended(now)

    def _ended(self, now: float) -> None:
        """Enter what the time of the round went into, which ends now."""
        span = self._span()
        span.ended_at = now
        if span.started_at is None:
            self._formed(span, now)
            return
        span.running_s = now - span.started_at
        for part, seconds in time_ledger.parts_of_round(self.run, span.running_s).items():
            setattr(span, f"{part}_s", seconds)
        measured = TimeLedger.of(self.run).measured
        if measured is not None and measured.step is not None:
            self._add(Sample(now, span.last, measured.step, measured.checkpoint_step, measured.checkpointing_s))

    def _formed(self, span: RoundSpan, now: float) -> None:
        """Enter the time for which the round has been forming."""
        span.waiting_s = time_ledger.waited_s(self.run, now) - self.state.waited_before_s
        span.forming_s = now - span.opened_at - span.waiting_s

    def _span(self) -> RoundSpan:
        """Round that forms or runs. A snapshot that is older than this policy has none."""
        rounds, run = self.state.rounds, self.run
        if not rounds:
            is_running = TimeLedger.of(run).time.phase == "running"
            number = run.membership.round if is_running and run.membership else run.round
            rounds.append(RoundSpan(number, number, run.opening.at, run.started_at if is_running else None))
        return rounds[-1]

    def _mark(self, event: RunEvent, now: float) -> None:
        marks = self.state.marks
        near_s = max(BURST_S, (now - self.run.created_at) / BURSTS)
        for mark in reversed(marks):
            if now - mark.at > near_s:
                break
            if mark.kind == event.kind:
                mark.until, mark.count = now, mark.count + 1
                return
        marks.append(Mark(event.kind, now, now, 1, event.number, event.node_id))
        if len(marks) > MOST_MARKS:
            _merge_closest(marks)

    # Progress.

    def is_news(self, agent_id: str, told: Progress, now: float) -> bool:
        """Whether an interval has begun of which there is no sample."""
        return self._is_due(now) and self._has_step(agent_id, told)

    def progressed(self, agent_id: str, told: Progress, now: float) -> ProgressSampled | None:
        run, signs = self.run, self.signs
        if signs.of_round != run.round:
            signs.of_round, signs.checkpoint_s = run.round, 0.0
        if told.checkpoint_s > signs.checkpoint_s and told.round == run.round:
            signs.checkpoint_s = told.checkpoint_s
        if not self.is_news(agent_id, told, now):
            return None
        assert run.pace.highest_step is not None
        return ProgressSampled(run.pace.highest_step, run.pace.checkpoint_step, round(signs.checkpoint_s, 3))

    def _is_due(self, now: float) -> bool:
        samples, interval_s = self.state.samples, self.state.sample_interval_s
        return now // interval_s > (samples[-1].at if samples else self.run.started_at) // interval_s

    def _has_step(self, agent_id: str, told: Progress) -> bool:
        return told.highest_step is not None and progress.is_of_running_round(self.run, agent_id, told)

    def _sampled(self, fact: ProgressSampled, now: float) -> None:
        self._add(Sample(now, self.run.round, fact.step, fact.checkpoint_step, fact.checkpoint_s))

    def _add(self, sample: Sample) -> None:
        state = self.state
        state.samples.append(sample)
        state.samples = _thinned(state.samples, state.sample_interval_s)
        while len(state.samples) > MOST_SAMPLES:
            state.sample_interval_s *= 2
            state.samples = _thinned(state.samples, state.sample_interval_s)

    rules: ClassVar[Rules] = {ProgressSampled: Rule(apply=_sampled, may_end_round=False)}


def _thinned(samples: Sequence[Sample], interval_s: float) -> list[Sample]:
    """Latest sample of each interval."""
    return list({sample.at // interval_s: sample for sample in samples}.values())


def _merge_shortest(rounds: list[RoundSpan]) -> None:
    """Merge the two neighbouring rounds that took the shortest time together, if there are too many."""
    if len(rounds) <= MOST_ROUNDS:
        return
    pairs = range(len(rounds) - 2)  # the last round has not ended
    at = min(pairs, key=lambda index: (rounds[index + 1].ended_at or 0.0) - rounds[index].opened_at)
    one, other = rounds[at], rounds.pop(at + 1)
    one.last, one.ended_at = other.last, other.ended_at
    one.started_at = other.started_at if one.started_at is None else one.started_at
    for name in SECONDS:
        setattr(one, name, getattr(one, name) + getattr(other, name))


def _merge_closest(marks: list[Mark]) -> None:
    """Merge the two marks of a kind between which the least time has passed."""
    latest: dict[EventKind, int] = {}
    closest: tuple[float, int, int] | None = None
    for index, mark in enumerate(marks):
        if (before := latest.get(mark.kind)) is not None:
            gap = (mark.at - marks[before].until, before, index)
            closest = gap if closest is None else min(closest, gap)
        latest[mark.kind] = index
    assert closest is not None, "there are more marks than kinds"
    one, other = marks[closest[1]], marks.pop(closest[2])
    one.until, one.count = other.until, one.count + other.count
