"""An exit status in words."""

import signal

import pytest

from node_agent.core.evidence import cause_of

NAMES = {number.value: number.name for number in signal.Signals}


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (1, "exit code 1"),
        (127, "exit code 127"),
        (255, "exit code 255"),
        (-9, "signal 9 (SIGKILL): killed from outside, often for lack of memory"),
        (-11, "signal 11 (SIGSEGV): segmentation fault"),
        (-7, "signal 7 (SIGBUS): bus error, often /dev/shm is full"),
        (-6, "signal 6 (SIGABRT): aborted"),
        (-15, "signal 15 (SIGTERM)"),
        (-35, "signal 35 (unknown)"),
    ],
)
def test_an_exit_status_in_words(exit_code, words):
    assert cause_of(exit_code, NAMES) == words
