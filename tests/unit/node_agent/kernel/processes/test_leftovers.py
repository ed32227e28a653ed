"""Remaining processes of workers: no run waits for one of them forever."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from node_agent.kernel.processes import leftovers, signalling
from node_agent.kernel.processes.leftovers import Leftovers, SignalledProcesses, in_session
from node_agent.kernel.processes.orphans_helper import look_at
from tests.support import leaderless
from tests.support.changes import PATIENCE_S
from tests.support.process_info import until

NEVER_S = 1_000.0


@pytest.fixture
def left() -> Iterator[int]:
    """A process that a worker has left behind."""
    process = subprocess.Popen(("sleep", "1000"), start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


async def gone(left: int, within_s: float) -> None:
    """Return when the process is gone or abandoned."""
    over = asyncio.Event()
    assert Leftovers(lambda: [left], left, signal.SIGTERM, SignalledProcesses(), within_s, lambda _: over.set())
    await over.wait()


def test_a_session_is_its_leaders_until_another_process_has_its_pid(left: int) -> None:
    """Here the leader is a shell that has ended, and then one that runs."""
    shell = subprocess.Popen(("sh", "-c", "sleep 1000 & echo $!"), stdout=subprocess.PIPE, start_new_session=True)
    assert shell.stdout
    pid = int(shell.stdout.readline())
    os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert in_session(shell.pid) == [shell.pid, pid]
        assert in_session(left) == []
    finally:
        os.kill(pid, signal.SIGKILL)
        shell.communicate()


async def test_a_process_that_ends_by_the_signal_is_waited_for(left: int) -> None:
    await gone(left, 1_000.0)
    assert look_at(left) is None


@pytest.fixture
def pipeline() -> Iterator[tuple[int, int]]:
    """A program, and a reader of its output that ignores its end."""
    source, sink = os.pipe()
    with subprocess.Popen(("sleep", "1000"), stdout=sink) as writer:
        os.close(sink)
        with subprocess.Popen(("sleep", "1000"), stdin=source) as reader:
            os.close(source)
            yield writer.pid, reader.pid
            reader.kill()
        writer.kill()


async def test_a_reader_that_ignores_the_end_of_its_input_gets_the_signal_soon_after_its_writer_has_ended(
    pipeline: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = pipeline
    monkeypatch.setattr(signalling, "is_signalled_first", lambda pid, signum: pid == writer)
    monkeypatch.setattr(leftovers, "READER_S", 0.0)
    over = asyncio.Event()
    assert Leftovers(lambda: pipeline, None, signal.SIGTERM, SignalledProcesses(), NEVER_S, lambda _: over.set())
    async with asyncio.timeout(PATIENCE_S):
        await over.wait()
    assert look_at(reader) is None


@pytest.fixture
def leaderless_left() -> Iterator[subprocess.Popen[bytes]]:
    """Such a process whose main thread ends."""
    with subprocess.Popen(leaderless.COMMAND, start_new_session=True) as process:
        yield process
        process.kill()


async def test_a_process_whose_main_thread_has_ended_gets_the_signal_and_is_waited_for(
    leaderless_left: subprocess.Popen[bytes],
) -> None:
    await until(lambda: leaderless.is_leaderless(leaderless_left.pid))
    await gone(leaderless_left.pid, 1_000.0)
    assert leaderless_left.wait() == -signal.SIGTERM


async def test_a_process_that_signals_do_not_end_is_given_up(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another user, or one that sleeps in the kernel, does not keep a run from succeeding."""
    descriptors = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(leftovers, "_send", lambda descriptor, signum: None)
    monkeypatch.setattr(leftovers, "GIVEN_UP_S", 0.0)
    await gone(left, 0.0)
    assert look_at(left) is not None
    assert set(os.listdir("/proc/self/fd")) <= descriptors
