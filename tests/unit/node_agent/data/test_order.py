"""The shuffled order is a permutation, uniform as far as a test can see, and never changes."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node_agent.data.order import Shuffled


@given(length=st.integers(1, 2_000), seed=st.integers(), epoch=st.integers(0, 1_000))
@example(length=1, seed=0, epoch=0)
@example(length=2, seed=0, epoch=0)
def test_each_sample_has_one_place(length: int, seed: int, epoch: int) -> None:
    order = Shuffled(length, seed, epoch)
    assert sorted(order[place] for place in range(length)) == list(range(length))


@pytest.mark.parametrize("length", [2, 3, 5, 10, 30])
def test_each_sample_is_equally_often_at_each_place(length: int) -> None:
    """Compare by chi-square, with a limit that random orders hardly ever exceed. The orders are the same each time."""
    epochs = 2_000
    places = [Counter[int]() for _ in range(length)]
    for epoch in range(epochs):
        order = Shuffled(length, 0, epoch)
        for place in range(length):
            places[place][order[place]] += 1
    expected, freedom = epochs / length, length - 1
    worst = max(sum((each[index] - expected) ** 2 / expected for index in range(length)) for each in places)
    assert worst < freedom + 5 * (2 * freedom) ** 0.5 + 16


def test_neighbours_are_independent() -> None:
    length, epochs = 5, 4_000
    pairs = Counter((order[0], order[1]) for order in (Shuffled(length, 1, epoch) for epoch in range(epochs)))
    expected, freedom = epochs / (length * (length - 1)), length * (length - 1) - 1
    assert len(pairs) == freedom + 1
    assert sum((times - expected) ** 2 / expected for times in pairs.values()) < freedom + 5 * (2 * freedom) ** 0.5 + 16


def test_the_order_never_changes() -> None:
    """Otherwise a run that continues with a new version would train on some samples twice, and never on others."""
    order = Shuffled(10, 7, 3)
    assert [order[place] for place in range(10)] == [0, 6, 2, 1, 9, 3, 4, 7, 5, 8]


def test_a_data_set_of_a_billion_samples_needs_a_megabyte() -> None:
    order = Shuffled(10**9, 0, 0)
    assert sum(len(amounts) * amounts.itemsize for each in order._rounds for amounts in each) < 2**20
    assert len({order[place] for place in range(10**9 - 1_000, 10**9)}) == 1_000
