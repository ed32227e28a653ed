"""Which peers share a bucket, and the log of refusals."""

import pytest
from rdzv_protocol.errors import AgentFenced, Forbidden, TooManyRequests, Unauthorized

from rdzv_server.core.policies.hangs import words as hang_words
from rdzv_server.http.peer_limits import LOG_LINES, SILENCE_S, RefusalLog, address_of, peer_of
from rdzv_server.words import http as words


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


def test_a_refusal_that_counts_seconds_down_is_logged_once(caplog):
    refusals = RefusalLog()
    for left_s in range(7, 0, -1):
        refusals.note("10.0.0.7", TooManyRequests(hang_words.examined_just_now("run-7", left_s)), 10.0 - left_s)
    refusals.note("10.0.0.7", TooManyRequests(hang_words.examined_just_now("run-8", 7.0)), 10.0)
    assert len(said(caplog)) == 2


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
