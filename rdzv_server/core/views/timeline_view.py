"""Timeline of a run as operators see it, for a picture of the run. Times are in seconds since 1970 by the server's
clock.

Its size is limited even if the run is long: see `policies.timeline`.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct, structs
from rdzv_protocol.constraints import Count, Duration, Id, Round, Step
from rdzv_protocol.events import Number

from rdzv_server.core.kernel.run import Run
from rdzv_server.core.policies import time_ledger
from rdzv_server.core.policies.timeline import (
    FIRST_INTERVAL_S,
    LANES,
    SECONDS,
    Lane,
    Mark,
    MarkKind,
    RoundSpan,
    Sample,
    Timeline,
    interval_s,
    is_late,
    marks,
)

Time = Annotated[float, Meta(description="seconds since 1970")]


class TimelineRound(Struct, frozen=True, kw_only=True):
    """Round of the run, or several neighbouring short rounds together, with seconds by what they went into."""

    first: Round
    last: Round
    opened_at: Time
    started_at: Annotated[
        Time | None, Meta(description="start of the first of these rounds that has started; null: none has")
    ]
    ended_at: Annotated[Time | None, Meta(description="null: the round is forming or running")]
    waiting_s: Annotated[Duration, Meta(description="time with fewer nodes than the minimum")]
    forming_s: Annotated[Duration, Meta(description="time until the start, while the minimum of nodes was present")]
    running_s: Annotated[
        Duration, Meta(description="time from the start to the end; the next four are parts of this time")
    ]
    starting_s: Annotated[
        Duration, Meta(description="time from the start to the first progress that the workers reported")
    ]
    checkpointing_s: Duration
    detecting_s: Annotated[Duration, Meta(description="time from a standstill to the end of the round, or until now")]
    lost_s: Annotated[Duration, Meta(description="time of work since the last checkpoint, which the run repeated")]


class TimelineSample(Struct, frozen=True, kw_only=True):
    """Progress of the run at one time."""

    at: Time
    round: Round
    step: Step
    checkpoint_step: Annotated[Step | None, Meta(description="step of the last known complete checkpoint")]
    checkpointing_s: Annotated[
        Duration, Meta(description="time for checkpoints since the previous sample of the round")
    ]
    steps_per_s: Annotated[
        float | None,
        Meta(
            description="steps per second since the previous sample; null: unknown, as for the first sample of a round,"
            " or after a time in which the server heard no report"
        ),
    ]


class TimelineMark(Struct, frozen=True, kw_only=True):
    """One event, several events of one kind that happened together, or a restart of the server."""

    lane: Annotated[Lane, Meta(description="subject of the kind")]
    kind: MarkKind
    at: Time
    until: Time
    count: Count
    number: Annotated[
        Number | None, Meta(description="number of the first of these events; null: a restart of the server")
    ]
    node_id: Annotated[Id | None, Meta(description="node of the first of these events")]


class TimelineView(Struct, frozen=True, kw_only=True):
    """Rounds, progress and events of a run's last attempt, for a picture. Always below 100 kB, even for a long run."""

    run_id: Id
    attempt: Count
    now: Time
    created_at: Time
    ended_at: Time | None
    sample_interval_s: Annotated[
        Duration, Meta(description="least time between two new samples; older samples are further apart")
    ]
    rounds: list[TimelineRound]
    samples: list[TimelineSample]
    marks: list[TimelineMark]


def view(run: Run, now: float) -> TimelineView:
    """Return the timeline of the run up to now."""
    state = Timeline.of(run)
    return TimelineView(
        run_id=run.run_id,
        attempt=run.attempt,
        now=_time(run, now),
        created_at=_time(run, run.created_at),
        ended_at=_known(run, run.ended_at if run.has_ended else None),
        sample_interval_s=interval_s(run, now if run.ended_at is None else run.ended_at),
        rounds=[_round(run, span) for span in rounds_up_to(run, now)],
        samples=list(_samples(run, _with_latest(run, state.samples))),
        marks=[_mark(run, mark) for mark in marks(run)],
    )


