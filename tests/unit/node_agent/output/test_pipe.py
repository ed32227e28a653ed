"""A worker's output on a real pipe: read to the last byte, held back while the console is full, and remembered."""

import asyncio
import errno
import fcntl
import os
from collections.abc import Iterator

import pytest

from node_agent.output import pipe as output_module
from node_agent.output.lines import Lines
from node_agent.output.pipe import (
    ALL_PIPES_BYTES,
    PIPE_BYTES,
    TAIL_BYTES,
    TAIL_LINE_CHARACTERS,
    TAIL_LINES,
    Relay,
    Tail,
    last_lines,
    pipe_bytes,
)
from tests.support.console import FakeConsole

OUT, ERR = 1, 2


class Pipe:
    """A worker's end of a pipe whose other end a relay reads."""

    def __init__(self, sheet: FakeConsole, mark: str, target: int = OUT, pipe_bytes: int = 0) -> None:
        self.relay = Relay([Lines(mark, sheet, target), Tail()], sheet, pipe_bytes)
        self.end = os.dup(self.relay.writable())
        self.relay.started()

    def write(self, data: bytes) -> None:
        assert os.write(self.end, data) == len(data)

    def close(self) -> None:
        if self.end >= 0:
            os.close(self.end)
            self.end = -1
            self.relay.finish()


@pytest.fixture
async def sheet() -> FakeConsole:
    return FakeConsole()


@pytest.fixture
async def pipe(sheet: FakeConsole) -> Iterator[Pipe]:
    pipe = Pipe(sheet, "[trainer0]:")
    yield pipe
    pipe.close()


def finished(pipe: Pipe, data: bytes) -> tuple[str, ...]:
    """The tail of a worker that wrote this and is gone."""
    pipe.write(data)
    pipe.close()
    return pipe.relay.tail()


async def test_every_line_carries_its_workers_mark(sheet, pipe):
    pipe.write(b"one\ntwo\n")
    await sheet.until(lambda: sheet.text() == b"[trainer0]:one\n[trainer0]:two\n")


async def test_the_last_line_is_shown_also_without_a_newline(sheet, pipe):
    assert finished(pipe, b"first\nlast words") == ("first", "last words")
    assert sheet.text() == b"[trainer0]:first\n[trainer0]:last words\n"


async def test_what_a_worker_wrote_just_before_its_end_is_read_to_the_last_byte(sheet, pipe):
    words = b"".join(b"%05d\n" % number for number in range(10_000))
    pipe.write(words)
    pipe.close()
    assert sheet.text().replace(b"[trainer0]:", b"") == words


