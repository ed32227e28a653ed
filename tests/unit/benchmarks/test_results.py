"""Figures for people, whether they meet their limits, and the order in which they are measured."""

import pytest

from benchmarks.results import NEVER, figure, table
from benchmarks.scenario import Subject, once, take_turns
from benchmarks.stage import Broken
from tests.unit.benchmarks.figures import a_run, row


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.0843, "s", "84.3 ms"),
        (0.000_007_81, "s", "7.81 µs"),
        (60.0, "s", "60 s"),
        (618.4, "MB/s", "618 MB/s"),
        (0.4, "/s", "0.40 /s"),
        (2.0, "of 4", "2 of 4"),
    ],
)
def test_a_figure_has_three_digits_and_a_unit_that_suits_it(value, unit, said):
    assert figure(value, unit) == said


@pytest.mark.parametrize(
    ("samples", "at_least", "met"),
    [
        ((1.0, 5.0, 9.0), False, True),
        ((1.0, 5.1, 9.0), False, False),
        ((1.0, 5.0, 9.0), True, True),
        ((1.0, 4.9, 9.0), True, False),
        ((1.0, NEVER, NEVER), False, False),
        ((), False, None),
    ],
)
def test_the_median_decides_whether_a_bar_is_met(samples, at_least, met):
    assert row(samples=samples, bar=5.0, at_least=at_least).is_met is met


def test_an_event_that_never_came_is_reported_with_the_time_of_the_wait():
    never = row("torchrun", (44.0, NEVER, NEVER), cap=60.0)
    assert (never.median, never.as_json()["median"], never.as_json()["samples"]) == ("> 60 s", None, [44.0, None, None])


def test_the_table_says_every_row_with_its_bar_or_its_trouble():
    heading, ours, never, _, absent, _ = table(a_run()).splitlines()
    assert heading.split()[:3] == ["measurement", "subject", "median"]
    assert "50 ms   40 ms   70 ms  3  ≤ 80 ms  met" in ours
    assert "> 60 s" in never
    assert absent.endswith("etcd is not on PATH")


def test_subjects_take_turns_and_one_that_breaks_does_not_stop_the_others():
    order = []

    def sample(name):
        order.append(name)
        return float(len(order))

    def breaks():
        raise Broken("fell over")

    a, b = (Subject(name, once(lambda name=name: sample(name)), repeat) for name, repeat in (("a", 3), ("b", 2)))
    taken = take_turns([a, Subject("bad", once(breaks), 3), b], warm_up=True)
    assert order == ["a", "b", "a", "b", "a", "b", "a"]
    assert taken["a"].samples == [3.0, 5.0, 7.0]
    assert (taken["bad"].samples, taken["bad"].trouble) == ([], "fell over")
