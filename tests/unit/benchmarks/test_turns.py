"""Who is measured when."""

import multiprocessing
import os

import pytest

from benchmarks.stage import Broken
from benchmarks.turns import Subject, once, take_turns

TIMEOUT_S = 30.0


def test_subjects_take_turns_until_each_has_its_samples():
    order = []

    def sample(name):
        order.append(name)
        return float(len(order))

    a, b = (Subject(name, once(lambda name=name: sample(name)), repeat) for name, repeat in (("a", 3), ("b", 2)))
    taken = take_turns([a, b])
    assert order == ["a", "b", "a", "b", "a"]
    assert taken["a"].samples == [1.0, 3.0, 5.0]


def test_a_sample_knows_how_many_more_are_wanted():
    wanted = []

    def two_at_once(still):
        wanted.append(still)
        return [0.0] * min(still, 2)

    assert take_turns([Subject("a", two_at_once, 5)])["a"].samples == [0.0] * 5
    assert wanted == [5, 3, 1]


def test_the_first_turn_may_be_a_warm_up():
    samples = iter([100.0, 1.0, 2.0])
    assert take_turns([Subject("a", once(lambda: next(samples)), 2)], warm_up=True)["a"].samples == [1.0, 2.0]


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_subject_that_breaks_does_not_stop_the_others(is_slow):
    def breaks():
        raise Broken("fell over")

    subjects = [Subject("bad", once(breaks), 3, is_slow), Subject("good", once(lambda: 1.0), 3, is_slow)]
    taken = take_turns(subjects)
    assert (taken["bad"].samples, taken["bad"].trouble) == ([], "fell over")
    assert (taken["good"].samples, taken["good"].trouble) == ([1.0] * 3, "")


def test_slow_ones_are_measured_at_the_same_time():
    together = multiprocessing.get_context("fork").Barrier(2, timeout=TIMEOUT_S)

    def meet():
        together.wait()
        return float(os.getpid())

    taken = take_turns([Subject(name, once(meet), 1, is_slow=True) for name in "ab"])
    pids = {taken[name].samples[0] for name in "ab"}
    assert len(pids) == 2, "each has a process of its own"
    assert os.getpid() not in pids


def test_a_slow_one_whose_process_dies_is_told():
    taken = take_turns([Subject("a", once(lambda: os._exit(1)), 1, is_slow=True)])
    assert taken["a"].trouble == "its process ended early"
