"""What the console shows of one worker beside others: whole lines, and unfinished ones in time."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.output import lines as lines_module
from node_agent.output.lines import AsItComes, Lines
from tests.support.console import FakeConsole

OUT, ERR = 1, 2


@pytest.fixture
async def sheet() -> FakeConsole:
    return FakeConsole()


@pytest.fixture
async def lines(sheet: FakeConsole) -> Iterator[Lines]:
    lines = Lines("[a]:", sheet, OUT)
    yield lines
    lines.end()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unfinished line is shown as soon as the loop comes to it."""
    monkeypatch.setattr(lines_module, "UNFINISHED_S", 0.0)


async def test_every_line_has_the_mark(sheet, lines):
    lines.take(b"one\ntwo\n")
    lines.take(b"\nfour\n")
    assert sheet.text() == b"[a]:one\n[a]:two\n[a]:\n[a]:four\n"


async def test_without_a_mark_lines_pass_unchanged(sheet):
    lines = Lines("", sheet, OUT)
    for chunk in (b"one\ntw", b"o\n", b"\r\nthree\r", b"\n", b"four"):
        lines.take(chunk)
    lines.end()
    assert sheet.text() == b"one\ntwo\n\r\nthree\r\nfour\n"


async def test_a_line_is_shown_when_it_is_whole(sheet, lines):
    lines.take(b"ready\nhalf a ")
    assert sheet.text() == b"[a]:ready\n"
    lines.take(b"line")
    lines.take(b"\n")
    assert sheet.text() == b"[a]:ready\n[a]:half a line\n"


async def test_the_last_line_gets_an_end(sheet, lines):
    lines.take(b"last words")
    lines.end()
    assert sheet.text() == b"[a]:last words\n"


async def test_a_progress_bar_redraws_while_it_runs(sheet, lines):
    lines.take(b"10%\r20%\r")
    assert sheet.text() == b"[a]:10%\r[a]:20%\r"
    lines.take(b"\r 30%")
    lines.take(b"\r\n")
    assert sheet.text() == b"[a]:10%\r[a]:20%\r\r[a]: 30%\r\n"


async def test_the_halves_of_a_lines_end_are_one_end(sheet, lines):
    lines.take(b"dos\r")
    lines.take(b"\nunix\n")
    assert sheet.text() == b"[a]:dos\r\n[a]:unix\n"


async def test_a_question_is_shown_after_a_while_and_its_line_goes_on(sheet, lines, impatient):
    lines.take(b"ready\ngo on? ")
    await sheet.until(lambda: sheet.text() == b"[a]:ready\n[a]:go on? ")
    lines.take(b"yes\nwell\n")
    assert sheet.text() == b"[a]:ready\n[a]:go on? yes\n[a]:well\n"


async def test_a_line_that_was_broken_by_another_is_marked_again(sheet, lines, impatient):
    other = Lines("[b]:", sheet, OUT)
    lines.take(b"working ... ")
    await sheet.until(lambda: sheet.text())
    other.take(b"hello\n")
    lines.take(b"done\n")
    assert sheet.text() == b"[a]:working ... [b]:hello\n[a]:done\n", "a console puts an end after the dots"


async def test_a_redraw_shows_up_to_its_latest_state_after_a_while(sheet, lines, impatient):
    lines.take(b"\r10%")
    await sheet.until(lambda: sheet.text() == b"\r[a]:10%")
    lines.take(b"\r20%")
    await sheet.until(lambda: sheet.text() == b"\r[a]:10%\r[a]:20%")


async def test_a_line_that_is_still_being_written_is_not_shown_in_pieces(sheet, monkeypatch):
    """However long: what counts is how long its writer has been silent in the middle of it."""
    monkeypatch.setattr(lines_module, "UNFINISHED_S", 1_000.0)
    lines = Lines("", sheet, OUT)
    for _ in range(100):
        lines.take(b"x" * 30_000)
    assert sheet.text() == b""
    lines.take(b"\n")
    assert sheet.text() == b"x" * 3_000_000 + b"\n"
    lines.end()


async def test_a_line_without_an_end_is_shown_in_pieces(sheet, lines, monkeypatch):
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 1_000)
    lines.take(b"x" * 600)
    lines.take(b"x" * 600)
    assert sheet.text() == b"[a]:" + b"x" * 1_200
    lines.take(b"x\n")
    assert sheet.text() == b"[a]:" + b"x" * 1_201 + b"\n"


async def test_nothing_is_left_that_wakes_the_agent_up(sheet, impatient):
    loop = asyncio.get_running_loop()
    lines = Lines("", sheet, OUT)
    lines.take(b"half")
    lines.end()
    assert all(timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]


async def test_what_one_worker_writes_alone_passes_as_it_comes(sheet):
    worker = object()
    out, err = AsItComes(sheet, OUT, worker), AsItComes(sheet, ERR, worker)
    for chunk in (b".", b".", b"10%\r", b"name? "):
        out.take(chunk)
    err.take(b"\xff")
    out.end()
    assert sheet.chunks == [(OUT, b"."), (OUT, b"."), (OUT, b"10%\r"), (OUT, b"name? "), (ERR, b"\xff")]


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"long " * 20]), max_size=30), st.data())
def test_however_it_is_cut_up_the_same_lines_are_shown(pieces: list[bytes], data: st.DataObject) -> None:
    output = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=8)))
    chunks = [output[start:end] for start, end in zip([0, *cuts], [*cuts, len(output)], strict=True)]
    assert asyncio.run(_shown(chunks)) == asyncio.run(_shown([output]))


async def _shown(chunks: list[bytes]) -> bytes:
    sheet = FakeConsole()
    lines = Lines("[a]:", sheet, OUT)
    for chunk in chunks:
        if chunk:
            lines.take(chunk)
    lines.end()
    return sheet.text()
