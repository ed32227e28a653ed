"""A worker writes straight into its file: real workers, real files."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node_agent.output.file_tail import FileTails
from node_agent.output.lines import Lines
from node_agent.output.pipe import TAIL_LINES
from node_agent.output.streams import Dropped, FileStream
from tests.support.console import FakeConsole

OUT = 1


class Worker:
    """Writes to a stream what its program says."""

    def __init__(self, stream: FileStream, program: str) -> None:
        self.stream = stream
        self.process = subprocess.Popen([sys.executable, "-c", program], stdout=stream.writable())
        stream.started()

    def wait(self) -> int:
        return self.process.wait(30)


@pytest.fixture
async def troubles() -> list[OSError]:
    return []


def test_the_worker_writes_to_the_file_and_the_report_reads_its_end(tmp_path: Path, troubles: list[OSError]) -> None:
    stream = FileStream(str(tmp_path / "log"), None, troubles.append)
    Worker(stream, "for n in range(100): print(n)\nprint('last words', end='')").wait()
    stream.finish()
    assert (tmp_path / "log").read_bytes().endswith(b"98\n99\nlast words")
    assert stream.tail() == (*map(str, range(101 - TAIL_LINES, 100)), "last words")
    assert troubles == []


def test_what_is_there_is_never_overwritten(tmp_path: Path, troubles: list[OSError]) -> None:
    (tmp_path / "log").write_text("before\n")
    stream = FileStream(str(tmp_path / "log"), None, troubles.append)
    Worker(stream, "print('after')").wait()
    stream.finish()
    assert (tmp_path / "log").read_text() == "before\nafter\n"


def test_a_named_pipe_is_written_to_if_somebody_reads_it(tmp_path: Path, troubles: list[OSError]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device or address"):
        FileStream(str(tmp_path / "pipe"), None, troubles.append)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    stream = FileStream(str(tmp_path / "pipe"), None, troubles.append)
    assert os.get_blocking(stream.writable()), "the worker waits for its reader"
    Worker(stream, "print('hello')").wait()
    stream.finish()
    assert os.read(reader, 100) == b"hello\n"
    os.close(reader)


async def test_the_last_line_of_a_killed_worker_is_in_the_file_on_the_console_and_in_the_report(
    tmp_path: Path, troubles: list[OSError]
) -> None:
    sheet = FakeConsole()
    tails = FileTails(sheet, troubles.append)  # type: ignore[arg-type]

    def follow(file: int) -> object:
        return tails.open(file, [Lines("[0]:", sheet, OUT)], shown=True)

    stream = FileStream(str(tmp_path / "log"), follow, troubles.append)  # type: ignore[arg-type]
    program = "import os; os.write(1, b'x' * 300_000 + b'\\nlast words'); os.kill(os.getpid(), 9)"
    assert await asyncio.to_thread(Worker(stream, program).wait) == -signal.SIGKILL
    stream.finish()
    assert (tmp_path / "log").read_bytes() == b"x" * 300_000 + b"\nlast words"
    assert sheet.text() == b"[0]:" + b"x" * 300_000 + b"\n[0]:last words\n"
    assert stream.tail()[-1] == "last words"
    tails.close()


def test_a_file_that_is_removed_meanwhile_is_named_and_its_end_is_reported(
    tmp_path: Path, troubles: list[OSError]
) -> None:
    stream = FileStream(str(tmp_path / "log"), None, troubles.append)
    os.remove(tmp_path / "log")
    Worker(stream, "print('into the void')").wait()
    stream.finish()
    assert stream.tail() == ("into the void",)
    assert [(trouble.strerror, trouble.filename) for trouble in troubles] == [
        ("it was removed while a worker wrote to it", f"{tmp_path}/log")
    ]


def test_a_file_that_cannot_be_made_leaves_nothing_open(tmp_path: Path, troubles: list[OSError]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No such file"):
        FileStream(str(tmp_path / "absent" / "log"), None, troubles.append)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_device_is_written_to_and_not_read(troubles: list[OSError]) -> None:
    """A plug-in may name one."""
    stream = FileStream("/dev/null", None, troubles.append)
    Worker(stream, "print('gone')").wait()
    stream.finish()
    assert stream.tail() == () and troubles == []


def test_nothing_stays_open(tmp_path: Path, troubles: list[OSError]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for stream in (FileStream(str(tmp_path / "log"), None, troubles.append), Dropped()):
        stream.started()
        stream.finish()
        stream.finish()
        assert stream.tail() == ()
    assert len(os.listdir("/proc/self/fd")) == before
