"""Timeline of a run: its rounds, its progress and its events, small enough for a picture of a run of any length.

Everything follows from facts, so a restarted server has the same timeline. Each of the three lists has a limit. If one
is full, the policy merges what a picture shows least. These are the two shortest neighbouring rounds, the two marks of
a kind that are closest together, or two neighbouring samples. Old samples are merged first, so the last hour of a long
run has finer samples than its first days.
"""

from bisect import bisect
from itertools import pairwise
from math import sqrt
from typing import ClassVar, Literal, get_args

from msgspec import Struct, field
from rdzv_protocol.events import ActionKind, EventKind, RunEvent
from rdzv_protocol.messages import Progress
from rdzv_protocol.timing import hold_s

from rdzv_server.core.events import Fact, PolicyFact
from rdzv_server.core.kernel import progress
from rdzv_server.core.kernel.policy import Policy, Rule, Rules
from rdzv_server.core.kernel.run import PolicyState, Run, remember
from rdzv_server.core.policies import time_ledger
from rdzv_server.core.policies.time_ledger import TimeLedger

MOST_ROUNDS, MOST_SAMPLES, MOST_MARKS = 64, 256, 64
FIRST_INTERVAL_S, LAST_INTERVAL_S = 10.0, 180.0
"""Least seconds between two new samples of a young run, and of an old run: see `interval_s`."""
REPORTS_MISSED = 4.0
"""Number of reports in a row without which the server counts the workers as not heard."""
BURST_S, BURSTS = 10.0, 200.0
"""Events of a kind become one mark if they come within `BURST_S`, or within the run's age divided by `BURSTS` if that
is longer. A picture cannot show them apart."""

Lane = Literal["fault", "warning", "notice", "node", "action", "server"]
MarkKind = Literal[EventKind, "server_restarted"]
UNMARKED: frozenset[EventKind] = frozenset({
    "run_created", "round_opened", "round_started", "run_succeeded", "run_failed",  # the rounds show them
    "training_resumed",  # the round before shows the lost work
    "straggler_over", "notice_ended", "network_tested",  # the straggler, the notice and the unfit node have marks
})  # fmt: skip
"""Kinds of events that do not become marks."""
LANES: dict[MarkKind, Lane] = {
    **{kind: "warning" for kind in get_args(EventKind) if kind not in UNMARKED},
    **dict.fromkeys(get_args(ActionKind), "action"), "stacks_asked": "action",
    "workers_failed": "fault", "node_lost": "fault", "hang_found": "fault", "node_unfit": "fault",
    "notice_given": "notice",
    "node_joined": "node", "node_left": "node",
    "server_restarted": "server",
}  # fmt: skip
"""Kinds of events that become marks, and the server's restart, each with its lane in a picture. A new kind is in lane
`warning` until it is named here."""


class RoundSpan(Struct, gc=False):
    """Round of the run, or several neighbouring rounds: times, and seconds by what they went into."""

    first: int
    last: int
    opened_at: float
    started_at: float | None = None
    """Start of the first of these rounds that started; None if none has."""
    ended_at: float | None = None
    """None while the round forms or runs."""
    waiting_s: float = 0.0
    forming_s: float = 0.0
    running_s: float = 0.0
    starting_s: float = 0.0
    checkpointing_s: float = 0.0
    detecting_s: float = 0.0
    lost_s: float = 0.0
    """`starting_s` and the fields after it are parts of `running_s`: see `time_ledger`."""


SECONDS = tuple(name for name in RoundSpan.__struct_fields__ if name.endswith("_s"))


class Sample(Struct, frozen=True, gc=False):
    """Progress of a round, as known at a time."""

    at: float
    round: int
    step: int
    checkpoint_step: int | None
    checkpoint_s: float
    """Seconds spent on checkpoints in the round until then."""


class Mark(Struct, gc=False):
    """Events of one kind that happened together."""

    kind: MarkKind
    at: float
    until: float
    count: int
    number: int | None
    """Number of the first of these events; None if they are no events of the run."""
    node_id: str | None
    """Node of the first of these events."""


