"""Child processes: their end, also if one does not end."""

import os
import signal

import pytest

from node_agent import words
from node_agent.kernel.processes import process
from node_agent.kernel.processes.process import DEVNULL, CommandProcess, given_up, outlived_kill, own_children, state
from tests.support.message_search import has_message, pattern


@pytest.fixture
def child() -> CommandProcess:
    return CommandProcess(("sleep", "1000"), os.environ, DEVNULL, DEVNULL)


def test_a_child_is_killed_and_reaped(child: CommandProcess) -> None:
    assert child.end(10.0) == -signal.SIGKILL
    assert state(child.pid) == "" and child.pid not in own_children


def test_a_child_whose_cpus_are_gone_is_not_started_and_the_reason_is_reported() -> None:
    with pytest.raises(OSError, match=pattern(words.workers.no_cpu_left, cpus=[4095])):
        CommandProcess(("sleep", "1000"), os.environ, DEVNULL, DEVNULL, cpus=[4095])


def test_a_child_that_does_not_go_in_time_is_given_up(child: CommandProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "signal_group", lambda pid, signum: None)
    assert child.end(0.0) == -signal.SIGKILL
    assert child.pid in outlived_kill
    assert has_message(given_up(child.pid), words.workers.outlives_kill, pid=child.pid)  # in any state
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    outlived_kill.remove(child.pid)
    own_children.remove(child.pid)
    assert given_up(child.pid) == words.workers.cannot_kill(child.pid)
