"""Sinks of a worker's bytes: whole lines on the console, unfinished ones in time, copies, and the end for a report."""

import asyncio
import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.kernel.output import sinks
from node_agent.kernel.output.sinks import (
    LONGEST_COPY,
    TAIL_BYTES,
    TAIL_LINE_CHARACTERS,
    TAIL_LINES,
    AsItComes,
    Filtered,
    Lines,
    Tail,
    last_bytes,
    report_lines,
)
from tests.support.console import FakeConsole

OUT, ERR = 1, 2


@pytest.fixture
async def console() -> FakeConsole:
    return FakeConsole()


@pytest.fixture
async def lines(console: FakeConsole) -> Iterator[Lines]:
    lines = Lines("[a]:", console, OUT)
    yield lines
    lines.end()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show an unfinished line at the loop's next turn."""
    monkeypatch.setattr(sinks, "UNFINISHED_S", 0.0)


# Lines on the console.


@pytest.mark.parametrize(
    ("mark", "chunks", "shown"),
    [
        ("[a]:", [b"one\ntwo\n", b"\nfour\n"], b"[a]:one\n[a]:two\n\n[a]:four\n"),
        ("[a]:", [b"ready\nhalf a ", b"line", b"\n"], b"[a]:ready\n[a]:half a line\n"),
        ("[a]:", [b"last words"], b"[a]:last words\n"),
        ("[a]:", [b"10%\r20%\r", b"\r 30%", b"\r\n"], b"[a]:10%\r[a]:20%\r\r[a]: 30%\r\n"),
        ("[a]:", [b"\n\none\n\n\ntwo\n\n"], b"\n\n[a]:one\n\n\n[a]:two\n\n"),
        (
            "[a]:",
            [b"\r50%|#####\r         \r", b"loss 1\n\r60%"],
            b"\r[a]:50%|#####\r             \r[a]:loss 1\n\r[a]:60%\n",
        ),
        ("[a]:", [b"dos\r", b"\nunix\n"], b"[a]:dos\r\n[a]:unix\n"),
        ("", [b"one\ntw", b"o\n", b"\r\nthree\r", b"\n", b"four"], b"one\ntwo\n\r\nthree\r\nfour\n"),
    ],
    ids=[
        "every-line",
        "a-line-in-pieces",
        "a-last-line-gets-an-end",
        "redraws",
        "blank",
        "cleared",
        "halves-of-a-line-end",
        "no-mark",
    ],
)
async def test_lines_are_marked_and_whole(console, mark, chunks, shown):
    lines = Lines(mark, console, OUT)
    for chunk in chunks:
        lines.take(chunk)
    lines.end()
    assert console.text() == shown


async def test_whole_lines_are_shown_at_once_and_parts_are_held(console, lines):
    lines.take(b"ready\nhalf a ")
    assert console.text() == b"[a]:ready\n"
    lines.take(b"line\r")
    assert console.text() == b"[a]:ready\n[a]:half a line\r"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_a_question_is_shown_after_a_while_and_its_line_continues(console, lines, impatient, end):
    lines.take(b"ready\ngo on? ")
    await console.until(lambda: console.text() == b"[a]:ready\n[a]:go on? ")
    lines.take(b"yes" + end + b"well\n")
    assert console.text() == b"[a]:ready\n[a]:go on? yes" + end + b"[a]:well\n"


async def test_a_line_that_was_broken_by_another_is_marked_again(console, lines, impatient):
    other = Lines("[b]:", console, OUT)
    lines.take(b"working ... ")
    await console.until(lambda: console.text())
    other.take(b"hello\n")
    lines.take(b"done\n")
    assert console.text() == b"[a]:working ... [b]:hello\n[a]:done\n", "a console puts an end after the dots"


