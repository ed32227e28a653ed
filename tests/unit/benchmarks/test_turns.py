"""Who is measured when."""

from benchmarks.stage import Broken
from benchmarks.turns import Subject, once, take_turns


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


def test_a_subject_that_breaks_does_not_stop_the_others():
    def breaks():
        raise Broken("fell over")

    taken = take_turns([Subject("bad", once(breaks), 3), Subject("good", once(lambda: 1.0), 3)])
    assert (taken["bad"].samples, taken["bad"].trouble) == ([], "fell over")
    assert (taken["good"].samples, taken["good"].trouble) == ([1.0] * 3, "")
