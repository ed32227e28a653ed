"""Files that workers write to directly: never overwritten, read soon and to the end."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent import words
from node_agent.kernel.output.log_files import LogFile, LogFiles, interval_s
from node_agent.kernel.output.sinks import TAIL_LINES, AsItComes
from tests.support.console import FakeConsole
from tests.support.threads import refuse_threads

OUT = 1


class Log:
    """A log file, its stream, and a worker that writes to it."""

    def __init__(self, path: Path, console: FakeConsole, files: LogFiles, shown: bool) -> None:
        self.path = path
        self.stream = LogFile(str(path), lambda: [AsItComes(console, OUT, self)] if shown else [], files, shown=shown)
        self._worker = os.dup(self.stream.writable())

    def write(self, data: bytes) -> None:
        assert os.write(self._worker, data) == len(data)

    def close(self) -> None:
        self.stream.finish()
        if self._worker >= 0:
            os.close(self._worker)
            self._worker = -1


OUTLOOK = "all is well"


def _trouble(path: str | Path, problem: str, *, loses_lines: bool = False) -> str:
    return words.output.file_trouble(str(path), problem, OUTLOOK, loses_lines)


class Bench:
    """Log files of a test and the console that shows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.console = FakeConsole()
        self.files = LogFiles(self.console, outlook=OUTLOOK)
        self._logs: list[Log] = []

    def open(self, name: str | Path = "log", *, shown: bool = True) -> Log:
        """Return a log whose worker is about to start."""
        self._logs.append(Log(self.folder / name, self.console, self.files, shown))
        return self._logs[-1]

    def log(self, name: str = "log") -> Log:
        """Return a log whose worker runs."""
        log = self.open(name)
        log.stream.started()
        return log

    async def shows(self, text: bytes) -> None:
        await self.console.until(lambda: self.console.text() == text)

    def run(self, program: str, name: str | Path = "log") -> Log:
        """Return a log to which this program has written, without showing it."""
        log = self.open(name, shown=False)
        subprocess.run([sys.executable, "-c", program], stdout=log.stream.writable())
        log.stream.started()
        log.close()
        return log

    def close(self) -> None:
        for log in self._logs:
            log.close()
        self.files.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    before = len(os.listdir("/proc/self/fd"))
    bench = Bench(tmp_path)
    yield bench
    bench.close()
    assert len(os.listdir("/proc/self/fd")) == before, "everything is closed"
    assert "log files" not in [thread.name for thread in threading.enumerate()], "and no thread reads"


