"""Signals that come directly and are forwarded."""

from itertools import count

import pytest

from node_agent.kernel.leave_signals import ONE_REQUEST_S, LeaveSignals


def told(*came: tuple[str, bool], apart_s: float = ONE_REQUEST_S) -> list[str]:
    """Return the names that are passed on if these signals come: their names, and whether they are forwarded."""
    heard: list[str] = []
    signals = LeaveSignals(clock=count(0.0, apart_s).__next__)
    signals.hand_to(heard.append)
    for name, is_forwarded in came:
        signals.come(name, is_forwarded=is_forwarded)
    return heard


@pytest.mark.parametrize("is_forwarded", [False, True])
def test_a_signal_to_every_process_is_one_signal_in_either_order(is_forwarded):
    assert told(("SIGTERM", is_forwarded), ("SIGTERM", not is_forwarded)) == ["SIGTERM"]


@pytest.mark.parametrize("is_forwarded", [False, True])
def test_a_second_signal_by_the_same_way_is_another_one(is_forwarded):
    assert told(*[("SIGTERM", is_forwarded)] * 3) == ["SIGTERM"] * 3


def test_signals_of_other_names_are_other_signals():
    assert told(("SIGTERM", False), ("SIGINT", True)) == ["SIGTERM", "SIGINT"]


def test_two_signals_to_every_process_are_two_signals():
    assert told(*(("SIGTERM", way) for way in (False, False, True, True))) == ["SIGTERM"] * 2


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("is_forwarded", [False, True])
def test_a_signal_that_a_wrapper_sends_at_once_is_the_same_request(name, is_forwarded):
    """It comes with the one to the wrapper's group, and a supervisor may forward both."""
    came = [("SIGTERM", False), ("SIGTERM", True), (name, is_forwarded)]
    assert told(*came, apart_s=ONE_REQUEST_S / 4) == ["SIGTERM"]


def test_signals_that_come_before_the_agent_is_ready_wait_for_it():
    heard: list[str] = []
    signals = LeaveSignals(clock=count(0.0, ONE_REQUEST_S).__next__)
    for name in ("SIGINT", "SIGTERM"):
        signals.come(name)
    signals.come("SIGINT", is_forwarded=True)
    signals.hand_to(heard.append)
    assert heard == ["SIGINT", "SIGTERM"]
    signals.come("SIGTERM")
    assert heard == ["SIGINT", "SIGTERM", "SIGTERM"]
