"""A worker's output on a real pipe: read to the last byte, and held back while the console is full."""

import asyncio
import errno
import fcntl
import os
from collections.abc import Iterator

import pytest

from node_agent.kernel.output import streams
from node_agent.kernel.output.sinks import Lines, Tail
from node_agent.kernel.output.streams import ALL_PIPES_BYTES, PIPE_BYTES, Relay, Stream, pipe_bytes
from tests.support.console import FakeConsole

OUT = 1


class Pipe:
    """A worker's end of a pipe whose other end a relay reads."""

    def __init__(self, console: FakeConsole, mark: str = "[0]:", pipe_bytes: int = 0) -> None:
        self.relay = Relay([Lines(mark, console, OUT), Tail()], console, pipe_bytes)
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
async def console() -> FakeConsole:
    return FakeConsole()


@pytest.fixture
async def pipe(console: FakeConsole) -> Iterator[Pipe]:
    pipe = Pipe(console)
    yield pipe
    pipe.close()


@pytest.mark.parametrize("size", [0, PIPE_BYTES])
async def test_output_just_before_a_workers_end_is_read_to_the_last_byte(console, size):
    pipe = Pipe(console, "", pipe_bytes=size)
    words = b"x" * 99 + b"\n"
    pipe.write(words * ((size or 1 << 16) // len(words)))
    pipe.close()
    assert console.text() == words * ((size or 1 << 16) // len(words))


async def test_all_pipes_of_an_agent_leave_the_user_enough_for_others():
    assert pipe_bytes(1) == pipe_bytes(8) == PIPE_BYTES
    for workers in (1, 3, 8, 9, 100, 4096):
        assert 2 * workers * pipe_bytes(workers) <= ALL_PIPES_BYTES
    assert pipe_bytes(4096) == 0, "the kernel's own size will do"


async def test_output_is_read_from_a_pipe_that_this_user_may_not_widen(console, monkeypatch):
    def refuse(pipe: int, command: int, size: int = 0) -> int:
        if command == fcntl.F_SETPIPE_SZ:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return 1 << 16

    monkeypatch.setattr(streams.fcntl, "fcntl", refuse)
    pipe = Pipe(console, "", pipe_bytes=PIPE_BYTES)
    pipe.write(b"fine\n")
    pipe.close()
    assert pipe.relay.tail() == ("fine",)


async def test_a_child_that_outlives_the_worker_and_keeps_its_pipe_does_not_block_the_agent(console, pipe):
    pipe.write(b"mine\n")
    pipe.relay.finish()
    assert console.text() == b"[0]:mine\n"
    pipe.relay.finish()
    with pytest.raises(BrokenPipeError):
        pipe.write(b"too late\n")


async def test_a_child_that_never_stops_writing_does_not_block_the_agent(console, pipe):
    """The child has the worker's pipe, and fills it faster than it is read."""
    pipe.relay._read = lambda: 1 << 16
    pipe.relay.finish()


async def test_a_worker_that_ends_while_it_is_paused_loses_nothing(console, pipe):
    console.is_full = True
    pipe.write(b"one\n")
    await console.until(lambda: console.paused)
    pipe.write(b"two\n")
    pipe.close()
    assert pipe.relay.tail() == ("one", "two")
    for resume in console.paused:
        resume()
    assert console.text() == b"[0]:one\n[0]:two\n"


async def test_output_that_is_not_shown_is_read_however_full_the_console_is(console):
    console.is_full = True
    tail = Tail()
    relay = Relay([tail], None)
    worker_end = os.dup(relay.writable())
    relay.started()
    for number in range(3):
        os.write(worker_end, b"%d" % number * 60_000 + b"\n")
        async with asyncio.timeout(10):
            while not (tail.lines() and tail.lines()[-1].startswith(str(number))):  # noqa: ASYNC110
                await asyncio.sleep(0)
    os.close(worker_end)
    relay.finish()
    assert relay.tail()[-1].startswith("2")


def test_an_unwanted_stream_takes_all_output_without_an_open_descriptor():
    before = os.listdir("/proc/self/fd")
    stream = Stream()
    os.write(stream.writable(), b"into the void")
    for _ in range(2):
        stream.started()
        stream.finish()
    assert stream.tail() == ()
    assert os.listdir("/proc/self/fd") == before