async def test_without_a_thread_the_files_are_read_by_the_event_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of processes, which the workers may have reached, the run continues."""
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        log = bench.log()
        log.write(b"one\n")
        await bench.shows(b"one\n")
    log.write(b"two\n")
    await bench.shows(b"one\ntwo\n")


# Output of a worker.


async def test_the_worker_writes_to_the_file_and_the_report_reads_its_end(bench: Bench) -> None:
    log = bench.run("for n in range(1000): print(n)\nprint('last words', end='')")
    assert log.path.read_bytes().endswith(b"998\n999\nlast words")
    assert log.stream.tail() == (*map(str, range(1001 - TAIL_LINES, 1000)), "last words")
    assert bench.console.lines == []


@pytest.mark.parametrize("message", ["'y' * 200_000", r"'\n'.join(f'[rank1]: line {n}' for n in range(9_000))"])
async def test_the_report_has_the_traceback_before_a_long_message(bench: Bench, message: str) -> None:
    header = "[rank1]: Traceback (most recent call last):"
    log = bench.run(f"print('step\\n' * 9_000 + {header!r} + '\\n[rank1]: ValueError: ' + {message})")
    assert header in log.stream.tail()


async def test_existing_output_is_not_overwritten_or_shown_again(bench: Bench) -> None:
    (bench.folder / "log").write_text("of another agent\n")
    log = bench.log()
    log.write(b"mine\n")
    await bench.shows(b"mine\n")
    assert log.path.read_text() == "of another agent\nmine\n"


async def test_a_named_pipe_is_written_to_if_it_has_a_reader(bench: Bench) -> None:
    """A plug-in may name one."""
    pipe = bench.folder / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device or address"):
        bench.open("pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = bench.open("pipe")
    assert os.get_blocking(log.stream.writable()), "the worker waits for its reader"
    log.write(b"hello\n")
    log.close()
    assert os.read(reader, 100) == b"hello\n"
    os.close(reader)


async def test_a_device_is_written_to_and_not_read(bench: Bench) -> None:
    assert bench.run("print('gone')", "/dev/null").stream.tail() == ()
    assert bench.console.lines == []


async def test_a_file_that_cannot_be_made_leaves_no_descriptor_open(bench: Bench) -> None:
    with pytest.raises(OSError, match="No such file"):
        bench.open("absent/log")


# The console's part of it.


async def test_written_output_is_shown(bench: Bench) -> None:
    log = bench.open()
    log.write(b"before the first look\n")
    log.stream.started()
    await bench.shows(b"before the first look\n")
    for number in range(5):
        log.write(b"line %d\n" % number)
        await bench.console.until(lambda number=number: bench.console.text().endswith(b"line %d\n" % number))


async def test_many_files_are_followed_at_once_and_one_may_be_followed_twice(bench: Bench) -> None:
    logs = [bench.log(f"{number}") for number in range(40)]
    bench.log("39")
    for number, log in enumerate(logs):
        log.write(b"%d\n" % number)
    await bench.console.until(lambda: len(bench.console.text().split()) == 41)
    assert sorted(map(int, bench.console.text().split())) == [*range(40), 39]


async def test_a_full_console_holds_up_the_reader_and_not_the_writer(bench: Bench) -> None:
    log = bench.log()
    bench.console.is_full = True
    log.write(b"x" * 5_000_000)
    bench.files.look()
    assert bench.console.text() == b""
    bench.console.is_full = False
    await bench.shows(b"x" * 5_000_000)


async def test_a_worker_that_ends_while_the_console_is_full_is_shown_to_its_end(bench: Bench) -> None:
    log = bench.log()
    bench.console.is_full = True
    log.write(b"x" * 1_000_000)
    log.stream.finish()
    assert log.stream.behind == 1_000_000
    log.write(b"a child that it left behind\n")
    bench.console.is_full = False
    assert await bench.files.drain() == 0
    assert bench.console.text() == b"x" * 1_000_000


async def test_the_wait_of_an_agent_for_a_blocked_console_is_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node_agent.kernel.output.log_files.PATIENCE_S", 0.01)
    log = bench.log()
    bench.console.is_full = True
    log.write(b"x" * 1_000)
    log.stream.finish()
    assert await bench.files.drain() == 1_000


@pytest.mark.parametrize(("silence_s", "wait_s"), [(0.0, 0.02), (0.4, 0.1), (4.0, 1.0), (3600.0, 1.5)])
def test_the_longer_the_silence_the_more_seldom_is_a_file_looked_at(silence_s: float, wait_s: float) -> None:
    """At last, files are looked at less than once a second. Output is late by a small part of the silence before it."""
    assert interval_s(silence_s) == pytest.approx(wait_s)


async def test_without_followed_files_nothing_is_read(bench: Bench) -> None:
    log = bench.log()
    log.write(b"one\n")
    log.stream.finish()
    bench.files.look()
    assert bench.files._timer
    bench.files._timer.cancel()
    bench.files.look()
    assert bench.files._timer.cancelled(), "not set again"


# Trouble.


async def test_a_truncated_file_is_followed_from_its_new_start(bench: Bench) -> None:
    log = bench.log()
    log.write(b"a long line before it was emptied\n")
    await bench.console.until(lambda: bench.console.text().endswith(b"emptied\n"))
    os.truncate(log.path, 0)
    log.write(b"after\n")
    await bench.console.until(lambda: bench.console.text().endswith(b"\nafter\n"))


async def test_a_moved_or_removed_file_is_still_followed_and_reported(bench: Bench) -> None:
    log, moved = bench.log(), bench.folder / "moved"
    log.path.rename(moved)
    log.write(b"moved\n")
    await bench.shows(b"moved\n")
    moved.unlink()
    log.write(b"removed\n")
    await bench.shows(b"moved\nremoved\n")
    assert bench.console.lines == []
    log.close()
    assert log.stream.tail() == ("moved", "removed")
    assert bench.console.lines == [_trouble(log.path, words.output.REMOVED)]


async def test_an_unreadable_file_ends_only_its_own_reader(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = bench.log("a"), bench.log("b")

    def fail(file: int, count: int, offset: int) -> bytes:
        if os.path.samestat(os.fstat(file), os.stat(log.path)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return pread(file, count, offset)

    pread = os.pread
    monkeypatch.setattr(os, "pread", fail)
    log.write(b"lost\n")
    other.write(b"shown\n")
    await bench.console.until(lambda: bench.console.text() == b"shown\n" and bench.console.lines)
    assert bench.console.lines == [_trouble(log.path, "Stale file handle")]


class HangingDisk:
    """Makes reads of files hang in every thread but the event loop's, until `answers` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hangs, self.answers = asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()
        self._pread = os.pread
        monkeypatch.setattr(os, "pread", self._read)

    def _read(self, file: int, count: int, offset: int) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            self._loop.call_soon_threadsafe(self.hangs.set)
            self.answers.wait()
        return self._pread(file, count, offset)


async def test_a_hanging_disk_delays_shown_output_but_not_the_agent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, disk = bench.log(), HangingDisk(monkeypatch)
    log.write(b"written meanwhile\n")
    await disk.hangs.wait()
    bench.files.look()
    assert bench.console.text() == b""
    assert bench.files._asked.empty(), "the thread reads already"
    disk.answers.set()
    await bench.shows(b"written meanwhile\n")


async def test_the_last_output_of_a_worker_is_shown_once_if_the_disk_hung(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other, disk = bench.log("a"), bench.log("b"), HangingDisk(monkeypatch)
    log.write(b"last words\n")
    await disk.hangs.wait()
    log.close()
    assert bench.console.text() == b"last words\n"
    other.write(b"another worker\n")
    disk.answers.set()
    await bench.shows(b"last words\nanother worker\n")


async def test_an_agent_ends_while_the_disk_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.kernel.output.log_files.PATIENCE_S", 0.01)
    log, disk = bench.log(), HangingDisk(monkeypatch)
    bench.console.is_full = True
    log.write(b"lost\n")
    log.stream.finish()
    bench.console.is_full = False
    assert await bench.files.drain() == 5
    bench.files.close()
    disk.answers.set()


async def test_each_kind_of_error_is_logged_once(bench: Bench) -> None:
    for path in "ab":
        bench.files.report(path, OSError(errno.ENOSPC, "No space left on device"))
    bench.files.report("b", "it was removed")
    assert bench.console.lines == [
        _trouble("a", "No space left on device", loses_lines=True),
        _trouble("b", "it was removed"),
    ]