async def test_a_redraw_shows_up_to_its_latest_state_after_a_while(console, lines, impatient):
    lines.take(b"\r10%")
    await console.until(lambda: console.text() == b"\r[a]:10%")
    lines.take(b"\r20%")
    await console.until(lambda: console.text() == b"\r[a]:10%\r[a]:20%")


async def test_a_line_that_is_still_being_written_is_not_shown_in_pieces(console, monkeypatch):
    """The line's length does not matter, only how long its writer has been silent."""
    monkeypatch.setattr(sinks, "UNFINISHED_S", 1_000.0)
    lines = Lines("", console, OUT)
    for _ in range(100):
        lines.take(b"x" * 30_000)
    assert console.text() == b""
    lines.take(b"\n")
    assert console.text() == b"x" * 3_000_000 + b"\n"
    lines.end()


async def test_a_line_without_an_end_is_shown_in_pieces(console, lines, monkeypatch):
    monkeypatch.setattr(sinks, "LONGEST_LINE", 1_000)
    lines.take(b"x" * 600)
    lines.take(b"x" * 600)
    assert console.text() == b"[a]:" + b"x" * 1_200
    lines.take(b"x\n")
    assert console.text() == b"[a]:" + b"x" * 1_201 + b"\n"


async def test_a_closed_sink_leaves_no_timer_or_reader(console, impatient):
    loop = asyncio.get_running_loop()
    lines = Lines("", console, OUT)
    lines.take(b"half")
    lines.end()
    assert all(timer.cancelled() for timer in loop._scheduled)


async def test_the_output_of_a_single_worker_passes_unchanged(console):
    worker = object()
    out, err = AsItComes(console, OUT, worker), AsItComes(console, ERR, worker)
    for chunk in (b".", b".", b"10%\r", b"name? "):
        out.take(chunk)
    err.take(b"\xff")
    out.end()
    assert console.chunks == [(OUT, b"."), (OUT, b"."), (OUT, b"10%\r"), (OUT, b"name? "), (ERR, b"\xff")]


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"long " * 20]), max_size=30), st.data())
def test_the_shown_lines_do_not_depend_on_how_output_is_split(pieces: list[bytes], data: st.DataObject) -> None:
    output = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=8)))
    chunks = [output[start:end] for start, end in zip([0, *cuts], [*cuts, len(output)], strict=True)]
    assert asyncio.run(_shown(chunks)) == asyncio.run(_shown([output]))


async def _shown(chunks: list[bytes]) -> bytes:
    console = FakeConsole()
    lines = Lines("[a]:", console, OUT)
    for chunk in chunks:
        if chunk:
            lines.take(chunk)
    lines.end()
    return console.text()


# Copies of some lines.


def at_once(path: str, size: int, work: Callable[[], object]) -> None:
    work()


def copied(path: Path, *chunks: bytes, texts: tuple[str, ...] = ("apple", "orange")) -> bytes:
    sink = Filtered(str(path), texts, "[default0]:", at_once)
    for chunk in chunks:
        sink.take(chunk)
    sink.end()
    return path.read_bytes()


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"an apple\na pear\norange and apple\napplepie"], [b"an apple", b"orange and apple", b"applepie"]),
        ([b"an ap", b"p", b"le fell", b" down\nno pear\n"], [b"an apple fell down"]),
        ([b"app\nle\n"], []),
        ([b"pear\n\xffapple\xff\r\n"], [b"\xffapple\xff"]),
        ([b"apple" + b"x" * LONGEST_COPY, b"y\n"], [b"apple" + b"x" * LONGEST_COPY]),
    ],
    ids=["whole", "in-pieces", "over-two-lines", "no-text", "without-an-end"],
)
def test_lines_with_one_of_the_texts_are_copied(tmp_path: Path, chunks: list[bytes], lines: list[bytes]) -> None:
    assert copied(tmp_path / "f", *chunks) == b"".join(b"[default0]:" + line + b"\n" for line in lines)


