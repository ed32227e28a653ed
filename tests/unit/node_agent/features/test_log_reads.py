"""Tail of a worker's log file for an operator: its end, bounded, and only files in the run's folder."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.messages import AnswerRequest
from rdzv_protocol.queries import LOG_BYTES, LogTail, Refused, TailLog

from node_agent.features import log_reads
from node_agent.features.log_reads import feature, words
from node_agent.features.log_reads.feature import MOST_READS, LogReads
from node_agent.kernel.core.log_options import LogOptions
from node_agent.kernel.feature import StartedWorkers
from node_agent.kernel.output.logs import RoundLogs
from node_agent.kernel.output.routing import Route, Routing, WorkerRoutes
from tests.support.threads import refuse_threads
from tests.unit.node_agent.story import an_assignment

RANK = 3
"""Rank of the local worker 1. Only its stderr goes to a file."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "run"
    folder.mkdir()
    return folder / "stderr.log"


def started(log: Path, folder: str | None = None) -> StartedWorkers:
    worker = WorkerRoutes(stderr=Route(str(log)))
    routing: Any = Routing([WorkerRoutes(), worker, WorkerRoutes(), WorkerRoutes()])
    nothing: Any = None
    logs = RoundLogs(routing, LogOptions(), nothing, nothing, nothing)
    log_folder = os.path.realpath(log.parent) if folder is None else folder
    return StartedWorkers(an_assignment(1), nothing, logs, log_folder, nothing)


def reader(log: Path, folder: str | None = None, *, is_allowed: bool = True) -> LogReads:
    """Return the feature of an agent whose workers have been started."""
    config = SimpleNamespace(join=SimpleNamespace(node_id="a"))
    kernel: Any = SimpleNamespace(config=config, started=started(log, folder))
    return LogReads(kernel, log_reads.LogReads(allow_log_reads=is_allowed))


async def tail(log: Path, *, folder: str | None = None, **wanted: Any) -> LogTail | Refused:
    given = {"number": 1, "round": 1, "remaining_s": 5.0, "rank": RANK, "stream": "stderr", "lines": 2}
    async with asyncio.timeout(10):
        return await reader(log, folder).answer(TailLog(**(given | wanted)))


@pytest.mark.parametrize(
    ("written", "lines", "shown"),
    [
        (b"one\ntwo\nthree\n", 2, "two\nthree\n"),
        (b"one\ntwo\nunfinished", 2, "two\nunfinished"),
        (b"one\n\n\n", 2, "\n\n"),
        (b"one\ntwo\n", 9, "one\ntwo\n"),
        (b"", 2, ""),
        (b"50%\r60%\rloss \xff 1\n", 2, "50%\r60%\rloss \ufffd 1\n"),
    ],
    ids=["last lines", "unfinished", "empty lines", "fewer", "empty", "no text"],
)
async def test_the_last_lines_are_shown_as_they_were_written(log, written, lines, shown):
    log.write_bytes(written)
    assert await tail(log, lines=lines) == LogTail(path=str(log), text=shown, offset=len(written))


async def test_the_next_part_is_requested_by_its_offset_and_characters_stay_whole(log):
    log.write_bytes(b"one\n\xc3")
    first = await tail(log)
    assert (first.text, first.offset) == ("one\n", 4)
    with log.open("ab") as file:
        file.write(b"\xa4\n")
    assert await tail(log, offset=first.offset) == LogTail(path=str(log), text="\u00e4\n", offset=7)
    log.write_bytes(b"anew")
    assert (await tail(log, offset=7)).text == "anew"


@pytest.mark.parametrize("wanted", [{"lines": 1000}, {"offset": 0}], ids=["lines", "offset"])
@pytest.mark.parametrize("line", [b"\xff" * 999 + b"\n", b"x" * 999 + b"\n"], ids=["no text", "text"])
async def test_one_answer_fits_into_a_message_and_says_that_there_is_more(log, line, wanted):
    log.write_bytes(line * 1_000)
    found = await tail(log, **wanted)
    assert found.is_cut and found.offset == 1_000_000
    assert len(found.text) <= LOG_BYTES and len(found.text) % 1_000 == 0
    answer = AnswerRequest(run_id="r", agent_id="a", number=1, answer=found)
    assert decode(AnswerRequest, encode(answer)) == answer


def links_to_a_secret(log: Path) -> None:
    (log.parent.parent / "secret").write_text("token")
    log.symlink_to(log.parent.parent / "secret")


def lies_behind_a_link(log: Path) -> None:
    elsewhere = log.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / log.name).write_text("token")
    log.parent.rmdir()
    log.parent.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "becomes",
    [links_to_a_secret, lies_behind_a_link, lambda log: os.mkfifo(log), lambda log: log.mkdir()],
    ids=["link", "folder is a link", "pipe", "folder"],
)
async def test_only_files_in_the_runs_own_folder_are_shown(log, becomes: Callable[[Path], object]):
    folder = str(log.parent)
    becomes(log)
    found = await tail(log, folder=folder)
    assert found == Refused(reason=words.not_in_folder("a", str(log)))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"stream": "stdout"}, words.no_file("a", 3, "stdout", other_has_file=True)),
        ({"rank": 2}, words.no_file("a", 2, "stderr", other_has_file=False)),
        ({"rank": 6}, words.no_such_worker("a", 6, 1)),
        ({"round": 2}, words.no_such_worker("a", 3, 2)),
        ({"folder": ""}, words.place_unknown("a")),
        ({}, words.unreadable("a", "{log}", "No such file or directory")),
    ],
    ids=["other stream", "console", "rank", "round", "plug-in", "removed"],
)
async def test_a_log_that_cannot_be_shown_is_refused_with_the_reason(log, wanted, reason):
    assert await tail(log, **wanted) == Refused(reason=reason.format(log=log))


async def test_logs_are_not_shown_without_permission_or_workers(log):
    query = TailLog(number=1, round=1, remaining_s=5.0, rank=RANK, stream="stderr", lines=2)
    assert await reader(log, is_allowed=False).answer(query) == Refused(reason=words.not_allowed("a"))
    waiting = reader(log)
    waiting.kernel.started = None
    assert await waiting.answer(query) == Refused(reason=words.no_worker_yet("a"))


async def test_a_disk_that_hangs_does_not_block_the_agent_and_takes_few_threads(log, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(feature, "_tail", lambda *_: released.wait() and Refused(reason="late"))
    logs = reader(log)
    query = TailLog(number=1, round=1, remaining_s=5.0, rank=RANK, stream="stderr", lines=2)
    reads = [asyncio.create_task(logs.answer(query)) for _ in range(MOST_READS)]
    await asyncio.sleep(0)
    assert (await logs.answer(query)).reason == words.still_reading("a")
    reads[0].cancel()
    released.set()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*reads[1:]) == [Refused(reason="late")] * (MOST_READS - 1)


async def test_a_read_is_refused_if_no_thread_can_be_started(log, monkeypatch):
    """A disk that hangs must not stop the agent."""
    log.write_bytes(b"one\n")
    logs = reader(log)
    query = TailLog(number=1, round=1, remaining_s=5.0, rank=RANK, stream="stderr", lines=2)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        for _ in range(MOST_READS + 1):
            assert await logs.answer(query) == Refused(reason=words.no_thread("a"))
    assert isinstance(await logs.answer(query), LogTail)
