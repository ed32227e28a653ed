"""Timeline: rounds, progress and marks of a run of any length, small and the same after a restart."""

import sys
from copy import deepcopy
from itertools import pairwise
from random import Random
from typing import Any, get_args

import msgspec
import pytest
from msgspec import Struct
from rdzv_protocol.events import ActionKind, EventKind

from rdzv_server.core.policies.time_ledger import TimeLedger
from rdzv_server.core.policies.timeline import LANES, MOST_SAMPLES, Lane, ProgressSampled, Timeline
from rdzv_server.core.views import timeline_view
from rdzv_server.core.views.timeline_view import TimelineView
from tests.support.scenario import WALL_AT, Scenario, replayed
from tests.support.stories import play

WEEK_S = 604_800
DAYS, LAST_HOUR, FINE = (0, 2 * 86_400), (WEEK_S - 3_600, WEEK_S), 10
MOST_BYTES = 100_000
MOST_RECORDS = 5_000
OF_A_WEEK = pytest.mark.xdist_group("week")
"""One process plays the week for all its tests: it takes a second or two."""


def shown(run: Scenario) -> TimelineView:
    return timeline_view.view(run.run, run.now)


def told(nodes: str, story: str, **settings: Any) -> Scenario:
    run = Scenario(nodes, **settings)
    play(run, story)
    return run


def test_each_round_says_what_its_time_went_into() -> None:
    run = told(
        "1",
        "join a; 10s; tell a highest_step=1 step_s=1; 40s; tell a highest_step=40 step_s=1 checkpoint_step=30 "
        "checkpoint_s=5; fail a; 2s; join a; 8s",
        max_restarts=3,
    )
    first, second = shown(run).rounds
    assert (first.first, first.opened_at, first.started_at, first.ended_at) == (1, WALL_AT, WALL_AT, WALL_AT + 50)
    assert (first.running_s, first.starting_s, first.checkpointing_s, first.lost_s) == (50, 10, 5, 10)
    assert (second.opened_at, second.started_at, second.ended_at) == (WALL_AT + 50, WALL_AT + 52, None)
    assert (second.forming_s + second.waiting_s, second.running_s, second.starting_s) == (2, 8, 8)
    play(run, "succeed a; 5s")
    assert shown(run).rounds[-1].ended_at == shown(run).ended_at == WALL_AT + 60
    assert shown(run).rounds[-1].running_s == 8


def test_work_that_the_next_round_does_not_repeat_was_not_lost() -> None:
    saved = "tell a highest_step=40 step_s=1 telling_s=40 checkpoint_step=30"
    run = told("1", f"join a; 40s; {saved}; fail a; join a", max_restarts=3)
    assert shown(run).rounds[0].lost_s == 10
    play(run, "5s; tell a highest_step=39 step_s=1 resumed_step=38")
    assert shown(run).rounds[0].lost_s == 2


def test_samples_contain_steps_a_second_and_the_last_checkpoint() -> None:
    run = told("1", "join a; 5s; tell a highest_step=1; 10s; tell a highest_step=21 checkpoint_step=20 checkpoint_s=2")
    play(run, "20s; tell a highest_step=21 age_s=20 checkpoint_step=20 checkpoint_s=2")
    first, second = shown(run).samples
    assert (first.step, first.checkpoint_step, first.checkpointing_s, first.steps_per_s) == (21, 20, 2, None)
    assert (second.step, second.steps_per_s, second.checkpointing_s) == (21, 0.0, 0.0), "it stands still"
    play(run, "3s; tell a highest_step=27")
    assert shown(run).samples[-1].step == 27, "what was told since the last sample is there as well"
    assert len(Timeline.of(run.run).samples) == 2


def test_a_report_right_after_a_sample_does_not_say_that_the_run_makes_no_steps() -> None:
    run = told("1", "join a; 10s; tell a highest_step=30; 10s; tell a highest_step=60; 0.1s; tell a highest_step=60")
    assert [sample.steps_per_s for sample in shown(run).samples] == [None, pytest.approx(3.0, abs=0.05)]