def test_several_workers_share_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    one, two = (Filtered(str(path), ("x",), f"[{name}]:", at_once) for name in "ab")
    one.take(b"x1\n")
    two.take(b"x2\n")
    one.take(b"x3")
    one.end()
    two.end()
    assert path.read_bytes() == b"[a]:x1\n[b]:x2\n[a]:x3\n"


def test_a_file_that_cannot_be_written_is_only_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    troubles: dict[str, int | None] = {}

    def take_note(path: str, size: int, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            troubles[path] = error.errno

    for path in (f"{tmp_path}/absent/f", "/dev/full", f"{tmp_path}/pipe"):
        sink = Filtered(path, ("x",), "", take_note)
        sink.take(b"x\nx\n")
        sink.end()
    assert list(troubles.values()) == [errno.ENOENT, errno.ENOSPC, errno.ENXIO], "a pipe has no reader"


@pytest.mark.torch
def test_prefixed_output_equals_torchruns(tmp_path: Path) -> None:
    from torch.distributed.elastic.multiprocessing.tail_log import tail_logfile

    output = "an apple\na pear\r\n\norange and apple\n  indented apple\r\nlast apple\n"
    (tmp_path / "log").write_bytes(output.encode())
    finished, torchs = Event(), io.StringIO()
    finished.set()
    wanted = ("apple", "orange")
    tail_logfile(
        "[default0]:", str(tmp_path / "log"), torchs, finished, 0.0, lambda line: any(text in line for text in wanted)
    )
    assert copied(tmp_path / "f", output.encode(), texts=wanted).decode() == torchs.getvalue()


# The last lines, for a report.


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        (b"", ()),
        (b"one\ntwo", ("one", "two")),
        (b"\xff\xfe\x00 ok\n", ("�� " + " ok",)),
        (b"\x1b[31mred\x07\x1b[0m\ttab\n", (" [31mred  [0m tab",)),
        (b"begin\r\n" + b"\r10%\r99%" + b"\nTraceback\n", ("begin", "99%", "Traceback")),
        (b"10%\r20%\r", ("20%",)),
        (b"y" * 5_000, ("y" * TAIL_LINE_CHARACTERS,)),
    ],
    ids=["nothing", "no-last-newline", "no-text", "control-characters", "redraws", "a-redraw-alone", "a-long-line"],
)
def test_the_last_lines_are_fit_for_a_report(output: bytes, lines: tuple[str, ...]) -> None:
    tail = Tail()
    if output:
        tail.take(output)
    assert report_lines(output) == tail.lines() == lines


def test_a_report_takes_the_last_lines_of_an_output_of_any_size() -> None:
    tail = Tail()
    for number in range(TAIL_BYTES):
        tail.take(b"%07d\n" % number)
    assert tail.lines() == tuple(f"{number:07d}" for number in range(TAIL_BYTES - TAIL_LINES, TAIL_BYTES))


LONG_MESSAGES = {
    "one-line": b"ValueError: bad tensor: " + b"0.1234, " * 200_000,
    "two-lines": b"RuntimeError: in loading state_dict:\n\tMissing: "
    + b'"a.weight", ' * 9_000
    + b"\n\tUnexpected: "
    + b"b, " * 90_000,
    "redrawn": b"10%\r" * 100_000 + b"90%\rdone",
}


@pytest.mark.parametrize("piece", [1_000, 100_000, 1 << 22])
@pytest.mark.parametrize("message", LONG_MESSAGES.values(), ids=LONG_MESSAGES)
def test_a_line_of_any_length_does_not_displace_the_lines_before_it(message: bytes, piece: int) -> None:
    """An exception's message may be longer than the end that is kept. Its traceback comes before it."""
    traceback = b'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
    output = b"step\n" * 100 + traceback + message + b"\nlast words\n"
    tail = Tail()
    for at in range(0, len(output), piece):
        tail.take(output[at : at + piece])
    assert tail.lines() == report_lines(last_bytes(output)) == report_lines(output)
    assert "Traceback (most recent call last):" in tail.lines()


