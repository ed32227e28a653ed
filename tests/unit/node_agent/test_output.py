"""A worker's output on a real pipe: prefixed, whole, and remembered."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from node_agent.output import LONGEST_LINE, TAIL_LINE_CHARACTERS, TAIL_LINES, Relay
from tests.unit.node_agent.sheet import Sheet

OUT, ERR = 1, 2


class Pipe:
    """A worker's end of a pipe whose other end a relay reads."""

    def __init__(self, sheet: Sheet, prefix: str, target: int = OUT) -> None:
        self.relay = Relay(prefix, sheet, target)
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
async def sheet() -> Sheet:
    return Sheet()


@pytest.fixture
async def pipe(sheet: Sheet) -> Iterator[Pipe]:
    pipe = Pipe(sheet, "[trainer0]:")
    yield pipe
    pipe.close()


def finished(pipe: Pipe, data: bytes) -> tuple[str, ...]:
    """The tail of a worker that wrote this and is gone."""
    pipe.write(data)
    pipe.close()
    return pipe.relay.tail()


async def test_every_line_carries_its_workers_prefix(sheet, pipe):
    pipe.write(b"one\ntwo\n")
    await sheet.until(lambda: sheet.text() == b"[trainer0]:one\n[trainer0]:two\n")


async def test_a_line_is_shown_only_when_it_is_whole(sheet, pipe):
    pipe.write(b"ready\nhalf a ")
    await sheet.until(lambda: sheet.text() == b"[trainer0]:ready\n")
    pipe.write(b"line\n")
    await sheet.until(lambda: sheet.text().endswith(b"\n[trainer0]:half a line\n"))


async def test_the_last_line_is_shown_also_without_a_newline(sheet, pipe):
    assert finished(pipe, b"first\nlast words") == ("first", "last words")
    assert sheet.text() == b"[trainer0]:first\n[trainer0]:last words\n"


async def test_what_a_worker_wrote_just_before_its_end_is_read_to_the_last_byte(sheet, pipe):
    words = b"".join(b"%05d\n" % number for number in range(10_000))
    pipe.write(words)
    pipe.close()
    assert sheet.text().replace(b"[trainer0]:", b"") == words


async def test_a_progress_bar_redraws_while_it_runs(sheet, pipe):
    pipe.write(b"10%\r20%\r")
    await sheet.until(lambda: sheet.text() == b"[trainer0]:10%\r[trainer0]:20%\r")


async def test_a_line_without_an_end_is_shown_in_pieces(sheet, pipe):
    pipe.write(b"x" * LONGEST_LINE)
    await sheet.until(lambda: sheet.text() == b"[trainer0]:" + b"x" * LONGEST_LINE)


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
