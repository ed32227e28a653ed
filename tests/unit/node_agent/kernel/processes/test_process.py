"""Child processes: their end, also if one does not end."""

import os
import signal
import subprocess
import sys

import pytest

from node_agent import words
from node_agent.kernel.processes import process
from node_agent.kernel.processes.orphans_helper import LIMIT, MARK, limit_for
from node_agent.kernel.processes.process import (
    DEVNULL,
    CommandProcess,
    given_up,
    outlived_kill,
    own_children,
    reaches_cpu_limit,
    state,
)
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


def test_a_child_that_does_not_end_in_time_is_given_up(child: CommandProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "signal_group", lambda pid, signum: None)
    assert child.end(0.0) == -signal.SIGKILL
    assert child.pid in outlived_kill
    assert has_message(given_up(child.pid), words.workers.outlives_kill, pid=child.pid)  # in any state
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    outlived_kill.remove(child.pid)
    own_children.remove(child.pid)
    assert given_up(child.pid) == words.workers.cannot_kill(child.pid)


SHOWS_LIMIT = ("sh", "-c", "exec env -i setsid grep '^Max file locks' /proc/self/limits")


def limits(mark: str, before: str = "") -> list[str]:
    """Return the soft and the hard limit by which descendants of a child without an environment are known.

    `before`: statement of the agent's process before it starts the child.
    """
    script = (
        "import os, resource",
        "from node_agent.kernel.processes.process import CommandProcess, DEVNULL",
        before,
        f"child = CommandProcess({SHOWS_LIMIT!r}, {{**os.environ, {MARK!r}: {mark!r}}}, 1, 2)",
        "os.waitpid(child.pid, 0)",
    )
    command = (sys.executable, "-c", "\n".join(script))
    return subprocess.run(command, check=True, timeout=60, text=True, stdout=subprocess.PIPE).stdout.split()[3:5]


def test_descendants_of_a_child_are_known_by_a_limit_without_an_environment() -> None:
    entries = [f"{MARK}={mark}".encode() for mark in ("1-2-a1", "1-2-a2")]
    assert limit_for(entries[0]) != limit_for(entries[1])
    assert limits("1-2-a1") == [str(limit_for(entries[0])), "unlimited"]
    nested = f"resource.setrlimit({LIMIT}, ({limit_for(entries[0])}, -1))"
    assert limits("1-2-a2", nested) == [str(limit_for(entries[1])), "unlimited"], "a worker may be an agent"


@pytest.mark.parametrize(("soft", "hard"), [(7, -1), (7, 7)])
def test_a_limit_that_is_in_use_stays(soft: int, hard: int) -> None:
    shown = ["unlimited" if value < 0 else str(value) for value in (soft, hard)]
    assert limits("1-2-a1", f"resource.setrlimit({LIMIT}, ({soft}, {hard}))") == shown


def test_without_a_mark_a_child_has_no_limit() -> None:
    assert limits("") == ["unlimited", "unlimited"]


HOUR_S = 3600


@pytest.mark.parametrize(
    ("used_s", "limit_s", "is_reached"),
    [
        (0.6, 1, False),
        (0.9, 1, True),
        (3.4, 4, False),
        (3.8, 4, True),
        (4.1, 4, True),
        (23.5 * HOUR_S, 24 * HOUR_S, False),
        (23.9 * HOUR_S, 24 * HOUR_S, True),
    ],
)
def test_a_limit_on_processor_time_is_reached_only_within_the_error_of_its_count(
    used_s: float, limit_s: int, is_reached: bool
) -> None:
    assert reaches_cpu_limit(used_s, limit_s) == is_reached
