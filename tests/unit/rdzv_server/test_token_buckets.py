"""Buckets, with a clock that the test sets."""

from rdzv_server import token_buckets as buckets_module
from rdzv_server.token_buckets import Rate, TokenBuckets

TWO_A_SECOND = Rate(per_s=2, burst=5)


def taken(buckets: TokenBuckets, peer: str, now: float, wanted: int = 100) -> int:
    """Return how many of the wanted tokens are available at this time."""
    count = 0
    while count < wanted and buckets.has_any(peer, now):
        buckets.take(peer, now)
        count += 1
    return count


def test_a_burst_is_allowed_at_once_and_then_a_fixed_rate():
    buckets = TokenBuckets(TWO_A_SECOND)
    assert taken(buckets, "a", 100.0) == 5
    assert taken(buckets, "a", 100.4) == 0
    assert taken(buckets, "a", 100.5) == 1
    assert taken(buckets, "a", 101.5) == 2
    assert taken(buckets, "a", 1_000.0) == 5, "no more than the burst, after any pause"


def test_taking_from_an_empty_bucket_does_not_delay_this_peer_or_others():
    buckets = TokenBuckets(TWO_A_SECOND)
    for _ in range(1_000):
        buckets.take("a", 1.0)
    assert taken(buckets, "b", 1.0) == 5
    assert buckets.has_any("a", 1.5)


def test_memory_is_bounded_and_the_latest_clients_are_remembered(monkeypatch):
    monkeypatch.setattr(buckets_module, "MOST_NAMES", 10)
    buckets = TokenBuckets(TWO_A_SECOND)
    taken(buckets, "full again by then", 0.0)
    for count in range(30):
        taken(buckets, f"peer {count}", 100.0)
        assert len(buckets._full_at) <= 10
    assert not buckets.has_any("peer 29", 100.0)