def test_an_outage_of_the_server_does_not_show_as_slow_and_then_fast_steps() -> None:
    """The first report after the outage may be as old as the outage: the rate counts from before it."""
    run = told("1", "join a; 10s; tell a highest_step=30; 10s; tell a highest_step=60; 150s; tell a highest_step=61")
    play(run, "10s; tell a highest_step=540; 10s; tell a highest_step=570")
    assert [sample.steps_per_s for sample in shown(run).samples] == [None, 3.0, None, 3.0, 3.0]


def test_an_outage_in_a_long_run_does_not_show_as_a_peak_of_steps_either() -> None:
    """Old samples are merged, so the time between two of them does not show whether the server heard the workers."""
    run = told("1", "join a")
    step = 0
    for number in range(3 * MOST_SAMPLES):
        is_late = number % MOST_SAMPLES == MOST_SAMPLES // 2
        run.passes(1_000.0 if is_late else 10.0)
        step += 30  # the first report after an outage is as old as the outage
        run.tells("a", highest_step=step)
        if is_late:
            run.passes(10.0)
            step += 3_000
            run.tells("a", highest_step=step)
    rates = [sample.steps_per_s for sample in shown(run).samples if sample.steps_per_s is not None]
    assert len(rates) > MOST_SAMPLES // 2 and max(rates) <= 3.01
    samples = shown(run).samples
    run.restarts_from_a_snapshot()
    after = shown(run).samples
    assert after == samples[: len(after)] and len(after) > len(rates) // 2


def test_a_rate_is_never_of_two_rounds() -> None:
    run = told("1", "join a; 20s; tell a highest_step=50; fail a; join a; 20s; tell a highest_step=31", max_restarts=3)
    assert [sample.steps_per_s for sample in shown(run).samples] == [None, None]


def test_events_that_happen_together_are_one_mark() -> None:
    run = told("2:3", "join a b; 60s; lose b; 1s; restart_run; 60s; join c d e")
    marks = [(mark.lane, mark.kind, mark.count, mark.node_id) for mark in shown(run).marks]
    assert marks == [
        ("node", "node_joined", 2, "a"), ("fault", "node_lost", 1, "b"),
        ("action", "run_restarted", 1, None), ("node", "node_joined", 3, "c"),
    ]  # fmt: skip
    numbers = [mark.number for mark in shown(run).marks]
    kinds = {event.number: event.kind for event in run.events}
    assert [kinds.get(number, "node_joined") for number in numbers] == [mark[1] for mark in marks]


def test_restarts_of_the_server_are_marks_and_stay() -> None:
    run = told("1", "join a; 60s", max_restarts=3)
    run.restarts()
    assert [mark.kind for mark in shown(run).marks] == ["node_joined", "server_restarted"], "before anything happens"
    play(run, "5s; tell a highest_step=1; 60s")
    run.restarts()
    play(run, "10s; fail a; join a; 5s")
    expected = [("node_joined", 0), ("server_restarted", 60), ("server_restarted", 125), ("workers_failed", 135)]
    assert [(mark.kind, mark.at - WALL_AT) for mark in shown(run).marks] == expected
    assert Timeline.of(replayed(run.created, run.records)) == Timeline.of(run.run)


def test_every_action_and_fault_has_a_lane() -> None:
    without = {"run_created", "round_opened", "round_started", "run_succeeded", "run_failed", "training_resumed"}
    over = {"straggler_over", "notice_ended", "network_tested"}
    assert set(get_args(EventKind)) | set(get_args(ActionKind)) >= LANES.keys() - {"server_restarted"}
    flat = {each for kind in get_args(EventKind) for each in (get_args(kind) or [kind])}
    assert flat - LANES.keys() == without | over


def test_each_kind_of_event_is_in_the_lane_of_its_subject() -> None:
    lanes = {
        "fault": {"workers_failed", "node_lost", "hang_found", "node_unfit"},
        "notice": {"notice_given"},
        "node": {"node_joined", "node_left"},
        "action": {*get_args(ActionKind), "stacks_asked"},
        "server": {"server_restarted"},
    }
    shown = {lane: {kind for kind, its in LANES.items() if its == lane} for lane in get_args(Lane)}
    warnings = shown.pop("warning")
    assert shown == lanes
    assert warnings >= {"hang_suspected", "straggler_found", "warning"}, "and each new kind of a policy"


