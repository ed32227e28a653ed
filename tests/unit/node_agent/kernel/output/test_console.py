"""The console may block for any time: nothing is lost, and only its own thread waits."""

import asyncio
import os
import re
import sys
from collections.abc import Iterator

import pytest
from rdzv_protocol.log_lines import LineFormat

from node_agent.kernel.output import console as console_module
from node_agent.kernel.output.console import ERR, Console
from node_agent.kernel.output.sinks import AsItComes
from node_agent.kernel.output.streams import Relay
from node_agent.words import output
from tests.support.threads import refuse_threads

PATIENCE_S = 10.0
LINES = LineFormat("node-agent")
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
async def console() -> Iterator[Console]:
    console = Console(LINES, asyncio.get_running_loop())
    yield console
    console.close()


class Reader:
    """Reader of the console: none until `read` is called."""

    def __init__(self) -> None:
        self._end, self.console_end = os.pipe()

    async def read(self, count: int) -> bytes:
        return await asyncio.to_thread(self._read, count)

    def close(self) -> None:
        os.close(self._end)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (chunk := os.read(self._end, count - len(data))):
            data += chunk
        return data


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()
    os.close(reader.console_end)


async def called(console: Console) -> None:
    """Return when the console reports that it has drained."""
    drained = asyncio.Event()
    console.when_drained(drained.set)
    async with asyncio.timeout(PATIENCE_S):
        await drained.wait()


async def test_the_agents_own_lines_name_the_agent(console, capfd):
    console.log("joining the run")
    console.log("name with \udcff in it")
    await asyncio.to_thread(console.close)
    said = rf"{TIME} node-agent: joining the run\n{TIME} node-agent: name with \\udcff in it\n"
    assert re.fullmatch(said, capfd.readouterr().err)


async def test_lines_come_out_in_the_order_in_which_they_went_in(console, reader):
    lines = b"".join(b"%d\n" % number for number in range(1_000))
    for line in lines.splitlines(keepends=True):
        console.write(reader.console_end, line)
    assert await reader.read(len(lines)) == lines


async def test_lines_wait_until_a_thread_can_be_started(console, reader, monkeypatch):
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        console.write(reader.console_end, b"one\n")
    console.write(reader.console_end, b"two\n")
    assert await reader.read(8) == b"one\ntwo\n"


async def test_an_exiting_agent_writes_its_lines_even_without_a_thread(console, reader, monkeypatch):
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        console.write(reader.console_end, b"one\n")
        console.close()
    assert await reader.read(4) == b"one\n"


async def test_a_console_that_blocks_fills_up_and_drains(console, reader, monkeypatch):
    monkeypatch.setattr(console_module, "HIGH", 300_000)
    monkeypatch.setattr(console_module, "LOW", 100_000)
    console.write(reader.console_end, b"x" * 300_000)
    assert not console.is_full
    console.write(reader.console_end, b"y")
    assert console.is_full
    waiting = asyncio.create_task(called(console))
    assert await reader.read(300_001) == b"x" * 300_000 + b"y"
    await waiting
    assert not console.is_full
    await called(console)  # it may drain between the check of `is_full` and the request for a call


