"""The server's log: its reader may take nothing for any time, and the caller never waits for it."""

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from rdzv_server import log_output
from rdzv_server.log_output import LogOutput
from rdzv_server.words import service as words
from tests.support.threads import refuse_threads


class Pipe:
    """Pipe whose reader reads only when the test says so."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.output = LogOutput(self.writer)
        self.output.begin()

    def log(self, text: str) -> None:
        self.output.handle(logging.LogRecord("rdzv_server", logging.INFO, "", 0, text, None, None))

    def read_lines(self, count: int) -> list[str]:
        data = b""
        while data.count(b"\n") < count:
            data += os.read(self.reader, 1 << 16)
        return data.decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    pipe.output.close()
    os.close(pipe.writer)


def test_lines_come_out_in_order_however_late_they_are_read(pipe: Pipe) -> None:
    lines = [f"{number} {'x' * 100}" for number in range(10_000)]
    for line in lines:
        pipe.log(line)
    assert pipe.read_lines(len(lines)) == lines


def test_lines_beyond_the_limit_are_left_out_and_counted(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_output, "MOST_BYTES", 200_000)
    pipe.log("y" * 149_999)  # more than the pipe holds, so it counts until it is read
    for _ in range(4_000):
        pipe.log("x" * 99)
    assert pipe.read_lines(502) == ["y" * 149_999, *["x" * 99] * 500, words.log_lines_lost(3_500)]
    pipe.log("again")
    assert pipe.read_lines(1) == ["again"]


def test_lines_that_are_left_out_before_the_end_are_counted(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_output, "MOST_BYTES", 150_100)
    monkeypatch.setattr(log_output, "CLOSE_S", 0)
    pipe.log("y" * 149_999)  # more than the pipe holds, so it counts until it is read
    for _ in range(30):
        pipe.log("x" * 99)
    pipe.output.close()
    assert pipe.read_lines(3) == ["y" * 149_999, "x" * 99, words.log_lines_lost(29)]


def test_a_line_beyond_the_limit_is_kept_if_it_is_the_only_one_that_waits(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_output, "MOST_BYTES", 10)
    pipe.log("x" * 11)
    assert pipe.read_lines(1) == ["x" * 11]


def test_lines_are_written_at_once_before_the_servers_other_threads_have_started(pipe: Pipe) -> None:
    output, threads = LogOutput(pipe.writer), threading.active_count()
    output.handle(logging.LogRecord("rdzv_server", logging.INFO, "", 0, "one", None, None))
    assert threading.active_count() == threads
    assert pipe.read_lines(1) == ["one"]


def test_without_a_thread_lines_are_written_at_once(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        pipe.log("one")
    pipe.log("two")
    assert pipe.read_lines(2) == ["one", "two"]


def test_the_end_waits_for_a_reader_only_for_a_while(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_output, "CLOSE_S", 0.01)
    pipe.log("x" * 1_000_000)
    pipe.output.close()


def test_a_reader_that_is_gone_does_not_matter(pipe: Pipe) -> None:
    os.close(pipe.reader)
    pipe.log("lost")
    pipe.output.close()
    pipe.log("lost, too")
    pipe.reader = os.open(os.devnull, os.O_RDONLY)
