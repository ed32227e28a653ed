"""Retry policy of a transport: the next try, and the failures that are reported."""

from itertools import count

import pytest
from rdzv_protocol.errors import Forbidden, ServerUnavailable, TlsRequired, Unauthorized

from node_agent import words
from node_agent.kernel.core.backoff import CUT_S, FIRST_S, HANDOVER_S, LONGEST_S, Retry, Unreachable, delay

REFUSED = Unreachable("connect", "10.0.0.1: Connection refused")
CLOSED = Unreachable("HTTP", words.connection.CLOSED)
KEEPS_OUT = [Unauthorized("no token"), Forbidden("not this run"), TlsRequired("TLS")]


class At:
    """A moment that comes, or has come."""

    def __init__(self, has_come: bool) -> None:
        self.has_come = has_come

    def is_set(self) -> bool:
        return self.has_come


def fail(retry: Retry, *errors: Exception, now: float = 0.0, tried_for_s: float = 0.0):
    """Return the pause after the last of these consecutive failures."""
    return [retry.failed(error, now, tried_for_s, 1.0) for error in errors][-1]


def test_retries_back_off_and_agents_that_lost_the_same_server_retry_at_different_times():
    delays = [delay(attempt, 1.0) for attempt in range(1, 12)]
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (FIRST_S, LONGEST_S)
    assert (delay(1, 0.0), delay(10_000, 0.0)) == (FIRST_S / 2, LONGEST_S / 2)


def test_tries_come_soon_again_in_the_next_outage():
    retry = Retry()
    assert [fail(retry, REFUSED).delay_s for _ in range(3)] == [delay(attempt, 1.0) for attempt in (1, 2, 3)]
    retry.answered()
    assert fail(retry, REFUSED).delay_s == FIRST_S


def test_a_connection_that_lasted_is_reopened_at_once():
    retry = Retry()
    fail(retry, *[REFUSED] * 9)
    assert fail(retry, CLOSED, tried_for_s=LONGEST_S + 0.1).delay_s == FIRST_S


def test_each_cause_is_news_once_an_outage():
    retry = Retry()
    news = [fail(retry, error).failure for error in (REFUSED, REFUSED, CLOSED, REFUSED, CLOSED)]
    assert news == [REFUSED, None, CLOSED, None, None]
    retry.answered()
    assert fail(retry, REFUSED).failure is REFUSED


@pytest.mark.parametrize("refusal", KEEPS_OUT)
def test_a_rejected_agent_is_answered_at_once_unless_it_was_a_member(refusal):
    """An agent that never joined is refused because of wrong tokens or certificates, which a user must fix."""
    with pytest.raises(type(refusal)):
        fail(Retry(), refusal)
    assert fail(Retry(has_joined=True), refusal).failure is refusal
    retry = Retry()
    retry.answered()
    assert fail(retry, refusal).failure is refusal


def test_another_server_is_tried_at_once_without_a_log_line():
    pause = fail(Retry(), Unreachable("leader", words.connection.no_longer_leads("a:1"), At(True)))
    assert (pause.delay_s, pause.failure) == (0.0, None)


def test_a_slow_handover_is_logged_with_its_first_cause():
    retry, nobody = Retry(), At(False)
    first, later = Unreachable("HTTP", "closed", nobody), Unreachable("connect", "refused", nobody)
    assert fail(retry, first, now=10.0).failure is None
    assert fail(retry, later, now=10.0 + HANDOVER_S).failure is first
    times = (11.0 + number for number in count())
    assert [fail(retry, later, now=next(times)).failure for _ in range(2)] == [later, None]


def test_a_new_leader_is_not_logged_if_the_outage_was_logged():
    retry = Retry()
    fail(retry, REFUSED)
    assert fail(retry, Unreachable("leader", "ask b")).failure is None


def test_an_unavailable_server_is_tried_again():
    error = ServerUnavailable("starting")
    assert fail(Retry(), error).failure is error


CUT = Unreachable("HTTP", words.connection.CLOSED, is_cut=True)


def cut(retry: Retry, error: Exception = CUT, open_s: float = CUT_S):
    return retry.failed(error, 10.0, open_s, 1.0, was_held=True)


def test_a_cut_poll_that_is_answered_at_the_next_try_is_not_a_failure():
    retry = Retry()
    pause = cut(retry, open_s=2.0)
    assert (pause.delay_s, pause.failure) == (FIRST_S, None)
    found = retry.answered()
    assert found is not None and (found.open_s, found.error) == (2.0, CUT)
    assert retry.answered() is None


def test_a_poll_that_was_cut_and_is_not_answered_at_the_next_try_is_the_first_cause_of_an_outage():
    retry = Retry()
    cut(retry)
    assert fail(retry, REFUSED).failure is CUT
    assert fail(retry, REFUSED).failure is REFUSED
    assert retry.answered() is None


@pytest.mark.parametrize(("error", "open_s"), [(CLOSED, 2.0), (CUT, CUT_S / 2), (ServerUnavailable("stops"), 2.0)])
def test_other_failures_of_a_held_poll_are_reported_at_once(error, open_s):
    retry = Retry()
    assert cut(retry, error, open_s).failure is error
    assert retry.answered() is None


def test_a_request_that_is_not_held_is_not_cut_by_an_idle_time_out():
    assert fail(Retry(), CUT, tried_for_s=2.0).failure is CUT