@pytest.fixture(scope="module")
def week() -> Scenario:
    """Return a run of a week, with a failure every quarter of an hour on average, and joins and warnings."""
    chance, run = Random(29), Scenario("1:1", max_restarts=100_000)
    play(run, "join a")
    at = step = saved = spares = 0
    while run.now < WEEK_S:
        run.passes(60.0)
        at += 60
        step += 59
        saved = step - 10
        run.tells("a", highest_step=step, step_s=1.0, checkpoint_step=saved, checkpoint_s=at / 100)
        if chance.random() < 1 / 15:
            play(run, "fail a; 3s; join a")
            at, step = 0, saved
        if chance.random() < 1 / 50:
            spares += 1
            play(run, f"join b{spares}; leave b{spares}")
    return run


@OF_A_WEEK
def test_a_week_of_a_run_fits_into_100_kb(week: Scenario) -> None:
    state, run = Timeline.of(week.run), week.run
    state.validate(run)
    sizes = {
        "in memory": deep_size(state),
        "in a snapshot": len(msgspec.msgpack.encode(state)),
        "as an answer": len(msgspec.json.encode(shown(week))),
    }
    print(sizes)
    assert max(sizes.values()) < MOST_BYTES, sizes
    records = sum(isinstance(record.fact, ProgressSampled) for record in week.records)
    print(f"{records} records of progress in {len(week.records)}")
    assert records < MOST_RECORDS


@OF_A_WEEK
def test_every_second_and_event_of_a_week_of_a_run_is_kept(week: Scenario) -> None:
    rounds, spent = shown(week).rounds, TimeLedger.of(week.run).time.spent_s
    assert rounds[0].first == 1 and rounds[-1].last == week.run.round
    assert all(one.last + 1 == other.first for one, other in pairwise(rounds))
    assert not week.stage.is_end
    whole_s = sum(each.waiting_s + each.forming_s + each.running_s for each in rounds)
    assert whole_s == pytest.approx(week.now, abs=1) and spent
    counted = {kind: sum(mark.count for mark in shown(week).marks if mark.kind == kind) for kind in LANES}
    happened = {kind: sum(event.kind == kind for event in week.events) for kind in LANES}
    assert counted == happened


@OF_A_WEEK
def test_the_last_hour_of_a_week_is_finer_than_its_first_days(week: Scenario) -> None:
    samples = Timeline.of(week.run).samples
    early, late = ([one.at for one in samples if begin <= one.at <= end] for begin, end in (DAYS, LAST_HOUR))
    assert len(late) >= FINE
    gaps = [max(other - one for one, other in pairwise(times)) for times in (early, late)]
    print(len(early), len(late), gaps)
    assert gaps[0] > 4 * gaps[1]
    assert gaps[0] < WEEK_S / 50, "a picture of the week shows the first days, too"


@OF_A_WEEK
def test_a_week_of_a_run_is_the_same_after_a_restart(week: Scenario) -> None:
    before = Timeline.of(week.run)
    assert Timeline.of(replayed(week.created, week.records)) == before
    restarted = deepcopy(week)  # other tests read the week
    restarted.restarts_from_a_snapshot()
    assert Timeline.of(restarted.run) == before


def test_a_run_whose_snapshot_is_older_than_the_timeline_has_one_from_then_on() -> None:
    run = told("1", "join a; 30s", max_restarts=3)
    Timeline.of(run.run).rounds.clear()
    play(run, "fail a; join a; 5s")
    assert [(each.first, each.started_at is None) for each in shown(run).rounds] == [(1, False), (2, False)]


def deep_size(thing: Any) -> int:
    """Return the bytes that an object takes in memory, with all that it holds. Shared parts count each time."""
    size = sys.getsizeof(thing)
    if isinstance(thing, Struct):
        return size + sum(deep_size(getattr(thing, name)) for name in thing.__struct_fields__)
    return size + sum(map(deep_size, thing)) if isinstance(thing, list) else size
