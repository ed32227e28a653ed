"""Files that somebody writes to are followed: soon, and to the end."""

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent.output.file_tail import FileTails, interval_s
from node_agent.output.lines import AsItComes
from node_agent.output.pipe import READ_BYTES
from tests.support.console import FakeConsole

OUT = 1


class Log:
    """A log file with a worker that writes to it and a follower that shows it."""

    def __init__(self, path: Path, sheet: FakeConsole, tails: FileTails, before: bytes = b"") -> None:
        self.path = path
        self.worker = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.write(before)
        self.tail = tails.open(os.open(path, os.O_RDONLY), [AsItComes(sheet, OUT, self)], shown=True)

    def write(self, data: bytes) -> None:
        assert os.write(self.worker, data) == len(data)

    def close(self) -> None:
        self.tail.finish()
        os.close(self.worker)


class Bench:
    """What the followers of a test share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sheet = FakeConsole()
        self.troubles: list[OSError] = []
        self.tails = FileTails(self.sheet, self.troubles.append)  # type: ignore[arg-type]
        self.logs: list[Log] = []

    def log(self, name: str = "stdout.log", before: bytes = b"") -> Log:
        log = Log(self.folder / name, self.sheet, self.tails, before)
        self.logs.append(log)
        log.tail.start()
        return log

    def let_the_console_drain(self) -> None:
        self.sheet.is_full = False
        resumed, self.sheet.paused[:] = list(self.sheet.paused), []
        for resume in resumed:
            resume()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    before = len(os.listdir("/proc/self/fd"))
    bench = Bench(tmp_path)
    yield bench
    for log in bench.logs:
        log.close()
    bench.tails.close()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_what_is_written_is_shown(bench: Bench) -> None:
    log = bench.log()
    for number in range(5):
        log.write(b"line %d\n" % number)
        await bench.sheet.until(lambda number=number: bench.sheet.text().endswith(b"line %d\n" % number))


async def test_what_is_written_before_it_is_followed_is_shown(bench: Bench) -> None:
    """Between the worker's start and the first look."""
    log = Log(bench.folder / "log", bench.sheet, bench.tails)
    bench.logs.append(log)
    log.write(b"early\n")
    log.tail.start()
    await bench.sheet.until(lambda: bench.sheet.text() == b"early\n")


async def test_what_was_there_before_is_not_shown_again(bench: Bench) -> None:
    log = bench.log(before=b"of another agent\n")
    log.write(b"mine\n")
    await bench.sheet.until(lambda: bench.sheet.text() == b"mine\n")


async def test_the_last_words_are_shown_when_the_worker_is_gone(bench: Bench) -> None:
    log = bench.log()
    words = b"".join(b"%09d\n" % number for number in range(READ_BYTES // 4)) + b"and no newline"
    log.write(words)
    log.tail.finish()
    assert bench.sheet.text() == words


async def test_many_files_are_followed_at_once(bench: Bench) -> None:
    logs = [bench.log(f"{number}") for number in range(40)]
    for number, log in enumerate(logs):
        log.write(b"%d\n" % number)
    await bench.sheet.until(lambda: set(bench.sheet.text().split()) == {b"%d" % number for number in range(40)})


async def test_one_file_may_be_followed_twice(bench: Bench) -> None:
    logs = [bench.log(), bench.log()]
    logs[0].write(b"once\n")
    await bench.sheet.until(lambda: bench.sheet.text() == b"once\nonce\n")


async def test_a_full_console_holds_up_the_follower_and_not_the_writer(bench: Bench) -> None:
    log = bench.log()
    bench.sheet.is_full = True
    log.write(b"one\n")
    await bench.sheet.until(lambda: bench.sheet.paused)
    log.write(b"x" * 5_000_000)
    assert bench.sheet.text() == b""
    bench.let_the_console_drain()
    await bench.sheet.until(lambda: len(bench.sheet.text()) == 5_000_004)


async def test_a_worker_that_ends_while_the_console_is_full_is_shown_to_its_end(bench: Bench) -> None:
    log = bench.log()
    bench.sheet.is_full = True
    log.write(b"x" * 1_000_000)
    log.tail.finish()
    assert log.tail.behind == 1_000_000
    log.write(b"a child that it left behind\n")
    bench.let_the_console_drain()
    assert await bench.tails.drain() == 0
    assert bench.sheet.text() == b"x" * 1_000_000


async def test_an_agent_does_not_wait_for_ever_for_a_console_that_blocks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node_agent.output.file_tail.PATIENCE_S", 0.01)
    log = bench.log()
    bench.sheet.is_full = True
    log.write(b"x" * 1_000)
    log.tail.finish()
    assert await bench.tails.drain() == 1_000


async def test_a_file_that_somebody_empties_is_followed_from_its_new_beginning(bench: Bench) -> None:
    log = bench.log()
    log.write(b"a long line before it was emptied\n")
    await bench.sheet.until(lambda: bench.sheet.text().endswith(b"emptied\n"))
    os.truncate(log.path, 0)
    log.write(b"after\n")
    await bench.sheet.until(lambda: bench.sheet.text().endswith(b"\nafter\n"))


async def test_a_file_that_somebody_removes_or_moves_is_still_followed(bench: Bench) -> None:
    log = bench.log()
    os.rename(log.path, log.path.with_suffix(".old"))
    log.write(b"moved\n")
    await bench.sheet.until(lambda: bench.sheet.text() == b"moved\n")
    os.remove(log.path.with_suffix(".old"))
    log.write(b"removed\n")
    await bench.sheet.until(lambda: bench.sheet.text() == b"moved\nremoved\n")
    assert bench.troubles == []


async def test_a_file_that_cannot_be_read_any_more_ends_its_follower_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = bench.log("a"), bench.log("b")

    def fail(file: int, count: int, offset: int) -> bytes:
        if os.path.samestat(os.fstat(file), os.stat(log.path)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return pread(file, count, offset)

    pread = os.pread
    monkeypatch.setattr(os, "pread", fail)
    log.write(b"lost\n")
    other.write(b"shown\n")
    await bench.sheet.until(lambda: bench.sheet.text() == b"shown\n" and bench.troubles)
    assert [trouble.errno for trouble in bench.troubles] == [errno.ESTALE]


@pytest.mark.parametrize(("silence_s", "wait_s"), [(0.0, 0.02), (0.4, 0.1), (4.0, 1.0), (3600.0, 1.5)])
def test_the_longer_the_silence_the_more_seldom_is_a_file_looked_at(silence_s: float, wait_s: float) -> None:
    """Less than once a second in the end, and output is never late by much of the silence before it."""
    assert interval_s(silence_s) == pytest.approx(wait_s)


async def test_nothing_is_looked_at_when_nothing_is_followed(bench: Bench) -> None:
    log = bench.log()
    log.write(b"one\n")
    log.tail.finish()
    bench.tails.look()
    assert bench.tails._timer
    bench.tails._timer.cancel()
    bench.tails.look()
    assert bench.tails._timer.cancelled(), "not set again"