class TimelineState(PolicyState):
    rounds: list[RoundSpan] = field(default_factory=list)
    waited_before_s: float = 0.0
    """Seconds for which the run had waited below its minimum when the last round was opened."""
    samples: list[Sample] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    """Times of the latest samples whose reports may be as old as a long time before, in which the server heard none."""
    marks: list[Mark] = field(default_factory=list)

    def validate(self, run: Run) -> None:
        assert len(self.rounds) <= MOST_ROUNDS and len(self.samples) <= MOST_SAMPLES and len(self.marks) <= MOST_MARKS
        assert all(one.last < other.first for one, other in pairwise(self.rounds))
        assert all(one.at < other.at for one, other in pairwise(self.samples))
        assert all(span.ended_at is not None for span in self.rounds[:-1])


class TimelineSigns(Struct):
    of_round: int = 0
    checkpoint_s: float = 0.0
    """Seconds spent on checkpoints in this round, by the agent that reports the most."""
    restarted_at: float | None = None
    """Time at which this server took over the run, until it is recorded with other facts."""


class ProgressSampled(PolicyFact, frozen=True):
    """Progress of the running round, recorded from time to time."""

    step: int
    checkpoint_step: int | None = None
    checkpoint_s: float = 0.0


class ServerRestarted(PolicyFact, frozen=True):
    """The server was restarted, or another server took over, while the run continued."""

    restarted_at: float


class Timeline(Policy[TimelineState, TimelineSigns]):
    name = "timeline"
    State = TimelineState
    Signs = TimelineSigns

    def first_state(self, now: float) -> TimelineState:
        return TimelineState(rounds=[RoundSpan(1, 1, now)])

    def on_event(self, event: RunEvent, now: float) -> None:
        kind = event.kind
        if kind in LANES:
            self._mark(event, now)
        elif kind == "round_started":
            self._add_missing()
            self._formed(self._span, now)
            self._span.started_at = now
        elif kind == "training_resumed":
            if span := next((each for each in reversed(self.state.rounds[:-1]) if each.lost_s), None):
                span.lost_s = max(0.0, span.lost_s - TimeLedger.of(self.run).time.returned_s)
        elif kind == "round_opened":
            self._ended(now)
            self.state.rounds.append(RoundSpan(self.run.round, self.run.round, now))
            self.state.waited_before_s = time_ledger.waited_s(self.run, now)
            _merge_shortest(self.state.rounds)

    def run_ended(self, now: float) -> None:
        self._ended(now)

    def server_restarted(self, now: float) -> None:
        self.signs.restarted_at = now

    def before_round_ends(self, fact: Fact, now: float) -> ServerRestarted | None:
        restarted_at = self.signs.restarted_at
        return None if restarted_at is None else ServerRestarted(restarted_at)

    def _restarted(self, fact: ServerRestarted, now: float) -> None:
        self.signs.restarted_at = None
        self._add_mark(_restart(fact.restarted_at))

    def _ended(self, now: float) -> None:
        """Add what the time of the round went into; the round ends now."""
        self._add_missing()
        span = self._span
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
        """Add the time for which the round has been forming."""
        span.waiting_s = time_ledger.waited_s(self.run, now) - self.state.waited_before_s
        span.forming_s = now - span.opened_at - span.waiting_s

    @property
    def _span(self) -> RoundSpan:
        """Round that forms or runs."""
        return self.state.rounds[-1]

    def _add_missing(self) -> None:
        """Add the round that forms or runs if the state is from a snapshot that is older than this policy."""
        run = self.run
        if not self.state.rounds:
            is_running = TimeLedger.of(run).time.phase == "running"
            number = run.membership.round if is_running and run.membership else run.round
            opened = RoundSpan(number, number, run.opening.at, run.started_at if is_running else None)
            self.state.rounds.append(opened)

    def _mark(self, event: RunEvent, now: float) -> None:
        marks = self.state.marks
        if marks and (mark := marks[-1]).kind == event.kind and now - mark.at <= BURST_S:  # as of nodes that join
            mark.until, mark.count = now, mark.count + 1
            return
        near_s = max(BURST_S, (now - self.run.created_at) / BURSTS)
        for mark in reversed(marks):
            if now - mark.at > near_s:
                break
            if mark.kind == event.kind:
                mark.until, mark.count = now, mark.count + 1
                return
        self._add_mark(Mark(event.kind, now, now, 1, event.number, event.node_id))

    def _add_mark(self, mark: Mark) -> None:
        marks = self.state.marks
        marks.insert(bisect(marks, mark.at, key=lambda each: each.at), mark)
        if len(marks) > MOST_MARKS:
            _merge_closest(marks)

    # Progress.

    def progressed(self, agent_id: str, report: Progress, now: float) -> ProgressSampled | ServerRestarted | None:
        run, signs = self.run, self.signs
        if signs.of_round != run.round:
            signs.of_round, signs.checkpoint_s = run.round, 0.0
        if report.checkpoint_s > signs.checkpoint_s and report.round == run.round:
            signs.checkpoint_s = report.checkpoint_s
        if signs.restarted_at is not None:
            return ServerRestarted(signs.restarted_at)
        if not (self._is_due(now) and self._has_step(agent_id, report)):
            return None
        assert run.pace.highest_step is not None
        return ProgressSampled(run.pace.highest_step, run.pace.checkpoint_step, round(signs.checkpoint_s, 3))

    def _is_due(self, now: float) -> bool:
        samples = self.state.samples
        return now - (samples[-1].at if samples else self.run.started_at) >= interval_s(self.run, now)

    def _has_step(self, agent_id: str, report: Progress) -> bool:
        return report.highest_step is not None and progress.is_of_running_round(self.run, agent_id, report)

    def _sampled(self, fact: ProgressSampled, now: float) -> None:
        if is_late(self.run, now):
            remember(self.state.late, now)
        self._add(Sample(now, self.run.round, fact.step, fact.checkpoint_step, fact.checkpoint_s))

    def _add(self, sample: Sample) -> None:
        samples = self.state.samples
        if samples and samples[-1].at >= sample.at:
            samples.pop()
        samples.append(sample)
        if len(samples) > MOST_SAMPLES:
            _drop_one(samples)

    rules: ClassVar[Rules] = {
        ProgressSampled: Rule(apply=_sampled, may_end_round=False),
        ServerRestarted: Rule(apply=_restarted, may_end_round=False),
    }


