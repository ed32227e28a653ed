"""Tries come soon at first, then about once a second, and never all at once."""

from hypothesis import given
from hypothesis import strategies as st

from node_agent.core.backoff import FIRST_S, LONGEST_S, delay

attempts = st.integers(1, 10**6)
jitters = st.floats(0, 1)


def test_the_first_try_comes_at_once_for_a_person():
    assert delay(1, 1.0) == FIRST_S <= 0.1


@given(attempts, jitters)
def test_no_wait_is_longer_than_the_longest(attempt, jitter):
    assert 0 < delay(attempt, jitter) <= LONGEST_S


@given(attempts, jitters)
def test_waits_never_shrink(attempt, jitter):
    assert delay(attempt, jitter) <= delay(attempt + 1, jitter)


def test_waits_grow_to_the_longest_within_ten_tries():
    assert delay(2, 1.0) > delay(1, 1.0)
    assert delay(10, 1.0) == LONGEST_S


def test_jitter_spreads_agents_over_half_of_the_wait():
    assert delay(50, 0.0) == LONGEST_S / 2
    assert delay(50, 0.5) == LONGEST_S * 0.75
