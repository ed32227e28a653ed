"""Buckets, with a clock that the test sets, and which peers share one."""

import pytest
from rdzv_protocol.errors import AgentFenced, Forbidden, Unauthorized

from rdzv_server.config import Rate
from rdzv_server.http import limits
from rdzv_server.http.limits import LOG_LINES, SILENCE_S, Buckets, RefusalLog, address_of, peer_of
from rdzv_server.words import http as words

TWO_A_SECOND = Rate(per_s=2, burst=5)


def taken(buckets: Buckets, peer: str, now: float, wanted: int = 100) -> int:
    """Return how many of the wanted tokens are available at this time."""
    count = 0
    while count < wanted and buckets.has_any(peer, now):
        buckets.take(peer, now)
        count += 1
    return count


def test_a_burst_is_allowed_at_once_and_then_a_fixed_rate():
    buckets = Buckets(TWO_A_SECOND)
    assert taken(buckets, "a", 100.0) == 5
    assert taken(buckets, "a", 100.4) == 0
    assert taken(buckets, "a", 100.5) == 1
    assert taken(buckets, "a", 101.5) == 2
    assert taken(buckets, "a", 1_000.0) == 5, "no more than the burst, however long nobody came"


def test_taking_from_an_empty_bucket_delays_neither_this_peer_nor_others():
    buckets = Buckets(TWO_A_SECOND)
    for _ in range(1_000):
        buckets.take("a", 1.0)
    assert taken(buckets, "b", 1.0) == 5
    assert buckets.has_any("a", 1.5)


def test_memory_is_bounded_and_the_latest_clients_are_remembered(monkeypatch):
    monkeypatch.setattr(limits, "MOST_PEERS", 10)
    buckets = Buckets(TWO_A_SECOND)
    taken(buckets, "full again by then", 0.0)
    for count in range(30):
        taken(buckets, f"peer {count}", 100.0)
        assert len(buckets._full_at) <= 10
    assert not buckets.has_any("peer 29", 100.0)


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_network_is_one_peer(address, peer):
    assert peer_of(address) == peer


# The log of refusals.


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_repeated_refusal_is_logged_once_in_a_while(caplog):
    refusals = RefusalLog()
    for second in range(1_000):
        refusals.note("10.0.0.7", Unauthorized("no token"), float(second))
    refusals.note("10.0.0.7", Forbidden("not\nfor you"), 1_000.0)
    refusals.note("10.0.0.8", Unauthorized("no token"), 1_000.0)
    refusals.note("10.0.0.8", AgentFenced("part of a run's life"), 1_000.0)
    assert SILENCE_S == 600
    assert said(caplog) == [
        *[words.refused("10.0.0.7", "no token", 0)] * 2,
        words.refused("10.0.0.7", "not for you", 0),
        words.refused("10.0.0.8", "no token", 0),
    ]


def test_a_flood_of_refusals_is_counted_but_not_logged(caplog):
    refusals = RefusalLog()
    for number in range(100_000):
        refusals.note("10.0.0.7", Forbidden(f"not run {number}"), 5.0)
    assert len(said(caplog)) == LOG_LINES.burst
    refusals.note("10.0.0.7", Forbidden("not this one"), 10.0)
    assert said(caplog)[-1] == words.refused("10.0.0.7", "not this one", 100_000 - LOG_LINES.burst)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::1", "::1"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2:ffff::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("", ""),
    ],
)
def test_people_are_shown_the_address_itself(address: str, shown: str) -> None:
    assert address_of(address) == shown
