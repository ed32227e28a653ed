"""A file that does not answer while a program starts."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from rdzv_protocol import hung_disks
from rdzv_protocol.words import disks

PATIENCE_S = 30.0
T = TypeVar("T")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look as soon as the test says so: after the program waits."""
    monkeypatch.setattr(hung_disks, "LOOK_S", 0.05)
    monkeypatch.setattr(hung_disks, "TOLD_AFTER_S", 0.0)
    yield
    hung_disks.end()


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A pipe without a writer. Afterwards a writer comes and goes, so that nothing waits for it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    yield path
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def with_patience(holds: Callable[[], T]) -> T:
    """Poll until the result is true, and return it. Fail if it never is."""
    until = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.001)
    return found


def waits(call: Callable[[], object]) -> threading.Thread:
    """Make a call in a thread, and return when it waits in a system call about a file."""
    thread = begun(call)
    with_patience(lambda: hung_disks._file(syscall(thread)))
    return thread


def begun(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def syscall(thread: threading.Thread) -> str:
    return Path(f"/proc/self/task/{thread.native_id}/syscall").read_text()


def next_line(capfd: pytest.CaptureFixture[str]) -> str:
    """Wait for a line on stderr, and return it."""
    return with_patience(lambda: str(capfd.readouterr().err))


def test_a_file_that_cannot_be_opened_is_named(pipe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    thread = waits(pipe.read_text)
    hung_disks.begin("node-agent", lambda: ["--log-dir=/var"])
    assert next_line(capfd) == f"node-agent: {disks.hang([str(pipe)])}\n"
    end(thread, pipe)


def test_a_file_that_cannot_be_read_is_named(pipe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reader = os.open(pipe, os.O_RDWR)
    thread = waits(lambda: os.read(reader, 1))
    hung_disks.begin("node-agent", list)
    assert next_line(capfd) == f"node-agent: {disks.hang([str(pipe)])}\n"
    os.write(reader, b"x")
    thread.join(PATIENCE_S)
    os.close(reader)


def test_the_line_has_the_format_that_the_program_asks_for(pipe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    thread = waits(pipe.read_text)
    hung_disks.begin("rdzv-server", lambda: ["--log-format=json", "--token-file", str(pipe)])
    assert '"level":"WARNING","program":"rdzv-server"' in next_line(capfd)
    end(thread, pipe)


def end(thread: threading.Thread, pipe: Path) -> None:
    os.close(os.open(pipe, os.O_WRONLY))
    thread.join(PATIENCE_S)


def test_a_start_in_time_writes_nothing(
    pipe: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hung_disks, "TOLD_AFTER_S", PATIENCE_S)
    thread = waits(pipe.read_text)
    before = threads()
    hung_disks.begin("node-agent", list)
    (watch,) = threads() - before
    hung_disks.end()
    with_patience(lambda: watch not in threads())
    assert capfd.readouterr().err == ""
    end(thread, pipe)


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_only_files_are_named() -> None:
    """Locks, sleeps, sockets, and the streams that the program has from its user."""
    left, right = os.pipe()
    for call in (
        "running",
        "-1 0x7ffd 0x7f00",
        "",
        "0 0x0 0x7ffd 0x1 0x0",
        f"0 {left:#x} 0x7ffd 0x1",
        "202 0x10000 0x0",
    ):
        assert hung_disks._file(call) == ""
    before = set(hung_disks._calls())
    locks, pair = [threading.Lock() for _ in range(2)], socket.socketpair()
    for lock in locks:
        lock.acquire()
    over = threading.Event()
    calls = [*(lock.acquire for lock in locks), partial(over.wait, PATIENCE_S), partial(pair[0].recv, 1)]
    waiting = [begun(call) for call in calls]
    for thread in waiting:
        with_patience(lambda thread=thread: syscall(thread).split()[0].isdigit())
    assert hung_disks._files(set(hung_disks._calls()) - before) == []
    for lock in locks:
        lock.release()
    over.set()
    pair[1].send(b"x")
    for thread in waiting:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    for each in pair:
        each.close()
    os.close(left)
    os.close(right)