async def test_a_wide_pipe_lets_a_worker_be_ahead_and_is_read_to_the_last_byte(sheet):
    pipe = Pipe(sheet, "", pipe_bytes=PIPE_BYTES)
    words = b"x" * 99 + b"\n"
    pipe.write(words * (PIPE_BYTES // len(words)))
    pipe.close()
    assert sheet.text() == words * (PIPE_BYTES // len(words))


async def test_all_pipes_of_an_agent_leave_the_user_enough_for_others(monkeypatch):
    assert pipe_bytes(1) == pipe_bytes(8) == PIPE_BYTES
    for workers in (1, 3, 8, 9, 100, 4096):
        assert 2 * workers * pipe_bytes(workers) <= ALL_PIPES_BYTES
    assert pipe_bytes(4096) == 0, "the kernel's own size will do"


async def test_a_user_whose_pipes_have_used_up_what_he_may_have_gets_narrow_ones(sheet, monkeypatch):
    def refuse(pipe: int, command: int, size: int = 0) -> int:
        if command == fcntl.F_SETPIPE_SZ:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return 1 << 16

    monkeypatch.setattr(output_module.fcntl, "fcntl", refuse)
    pipe = Pipe(sheet, "", pipe_bytes=PIPE_BYTES)
    assert finished(pipe, b"fine\n") == ("fine",)


async def test_bytes_that_are_no_text_pass_unchanged(sheet, pipe):
    assert finished(pipe, b"\xff\xfe\x00 ok\n") == ("�� " + " ok",)
    assert sheet.text() == b"[trainer0]:\xff\xfe\x00 ok\n"


async def test_control_characters_do_nothing_in_a_report(pipe):
    assert finished(pipe, b"\x1b[31mred\x07\x1b[0m\ttab\n") == (" [31mred  [0m tab",)


async def test_a_report_takes_the_last_lines_and_their_beginnings(pipe):
    lines = [b"%d" % number for number in range(100)] + [b"y" * 5_000]
    tail = finished(pipe, b"\n".join(lines))
    assert len(tail) == TAIL_LINES
    assert tail[-2:] == ("99", "y" * TAIL_LINE_CHARACTERS)


def test_a_report_takes_the_last_lines_of_an_output_of_any_size():
    tail = Tail()
    for number in range(TAIL_BYTES):
        tail.take(b"%07d\n" % number)
    assert tail.lines() == tuple(f"{number:07d}" for number in range(TAIL_BYTES - TAIL_LINES, TAIL_BYTES))


def test_a_progress_bar_takes_one_line_of_a_report():
    redraws = b"".join(b"\r%d%%" % percent for percent in range(100))
    assert last_lines(b"begin\r\n" + redraws + b"\nTraceback\n") == ("begin", "99%", "Traceback")
    assert last_lines(b"10%\r20%\r") == ("20%",)


def test_a_report_of_nothing_has_no_lines():
    assert last_lines(b"") == Tail().lines() == ()


async def test_stderr_goes_where_stderr_goes(sheet):
    pipe = Pipe(sheet, "[0]:", ERR)
    pipe.write(b"dear me\n")
    pipe.close()
    assert sheet.chunks == [(ERR, b"[0]:dear me\n")]


async def test_lines_of_two_workers_are_never_torn(sheet):
    pipes = [Pipe(sheet, f"[{name}]:") for name in "ab"]
    for piece in range(50):
        for pipe in pipes:
            pipe.write(b"%d and " % piece)
            pipe.write(b"so on\n" if piece % 2 else b"further ")
        await asyncio.sleep(0)
    for pipe in pipes:
        pipe.close()
    for line in sheet.text().splitlines():
        assert line.count(b"]:") == 1 and line.startswith((b"[a]:", b"[b]:"))
        assert line.endswith(b"so on")


async def test_a_child_that_outlives_the_worker_and_keeps_its_pipe_holds_up_nobody(sheet, pipe):
    pipe.write(b"mine\n")
    pipe.relay.finish()
    assert sheet.text() == b"[trainer0]:mine\n"
    pipe.relay.finish()
    with pytest.raises(BrokenPipeError):
        pipe.write(b"too late\n")


async def test_a_child_that_never_stops_writing_holds_up_nobody(sheet):
    """It has the worker's pipe, and fills it faster than it is read."""
    pipe = Pipe(sheet, "")
    pipe.relay._read = lambda: 1 << 16  # type: ignore[method-assign]
    pipe.close()


async def test_a_full_console_pauses_the_worker_until_it_has_drained(sheet, pipe):
    sheet.is_full = True
    pipe.write(b"one\n")
    await sheet.until(lambda: sheet.paused)
    pipe.write(b"two\n")
    for _ in range(3):
        await asyncio.sleep(0)  # the loop looks at its pipes, and must leave this one alone
    assert sheet.text() == b"[trainer0]:one\n"
    sheet.is_full = False
    for resume in sheet.paused:
        resume()
    await sheet.until(lambda: sheet.text() == b"[trainer0]:one\n[trainer0]:two\n")


async def test_a_worker_that_ends_while_it_is_paused_loses_nothing(sheet, pipe):
    sheet.is_full = True
    pipe.write(b"one\n")
    await sheet.until(lambda: sheet.paused)
    assert finished(pipe, b"two\n") == ("one", "two")
    for resume in sheet.paused:
        resume()
    assert sheet.text() == b"[trainer0]:one\n[trainer0]:two\n"


async def test_output_that_is_not_shown_is_read_however_full_the_console_is(sheet):
    tail = Tail()
    relay = Relay([tail], None)
    worker_end = os.dup(relay.writable())
    relay.started()
    sheet.is_full = True
    for number in range(3):
        os.write(worker_end, b"%d" % number * 60_000 + b"\n")
        async with asyncio.timeout(10):
            while not (tail.lines() and tail.lines()[-1].startswith(str(number))):  # noqa: ASYNC110
                await asyncio.sleep(0)
    os.close(worker_end)
    relay.finish()
    assert [line[0] for line in relay.tail()][-1] == "2"
