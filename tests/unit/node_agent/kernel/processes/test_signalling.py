"""Which processes get a stop signal at once: real programs, and simulated /proc entries."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from node_agent.kernel.processes import signalling
from node_agent.kernel.processes.orphans_helper import Process

WAITS = "print('ready', flush=True); signal.pause()"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("signum", "command", "is_first"),
    [
        (signal.SIGTERM, f"signal.signal(signal.SIGTERM, print); {WAITS}", True),
        (signal.SIGTERM, f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); {WAITS}", True),
        (signal.SIGTERM, f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}", False),
        (signal.SIGTERM, WAITS, False),
        (signal.SIGUSR1, f"signal.signal(signal.SIGTERM, print); {WAITS}", False),
        (signal.SIGTERM, ("sh", "-c", "trap 'exit' TERM; echo ready; read -r word"), False),
    ],
    ids=["handles", "waits for it", "ignores", "does nothing", "handles another", "a shell"],
)
def test_a_python_program_that_handles_the_signal_gets_it_first(
    signum: int, command: str | tuple[str, ...], is_first: bool, started: list[subprocess.Popen[bytes]]
) -> None:
    argv = command if isinstance(command, tuple) else (sys.executable, "-c", f"import signal; {command}")
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    assert signalling.is_signalled_first(process.pid, signum) == is_first


@pytest.mark.parametrize("handles", ["signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); ", ""])
def test_a_stopped_worker_is_continued_so_that_it_can_save(
    handles: str, started: list[subprocess.Popen[bytes]]
) -> None:
    command = f"import os, signal, sys; {handles}os.kill(os.getpid(), signal.SIGSTOP)"
    worker = subprocess.Popen((sys.executable, "-c", command), start_new_session=True)
    started.append(worker)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    signalling.SignalledProcesses().signal(worker.pid, signal.SIGTERM, ())
    assert worker.wait(60) == (3 if handles else -signal.SIGTERM)


@pytest.mark.parametrize(
    ("command", "handlers"),
    [
        (f"signal.signal(signal.SIGUSR2, print); {WAITS}", "itself"),
        (WAITS, "none"),
        (
            ("sh", "-c", f'{sys.executable} -c "import signal; signal.signal(signal.SIGUSR2, print); {WAITS}"; :'),
            "inside",
        ),
        (("sh", "-c", f'{sys.executable} -c "import signal; {WAITS}"; :'), "none"),
        (("bash", "-c", "trap : USR2; echo ready; read -r word"), "itself"),
    ],
    ids=[
        "handles",
        "does nothing",
        "a shell around one that handles",
        "a shell around another",
        "a shell that handles",
    ],
)
def test_the_handlers_of_a_signal_are_the_worker_or_the_programs_in_its_wrapper(
    command: str | tuple[str, ...], handlers: str, started: list[subprocess.Popen[bytes]]
) -> None:
    argv = command if isinstance(command, tuple) else (sys.executable, "-c", f"import signal; {command}")
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    inside = list(map(int, subprocess.run(("pgrep", "-P", str(process.pid)), capture_output=True).stdout.split()))
    try:
        expected = {"itself": [process.pid], "inside": inside, "none": []}[handlers]
        assert signalling.handlers(process.pid, signal.SIGUSR2) == expected
    finally:
        for pid in inside:
            os.kill(pid, signal.SIGKILL)


BLOCKS_ALL = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"


@pytest.mark.parametrize(
    ("does", "expected"),
    [
        (BLOCKS_ALL, False),
        (f"signal.signal(signal.SIGUSR2, print); {BLOCKS_ALL}", True),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])", True),
    ],
    ids=["blocks all signals", "does so with a handler", "blocks this one"],
)
def test_a_worker_that_blocks_all_signals_handles_one_only_if_it_has_a_handler(
    does: str, expected: bool, started: list[subprocess.Popen[bytes]]
) -> None:
    """A shell or Python blocks all signals for a moment when it starts a program. The signal would kill it then."""
    process = subprocess.Popen((sys.executable, "-c", f"import signal; {does}; {WAITS}"), stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    assert signalling.handlers(process.pid, signal.SIGUSR2) == [process.pid] * expected


def test_a_shells_child_that_has_not_executed_its_program_yet_handles_nothing(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still has the shell's handlers, and blocks all signals."""
    command = f"import signal; signal.signal(signal.SIGUSR2, print); {BLOCKS_ALL}; {WAITS}"
    child = subprocess.Popen((sys.executable, "-c", command), stdout=subprocess.PIPE)
    shell = subprocess.Popen(("sh", "-c", "echo ready; read -r word"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    started += [child, shell]
    assert child.stdout and child.stdout.readline() == b"ready\n"
    assert shell.stdout and shell.stdout.readline() == b"ready\n"
    monkeypatch.setattr(signalling, "main_children", lambda pid: [child.pid])
    assert signalling.handlers(shell.pid, signal.SIGUSR2) == []


def test_a_process_that_has_ended_is_not_signalled_first() -> None:
    process = subprocess.Popen(("true",))
    process.wait()
    assert not signalling.is_signalled_first(process.pid, signal.SIGTERM)


def family_of(parents: dict[int, int]) -> dict[int, Process]:
    return {pid: Process(parent, group=1, session=1, began=0) for pid, parent in parents.items()}


@pytest.mark.parametrize(
    ("signum", "later"),
    [(signal.SIGTERM, {4, 5, 6}), (signal.SIGUSR1, {4, 5, 6}), (signal.SIGINT, set()), (signal.SIGKILL, set())],
)
def test_children_of_such_a_program_get_the_signal_later(
    signum: int, later: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell (1) runs another one (2) and a program (3) with its own processes."""
    monkeypatch.setattr(signalling, "is_signalled_first", lambda pid, signum: pid in (3, 5))
    found = family_of({1: os.getpid(), 2: 1, 3: 1, 4: 3, 5: 3, 6: 5})
    assert signalling.SignalledProcesses().held(found, signum) == later


@pytest.mark.parametrize(
    ("readers", "later"), [({}, set()), ({4: 3}, {4}), ({4: 3, 5: 4}, {4, 5}), ({3: 2}, set()), ({2: 1, 4: 2}, set())]
)
def test_readers_of_its_output_get_the_signal_later_even_after_its_end(
    readers: dict[int, int], later: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell (1) runs a program (3) and other processes. `readers`: whose output each of them reads."""
    pipes = {(reader, 0): (1, of) for reader, of in readers.items()} | {(pid, 1): (1, pid) for pid in range(1, 6)}
    monkeypatch.setattr(signalling, "_pipe", lambda pid, number: pipes.get((pid, number)))
    monkeypatch.setattr(signalling, "is_signalled_first", lambda pid, signum: pid == 3)
    sent, found = signalling.SignalledProcesses(), family_of({1: os.getpid(), 2: 1, 3: 1, 4: 1, 5: 1})
    assert sent.held(found, signal.SIGTERM) == later and not sent.idle_readers(found)
    del found[3]
    assert sent.held(found, signal.SIGTERM) == later
    assert sent.idle_readers(found) == {reader for reader in later if readers[reader] == 3}
    assert sent.held(found, signal.SIGKILL) == set()


@pytest.mark.parametrize(("grace_s", "after_s"), [(30.0, 27.0), (10.0, 9.0), (120.0, 117.0), (0.0, 0.0)])
def test_the_remaining_processes_get_the_signal_in_the_last_part_of_the_grace(grace_s: float, after_s: float) -> None:
    assert signalling.remaining_signalled_after_s(grace_s) == after_s