EXCEPTION = b"""[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 1, in <module>
[rank3]: RuntimeError: in loading state_dict:
"""


@pytest.mark.parametrize("piece", [1_000, 100_000, 1 << 22])
@pytest.mark.parametrize("number", [TAIL_LINES, 50_000])
def test_an_exception_that_torch_has_marked_is_in_the_report_however_long_its_message_is(
    piece: int, number: int
) -> None:
    after = b"[rank3]: size mismatch\n"
    output = b"[rank3]: a log line\n" + b"step\n" * 30_000 + b" 10%|=" + EXCEPTION + after * number
    tail = Tail()
    for at in range(0, len(output), piece):
        tail.take(output[at : at + piece])
    lines = tuple(EXCEPTION.decode().splitlines())
    for report in (tail.lines(), report_lines(last_bytes(output)), report_lines(output)):
        assert report[: len(lines)] == lines
        assert report[-TAIL_LINES:] == (after.decode().rstrip(),) * TAIL_LINES
    newer = b"[rank3]: Traceback (most recent call last):\n[rank3]: ValueError: newer\n"
    assert report_lines(output + newer)[0] == after.decode().rstrip()
    last_words = b"closing\n" * (TAIL_LINES // 2)
    assert report_lines(output + last_words)[: len(lines)] == lines


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 16])
@pytest.mark.parametrize("group", [b"", b"  + Exception Group "])
def test_only_a_new_exception_that_torch_has_marked_has_a_new_time(monkeypatch, piece: int, group: bytes) -> None:
    tail, now = Tail(), 1.0
    monkeypatch.setattr(sinks.time, "monotonic", lambda: now)

    def take(output: bytes) -> None:
        for at in range(0, len(output), piece):
            tail.take(output[at : at + piece])

    take(b"Traceback (most recent call last):\nValueError: caught\n[rank3]:[W] c10d warning\n")
    assert tail.marked_at is None
    now = 2.0
    take(b" 10%|=[rank3]: " + group + b"Traceback (most recent call last):")
    assert tail.marked_at == 2.0
    now = 3.0
    take(b"\n[rank3]: ValueError: boom\n" + b"[rank3]:[W] c10d warning\n" * 9)
    assert tail.marked_at == 2.0
    take(b"[rank3]: Traceback (most recent call last):\n")
    assert tail.marked_at == 3.0


@pytest.mark.parametrize("piece", [1_000, 100_000, 1 << 22])
@pytest.mark.parametrize("message", [b"", b"[rank3]: size mismatch\n" * 2_000], ids=["short", "long"])
@pytest.mark.parametrize("number", [TAIL_LINES, 50_000])
def test_an_exception_that_the_script_has_survived_leaves_the_report(piece: int, message: bytes, number: int) -> None:
    """Torch has marked it in a child that writes to the same stderr."""
    output = b"step\n" * 300 + EXCEPTION + message + b"\n" + b"[rank3]:[W] c10d warning\nstep\n" * number
    tail = Tail()
    for at in range(0, len(output), piece):
        tail.take(output[at : at + piece])
    for report in (tail.lines(), report_lines(last_bytes(output)), report_lines(output)):
        assert len(report) == TAIL_LINES and not any("Traceback" in line for line in report)


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"\n", b"\r", b"\r\n", b"ab\n", b"\xc3\xa4" * 40]), max_size=40)
)
def test_the_last_lines_are_the_same_however_the_output_is_cut(chunks: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sinks, "TAIL_BYTES", 64)
        patch.setattr(sinks, "TAIL_LINES", 3)
        patch.setattr(sinks, "TAIL_LINE_CHARACTERS", 2)
        patch.setattr(sinks, "_TAIL_LINE_BYTES", 8)
        tail = Tail()
        for chunk in chunks:
            tail.take(chunk)
        assert tail.lines() == report_lines(b"".join(chunks))
