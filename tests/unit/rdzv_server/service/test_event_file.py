"""Events in a file: rotation, a file that cannot be written, and what waits meanwhile."""

import asyncio
import json
import os
import resource
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from rdzv_protocol.events import RunEvent

from rdzv_server.core.effects import EmitEvent
from rdzv_server.service import event_file
from rdzv_server.service.event_file import EventFile
from rdzv_server.words import service as words
from rdzv_server.words import storage as storage_words
from tests.support.threads import refuse_threads

PATIENCE_S = 10.0


def happen(file: EventFile, *numbers: int) -> None:
    for number in numbers:
        event = RunEvent(number=number, run_id="run", attempt=1, round=1, kind="warning", reason="two\nlines")
        file.observe(EmitEvent(event))


def numbers_in(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


@asynccontextmanager
async def running(file: EventFile) -> AsyncIterator[None]:
    task = asyncio.create_task(file.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await file.close()


@contextmanager
def full_disk(at_bytes: int) -> Iterator[None]:
    """Limit the size of all files of this process."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


async def test_each_event_is_a_line_and_a_file_that_is_there_is_appended_to(tmp_path):
    path = tmp_path / "events.jsonl"
    for first in (1, 3):
        file = EventFile(str(path))
        async with running(file):
            happen(file, first, first + 1)
    assert numbers_in(path) == [1, 2, 3, 4]
    assert path.stat().st_mode & 0o077 == 0, "others than the owner can read it"


async def test_events_wait_for_a_thread_and_are_written_once(tmp_path, monkeypatch, caplog):
    path = tmp_path / "events.jsonl"
    file = EventFile(str(path))
    happen(file, 1, 2)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        for _ in range(2):
            await file.flush()
    assert [record.message for record in caplog.records] == [
        storage_words.outage(words.event_log_failed(str(path), words.NO_THREAD), words.EVENTS_WAIT)
    ]
    await file.close()
    assert numbers_in(path) == [1, 2]


async def test_a_moved_log_file_is_reopened_on_the_signal(tmp_path):
    path, old = tmp_path / "events.jsonl", tmp_path / "events.jsonl.1"
    file = EventFile(str(path))
    happen(file, 1)
    await file.flush()
    os.rename(path, old)
    happen(file, 2)
    await file.flush()
    file.reopen()
    happen(file, 3)
    await file.close()
    assert (numbers_in(old), numbers_in(path)) == ([1, 2], [3])


async def test_a_full_disk_is_logged_once_and_events_stay_complete(tmp_path, caplog):
    path = tmp_path / "events.jsonl"
    file = EventFile(str(path))
    with full_disk(at_bytes=200):  # in the middle of the second line
        happen(file, 1, 2, 3)
        for _ in range(3):
            await file.flush()
        assert path.stat().st_size == 200
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        happen(file, 4)
    await file.close()
    assert numbers_in(path) == [1, 2, 3, 4]
    assert storage_words.outage(words.event_log_failed(str(path), "File too large"), words.EVENTS_WAIT) in caplog.text


async def test_a_file_that_could_not_be_written_is_tried_again_by_itself(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(event_file, "RETRY_S", 0.01)
    path, tries = tmp_path / "events.jsonl", asyncio.Queue()
    file = EventFile(str(path))
    write = file._write
    monkeypatch.setattr(file, "_write", lambda *given: (tries.put_nowait(1), write(*given))[1])
    async with running(file):
        with full_disk(at_bytes=1):
            happen(file, 1)
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(3):
                    await tries.get()
    assert numbers_in(path) == [1]


async def test_a_write_that_is_under_way_when_the_server_ends_is_not_repeated(tmp_path, monkeypatch):
    path, begun, may_end = tmp_path / "events.jsonl", asyncio.Event(), threading.Event()
    file, loop = EventFile(str(path)), asyncio.get_running_loop()
    write = file._write

    def write_slowly(*given):
        loop.call_soon_threadsafe(begun.set)
        may_end.wait(PATIENCE_S)
        return write(*given)

    monkeypatch.setattr(file, "_write", write_slowly)
    async with asyncio.timeout(PATIENCE_S), running(file):
        happen(file, 1)
        await begun.wait()
        happen(file, 2)
        loop.call_later(0.01, may_end.set)  # the server ends before that
    assert numbers_in(path) == [1, 2]


async def test_waiting_events_are_bounded(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(event_file, "MOST_WAITING_BYTES", 1_000)
    caplog.set_level("INFO")
    path = tmp_path / "events.jsonl"
    file = EventFile(str(path))
    with full_disk(at_bytes=1):
        happen(file, *range(1, 100))
        await file.flush()
    await file.flush()
    written = numbers_in(path)
    assert written == list(range(1, len(written) + 1)) and 1 < len(written) < 20
    assert words.events_left_out(str(path), 99 - len(written)) in caplog.text
    await file.close()


def test_an_impossible_path_is_reported_at_once(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        EventFile(str(tmp_path / "nowhere" / "events.jsonl"))