async def test_a_blocked_console_pauses_workers_without_losing_output(console, reader, monkeypatch):
    monkeypatch.setattr(console_module, "HIGH", 300_000)
    monkeypatch.setattr(console_module, "LOW", 100_000)
    relay = Relay([AsItComes(console, reader.console_end, None)], console)
    worker_writes = os.dup(relay.writable())
    relay.started()
    lines = b"".join(b"line %d of a worker that talks a lot\n" % number for number in range(40_000))
    writing = asyncio.create_task(asyncio.to_thread(_write_all, worker_writes, lines))
    async with asyncio.timeout(PATIENCE_S):
        while not (console.is_full or writing.done()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert console.is_full
    assert not writing.done(), "the worker waits, as it would for a terminal"
    assert await reader.read(len(lines)) == lines
    await writing
    relay.finish()


async def test_a_console_that_stays_full_is_named_once_and_workers_are_known_to_wait(
    console, reader, monkeypatch, capfd
):
    monkeypatch.setattr(console_module, "HIGH", 300_000)
    monkeypatch.setattr(console_module, "LOW", 100_000)
    monkeypatch.setattr(console_module, "HELD_S", 0.01)
    console.write(reader.console_end, b"x" * 300_001)
    assert console.held_since is not None
    waiting = [asyncio.create_task(called(console)) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        while not (said := capfd.readouterr().err):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert console.held_since is not None
    await reader.read(300_001)
    await asyncio.gather(*waiting)
    assert console.held_since is None
    assert said.endswith(f"{output.console_held(0.01)}\n") and not capfd.readouterr().err


async def test_a_console_that_is_only_slow_is_not_held(console, reader, monkeypatch, capfd):
    monkeypatch.setattr(console_module, "HIGH", 300_000)
    monkeypatch.setattr(console_module, "LOW", 100_000)
    monkeypatch.setattr(
        console_module, "HELD_S", 2.0
    )  # less than all pauses together, more than a pause on a busy machine
    loop = asyncio.get_running_loop()
    console.write(reader.console_end, b"x" * 900_000)
    waiting = asyncio.create_task(called(console))
    began = since = console.held_since
    for _ in range(6):
        console.write(ERR, b"an own line, on another screen, is no sign of the full one\n")
        await reader.read(100_000)
        async with asyncio.timeout(PATIENCE_S):
            while console.held_since == since:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        since = console.held_since
        assert since is not None and began < since <= loop.time()
        await asyncio.sleep(0.4)
    assert output.console_held(2.0) not in capfd.readouterr().err
    async with asyncio.timeout(PATIENCE_S):
        while output.console_held(2.0) not in capfd.readouterr().err:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await reader.read(300_000)
    await waiting


async def test_a_console_without_a_reader_does_not_stop_the_agent(console, reader):
    reads, writes = os.pipe()
    os.close(reads)
    console.write(writes, b"into the void\n")
    console.write(reader.console_end, b"still here\n")
    assert await reader.read(11) == b"still here\n"
    os.close(writes)


async def test_a_console_in_non_blocking_mode_loses_nothing(console, reader):
    """The program before often leaves a terminal in this mode."""
    os.set_blocking(reader.console_end, False)
    console.write(reader.console_end, b"z" * 500_000)
    assert await reader.read(500_000) == b"z" * 500_000


async def test_the_wait_of_an_exiting_agent_for_a_blocked_console_is_bounded(reader, monkeypatch):
    monkeypatch.setattr(console_module, "PATIENCE_S", 0.01)
    console = Console(LINES, asyncio.get_running_loop())
    console.write(reader.console_end, b"x" * 200_000)
    console.close()
    assert await reader.read(200_000) == b"x" * 200_000


async def test_an_agent_that_exits_waits_for_a_console_that_is_merely_slow(reader, monkeypatch):
    """An agent waits as long as the console takes any output within its patience."""
    monkeypatch.setattr(console_module, "PATIENCE_S", 5.0)
    monkeypatch.setattr(console_module, "WRITE_BYTES", 1_000)
    console = Console(LINES, asyncio.get_running_loop())
    console.write(reader.console_end, b"x" * 1_000_000)
    reading = asyncio.create_task(reader.read(1_000_000))
    await asyncio.to_thread(console.close)
    assert console.pending == 0
    assert await reading == b"x" * 1_000_000


# Unfinished lines.


async def test_the_writer_of_an_unfinished_line_may_continue_it(console, reader):
    one, other = object(), object()
    console.write(reader.console_end, b"name? ", one)
    assert console.owns_line(reader.console_end, one) and not console.owns_line(reader.console_end, other)
    console.write(reader.console_end, b"me\n", one)
    assert not console.owns_line(reader.console_end, one)
    console.write(reader.console_end, b"next\n", other)
    assert await reader.read(14) == b"name? me\nnext\n"


async def test_another_writer_begins_a_new_line(console, reader):
    one, other = object(), object()
    console.write(reader.console_end, b"working ... ", one)
    console.write(reader.console_end, b"10%\r", other)
    console.write(reader.console_end, b"done\n", one)
    console.write(reader.console_end, b"hello\n")
    assert await reader.read(29) == b"working ... \n10%\r\ndone\nhello\n"


async def test_another_screen_gets_its_own_lines_even_while_one_blocks(console, reader):
    """In `node-agent train.py | less`, the report is on stderr."""
    elsewhere = Reader()
    console.write(reader.console_end, b"x" * 1_000_000, "one")
    console.write(elsewhere.console_end, b"run failed\n")
    console.write(reader.console_end, b"done\n", "one")
    assert await elsewhere.read(11) == b"run failed\n"
    assert console.pending > 0
    assert await reader.read(1_000_005) == b"x" * 1_000_000 + b"done\n"
    elsewhere.close()
    os.close(elsewhere.console_end)


SAYS_ON_STDERR = """
import asyncio
from node_agent.kernel.output.console import OUT, Console
from rdzv_protocol.log_lines import LineFormat
async def main():
    console = Console(LineFormat("node-agent"), asyncio.get_running_loop())
    console.write(OUT, b"10%", "worker")
    console.log("hello")
    console.write(OUT, b"20%\\n", "worker")
    console.close()
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("stderr", "shown"),
    [
        (asyncio.subprocess.STDOUT, (rb"10%\nTIME node-agent: hello\n20%\n", b"")),
        (asyncio.subprocess.PIPE, (rb"10%20%\n", rb"TIME node-agent: hello\n")),
    ],
    ids=["one-terminal", "a-file-gets-the-workers-bytes-alone"],
)
async def test_the_agents_lines_and_a_workers_are_not_mixed(stderr, shown):
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SAYS_ON_STDERR, stdout=asyncio.subprocess.PIPE, stderr=stderr
    )
    for written, expected in zip(await run.communicate(), shown, strict=True):
        assert re.fullmatch(expected.replace(b"TIME", TIME.encode()), written or b"")


def _write_all(fd: int, data: bytes) -> None:
    with os.fdopen(fd, "wb") as pipe:
        pipe.write(data)


async def test_an_exception_in_its_thread_reaches_the_loop_and_later_lines_are_taken(console, monkeypatch):
    loop, failures = asyncio.get_running_loop(), asyncio.Queue()
    loop.set_exception_handler(lambda _, context: failures.put_nowait(str(context["exception"])))

    def boom(fd: int, view: memoryview) -> int:
        raise RuntimeError("boom")

    monkeypatch.setattr(console, "put", boom)
    for _ in range(2):
        console.log("hello")
        assert await asyncio.wait_for(failures.get(), PATIENCE_S) == "boom"
    await asyncio.to_thread(console.close)  # its thread reports the exception before it counts the line as done
    assert console.pending == 0