def marks(run: Run) -> list[Mark]:
    """Return the marks of a run, including a restart of the server that is not recorded yet."""
    signs, known = run.signs.get(Timeline.name), Timeline.of(run).marks
    restarted_at = signs.restarted_at if isinstance(signs, TimelineSigns) else None
    return known if restarted_at is None else sorted([*known, _restart(restarted_at)], key=lambda mark: mark.at)


def _restart(at: float) -> Mark:
    return Mark("server_restarted", at, at, 1, None, None)


def interval_s(run: Run, now: float) -> float:
    """Return the least seconds between two new samples: few if there is room, and at most `LAST_INTERVAL_S`."""
    share_s = (now - run.created_at) / MOST_SAMPLES
    return min(LAST_INTERVAL_S, share_s) if share_s > FIRST_INTERVAL_S else FIRST_INTERVAL_S


def is_late(run: Run, at: float) -> bool:
    """Return whether the server had heard no report of the round for long before the one at this time."""
    last = Timeline.of(run).samples[-1:]
    limit_s = REPORTS_MISSED * max(interval_s(run, at), hold_s(run.settings.lease_s))
    return bool(last) and last[0].round == run.round and at - last[0].at > limit_s


def _drop_one(samples: list[Sample]) -> None:
    """Drop the sample whose neighbours are closest relative to its age: gaps grow with the square root of the age."""
    last_at = samples[-1].at

    def cost(index: int) -> float:
        return (samples[index + 1].at - samples[index - 1].at) / sqrt(last_at - samples[index].at)

    del samples[min(range(1, len(samples) - 1), key=cost)]


def _merge_shortest(rounds: list[RoundSpan]) -> None:
    """If there are too many rounds, merge the two neighbours that took the shortest time together."""
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
    """Merge the two marks of a kind that are closest in time."""
    latest: dict[MarkKind, int] = {}
    closest: tuple[float, int, int] | None = None
    for index, mark in enumerate(marks):
        if (before := latest.get(mark.kind)) is not None:
            gap = (mark.at - marks[before].until, before, index)
            closest = gap if closest is None else min(closest, gap)
        latest[mark.kind] = index
    assert closest is not None, "there are more marks than kinds"
    one, other = marks[closest[1]], marks.pop(closest[2])
    one.until, one.count = other.until, one.count + other.count
