"""Several scenarios at once, each in a process of its own."""

import os
import signal
from functools import partial

import pytest

from benchmarks import timers
from benchmarks.stage import Broken


def kill() -> list[float]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def break_down() -> list[float]:
    raise Broken("the agents were not back")


def test_each_call_has_its_answer_though_more_calls_wait_than_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "CALLERS", 2)
    calls = [break_down, *(partial(list, [float(number)]) for number in range(4))]
    assert timers.at_once(calls) == [([], "the agents were not back"), *(([float(n)], "") for n in range(4))]


def test_a_process_without_an_answer_ends_the_others() -> None:
    blocked, _holds_it_open = os.pipe()
    with pytest.raises(Broken, match="ended with -9"):
        timers.at_once([lambda: [float(len(os.read(blocked, 1)))], kill])
