"""A run over time as text, made of a real server's timeline."""

from typing import cast

import pytest
from msgspec import json

from rdzv_server.core.views import timeline_view
from rdzvctl import timeline
from rdzvctl.answers import Fields, decoded
from tests.support.scenario import Scenario, running

WIDTH = timeline.LABEL + timeline.TOTAL + 60
"""Width of a picture with 60 columns."""


def told(run: Scenario) -> Fields:
    return cast(Fields, decoded(json.encode(timeline_view.view(run.run, run.now))))


def lanes(run: Scenario, width: int = WIDTH, *, is_plain: bool = False) -> dict[str, str]:
    """Return the lanes of the picture by their labels, without the text after them."""
    drawn = [*timeline.lines(told(run), width, is_plain=is_plain)]
    assert all(len(line) <= width for line in drawn)
    return {line[: timeline.LABEL].strip(): line[timeline.LABEL : width - timeline.TOTAL] for line in drawn}


def works(run: Scenario, seconds: int) -> None:
    """Let time pass with a step a second, and a checkpoint of a second every 20 s."""
    for _ in range(seconds // 5):
        run.passes(5)
        step = int(run.now)
        for name in "ab":
            run.tells(name, lowest_step=step, highest_step=step, step_s=1, checkpoint_s=step // 20)


def failing() -> Scenario:
    """Return a run with a minute of steps, a failure, 30 s until the next round starts, and 30 s of steps."""
    run = running("2", "a", "b", max_restarts=3)
    works(run, 60)
    run.fails("a")
    run.passes(30)
    run.join("a", "b")
    works(run, 30)
    return run


def test_each_lane_has_the_part_of_the_time_that_went_into_it() -> None:
    shown = lanes(failing())
    assert shown["running"].strip() == 30 * "█" + 15 * " " + 15 * "█", "60 columns of 2 s"
    assert shown["forming"].rstrip() == 30 * " " + 15 * "█"
    assert shown["standing still"].strip() == ""
    assert shown["events"][0] == "+" and shown["events"][30] == "x"


def test_each_lane_ends_with_its_sum_and_the_fastest_pace_is_named() -> None:
    drawn = {line[: timeline.LABEL].strip(): line for line in timeline.lines(told(failing()), WIDTH)}
    assert drawn["running"].endswith("  1m30s") and drawn["forming"].endswith("  30s")
    assert drawn["standing still"].endswith("  -") and drawn["steps a second"].endswith("up to 1")


@pytest.mark.parametrize("width", [10, 80, 200])
def test_the_picture_fits_its_width_but_is_never_too_narrow_to_read(width: int) -> None:
    drawn = [*timeline.lines(told(failing()), width)]
    least = timeline.LABEL + timeline.NARROWEST + timeline.TOTAL
    assert max(map(len, drawn)) <= max(width, least)


def test_without_unicode_the_bars_are_of_ascii() -> None:
    assert lanes(failing(), is_plain=True)["running"].strip() == 30 * "#" + 15 * " " + 15 * "#"
    assert all(line.isascii() for line in timeline.lines(told(failing()), WIDTH, is_plain=True))


def test_a_short_time_is_seen_and_a_short_gap_too() -> None:
    run = running("1", "a", max_restarts=3)
    run.passes(5_000)
    run.fails("a")
    run.passes(1)
    run.join("a")
    run.passes(5_000)
    shown = lanes(run)
    assert {*shown["forming"].strip()} == {"▁"} and "▇" in shown["running"]


def test_the_timeline_lists_events_below_the_lanes_with_their_times() -> None:
    run = failing()
    table = timeline.events_table(told(run)["marks"])
    assert [row[1:] for row in table.rows] == [
        ("+", "2 × node joined", "a first"), ("x", "workers failed", "a")
    ]  # fmt: skip


def test_the_latest_of_rounds_that_are_merged_is_drawn_by_its_share() -> None:
    run = running("1", "a", max_restarts=200, restart_backoff_s=0)
    for _ in range(150):
        run.passes(10)
        run.fails("a")
        run.passes(10)
        run.join("a")
    assert any(each["first"] != each["last"] for each in told(run)["rounds"])
    shown = lanes(run)
    assert {*shown["forming"]} <= {"▂", "▃", "▄", "▅"} and {*shown["running"]} <= {"▃", "▄", "▅"}


def test_a_run_that_has_only_begun_has_a_picture() -> None:
    run = Scenario("2")
    run.join("a")
    assert lanes(run)["events"].strip() == "+"
