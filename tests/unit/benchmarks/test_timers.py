"""Several scenarios at once, each in a process of its own."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks import timers
from benchmarks.stage import Broken


def kill() -> list[float]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def break_down() -> list[float]:
    raise Broken("the agents were not back")


def interrupt() -> list[float]:
    """Send SIGINT to the caller once it waits. Python ignores exceptions in what it calls after a fork."""
    place = Path(f"/proc/{os.getppid()}/wchan")
    for _ in range(100):  # a kernel may hide where a process waits
        if "poll" in place.read_text():
            break
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGINT)
    return block()


def block() -> list[float]:
    signal.pause()
    return []


def number(of: float) -> list[float]:
    return [of]


def test_if_more_calls_wait_than_run_each_still_gets_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "CALLERS", 2)
    calls = [kill, break_down, *(partial(number, of) for of in (0.0, 1.0, 2.0))]
    assert timers.at_once(calls) == [
        ([], "the scenario's process has ended with -9"), ([], "the agents were not back"),
        *(([of], "") for of in (0.0, 1.0, 2.0)),
    ]  # fmt: skip


def test_a_signal_at_the_start_of_a_process_is_not_for_the_callers_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        if (pid := real_fork()) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return pid

    real_fork = os.fork
    monkeypatch.setattr(os, "fork", fork)
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    try:
        assert timers.at_once([partial(number, 0.0)]) == [([], "the scenario's process has ended with 143")]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("call", "error"), [(interrupt, KeyboardInterrupt), (block, Broken)])
def test_all_processes_end_after_ctrl_c_or_at_the_limit(
    call: Callable[[], list[float]], error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "CAP_S", 30.0 if call is interrupt else 0.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(error):
            timers.at_once([call, block])
    finally:
        signal.signal(signal.SIGINT, before)
    assert multiprocessing.active_children() == []
