"""Whom shards are left to."""

from rdzv_server.cluster.backoff import LONGEST_S, Trust

SETTLE_S = 5.0


def seen(*servers: str) -> Trust:
    """By a server that has begun at 0."""
    trust = Trust(SETTLE_S)
    trust.see(servers, 0.0)
    return trust


def test_who_has_stayed_for_a_while_is_trusted():
    trust = seen("a:1")
    assert not trust.trusts("a:1", SETTLE_S - 0.1)
    assert trust.trusts("a:1", SETTLE_S) and trust.since("a:1") == SETTLE_S


def test_who_is_not_there_is_not_trusted():
    trust = seen("a:1")
    trust.see([], 9.0)
    assert not trust.trusts("a:1", 1e6) and not trust.trusts("b:1", 1e6)


def test_each_time_that_it_goes_too_soon_it_must_stay_twice_as_long():
    trust, now = seen("a:1"), 10.0
    for doublings in range(1, 5):
        trust.see([], now)
        trust.see(["a:1"], now + 1)
        assert trust.since("a:1") == now + 1 + SETTLE_S * 2**doublings
        now += 20.0


def test_each_time_that_it_does_not_take_what_it_is_left_it_is_left_nothing_for_twice_as_long():
    trust = seen("a:1")
    trust.failed("a:1", 10.0)
    assert trust.since("a:1") == 10.0 + SETTLE_S * 2
    trust.failed("a:1", 30.0)
    assert trust.since("a:1") == 30.0 + SETTLE_S * 4


def test_nobody_waits_for_ever():
    trust = seen("a:1")
    for number in range(2_000):
        trust.failed("a:1", float(number))
    assert trust.since("a:1") == 1_999.0 + LONGEST_S


def test_who_has_stayed_for_long_has_made_up_for_what_was_before():
    trust = seen("a:1")
    trust.failed("a:1", 10.0)
    trust.see([], 10.0 + LONGEST_S)
    trust.see(["a:1"], 11.0 + LONGEST_S)
    assert trust.since("a:1") == 11.0 + LONGEST_S + SETTLE_S


def test_who_is_gone_for_long_is_forgotten():
    trust = seen("a:1", "b:1")
    trust.see(["b:1"], 1.0)
    trust.see(["b:1"], 1.0 + LONGEST_S)
    trust.see(["a:1", "b:1"], 2.0 + LONGEST_S)
    assert trust.since("a:1") == 2.0 + LONGEST_S + SETTLE_S