def unreadable(run: Run, now: float) -> TimelineView:
    """Return the timeline of a run for which nothing can be computed."""
    created_at = _time(run, run.created_at)
    return TimelineView(
        run_id=run.run_id, attempt=run.attempt, now=_time(run, now), created_at=created_at, ended_at=None,
        sample_interval_s=0.0, rounds=[], samples=[], marks=[],
    )  # fmt: skip


def _time(run: Run, at: float) -> float:
    return round(run.wall_clock(at), 3)


def _known(run: Run, at: float | None) -> float | None:
    return None if at is None else _time(run, at)


def rounds_up_to(run: Run, now: float) -> list[RoundSpan]:
    """Return the rounds, with the time of the current phase, which is otherwise added when the phase ends."""
    rounds = Timeline.of(run).rounds
    if not rounds or rounds[-1].ended_at is not None:
        return list(rounds)
    last = structs.replace(rounds[-1])
    if last.started_at is None:
        last.waiting_s = time_ledger.waited_s(run, now) - Timeline.of(run).waited_before_s
        last.forming_s = now - last.opened_at - last.waiting_s
    else:
        last.running_s = now - last.started_at
        for part, seconds in time_ledger.parts_so_far(run, now).items():
            setattr(last, f"{part}_s", seconds)
    return [*rounds[:-1], last]


def _round(run: Run, span: RoundSpan) -> TimelineRound:
    return TimelineRound(
        first=span.first,
        last=span.last,
        opened_at=_time(run, span.opened_at),
        started_at=_known(run, span.started_at),
        ended_at=_known(run, span.ended_at),
        **{name: round(getattr(span, name), 3) for name in SECONDS},
    )


def _with_latest(run: Run, samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples, with what agents have reported since the last one.

    If that sample is very young, the report replaces it: between the two, a healthy run may have made no step.
    """
    pace = run.pace
    if pace.highest_step is None or (samples and pace.told_at <= samples[-1].at):
        return samples
    saved_s = max((sign.progress.checkpoint_s for sign in run.progress.values()), default=0.0)
    latest = Sample(pace.told_at, run.round, pace.highest_step, pace.checkpoint_step, saved_s)
    is_young = bool(samples) and samples[-1].round == run.round and latest.at - samples[-1].at < FIRST_INTERVAL_S / 2
    return [*(samples[:-1] if is_young else samples), latest]


def _samples(run: Run, samples: Sequence[Sample]) -> Iterator[TimelineSample]:
    """Yield the samples with their rates.

    If the server has heard no report for some time (its store was out), the first report may be as old as that. So its
    rate is unknown, and the next one's counts from before.
    """
    late = {*Timeline.of(run).late, *({run.pace.told_at} if is_late(run, run.pace.told_at) else ())}
    last: Sample | None = None
    paced: Sample | None = None
    saved: int | None = None
    for sample in samples:
        before = last if last is not None and last.round == sample.round else None
        is_old = before is not None and sample.at in late
        since = paced if before and paced and not is_old else None
        rate = None if since is None else (sample.step - since.step) / (sample.at - since.at)
        saved_s = sample.checkpoint_s - (0.0 if before is None else before.checkpoint_s)
        saved = saved if sample.checkpoint_step is None else sample.checkpoint_step
        yield TimelineSample(
            at=_time(run, sample.at),
            round=sample.round,
            step=sample.step,
            checkpoint_step=saved,
            checkpointing_s=round(max(0.0, saved_s), 3),
            steps_per_s=None if rate is None else float(f"{max(0.0, rate):.4g}"),
        )
        last, paced = sample, paced if is_old else sample


def _mark(run: Run, mark: Mark) -> TimelineMark:
    return TimelineMark(
        lane=LANES[mark.kind],
        kind=mark.kind,
        at=_time(run, mark.at),
        until=_time(run, mark.until),
        count=mark.count,
        number=mark.number,
        node_id=mark.node_id,
    )
