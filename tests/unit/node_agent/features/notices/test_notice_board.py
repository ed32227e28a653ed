"""Notices to workers: for which workers the agent waits, and which ones it signals."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
from rdzv_protocol.queries import Notice, Noticed

from node_agent import in_worker
from node_agent.features.notices import words
from node_agent.features.notices.notice_board import HANDLER_INTERVAL_S, NoticeBoard
from node_agent.kernel.processes.temp_dir import TempDir
from tests.support.process_info import until
from tests.support.time_namespaces import in_time_namespace, need_time_namespaces

HOUR_S = 3600.0
NOTICE = Notice(number=1, round=1, remaining_s=500.0, source="node_drained", node_id="a", reason="drained")


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = lambda name: str(path / name)


def started(code: str) -> "subprocess.Popen[bytes]":
    """Start a worker, and wait until it is ready."""
    worker = subprocess.Popen(
        (sys.executable, "-c", f"import signal; {code}"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert worker.stdout and worker.stdout.readline()
    return worker


def listens(board: NoticeBoard, rank: int = 0, text: str = "") -> None:
    """Make the file with which a worker shows that it listens. A text acknowledges the notice."""
    Path(board.environment(rank)["NODE_AGENT_NOTICE_ACK"]).write_text(text)


@pytest.mark.parametrize("signal_name", [None, "SIGUSR2"])
async def test_a_worker_that_has_ended_is_waited_for_no_longer(tmp_path: Path, signal_name: str | None) -> None:
    """For example, a worker saves and exits 0 instead of acknowledging the notice."""
    board = NoticeBoard(cast(TempDir, Folder(tmp_path)), 1, 1, signal_name)
    listens(board)
    told: list[Any] = []
    assert await board.give(NOTICE, dict, told.append) == Noticed(listening=1, acknowledged=1)
    assert not told and not await board.is_acknowledged()


async def test_a_worker_that_does_not_handle_the_signal_does_not_get_it_and_is_not_waited_for(tmp_path: Path) -> None:
    """For example, it still imports torch. The signal would end it, and so the workers of all nodes."""
    board = NoticeBoard(cast(TempDir, Folder(tmp_path)), 1, 1, "SIGUSR2")
    told: list[Any] = []
    with started("print(flush=True); input()") as worker:
        assert await board.give(NOTICE, lambda: {0: worker.pid}, told.append) == Noticed(listening=0, acknowledged=0)
        worker.communicate(b"\n")
    assert worker.returncode == 0
    assert told == [words.signal_not_handled("SIGUSR2", [0])]


async def test_a_worker_that_handles_the_signal_gets_it_and_is_waited_for(tmp_path: Path) -> None:
    board = NoticeBoard(cast(TempDir, Folder(tmp_path)), 1, 1, "SIGUSR2")
    acknowledge = f"lambda *_: open({board.environment(0)['NODE_AGENT_NOTICE_ACK']!r}, 'w').write('saved')"
    told: list[Any] = []
    with started(f"signal.signal(signal.SIGUSR2, {acknowledge}); print(flush=True); input()") as worker:
        assert await board.give(NOTICE, lambda: {0: worker.pid}, told.append) == Noticed(listening=1, acknowledged=1)
        worker.communicate(b"\n")
    assert not told


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_a_worker_that_handles_the_signal_later_gets_it_then(tmp_path: Path, is_stopping: bool) -> None:
    """The workers of other nodes may still save. It gets none once it is about to be stopped."""
    board = NoticeBoard(cast(TempDir, Folder(tmp_path)), 1, 1, "SIGUSR2")
    handles = "signal.signal(signal.SIGUSR2, lambda *_: print('saves', flush=True)); print('handles', flush=True)"
    with started(f"print(flush=True); input(); {handles}; input()") as worker:
        assert worker.stdin and worker.stdout
        await board.give(NOTICE, lambda: {0: worker.pid}, lambda problem: None)
        if is_stopping:
            board.stop_signalling()
        worker.stdin.write(b"\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == b"handles\n"
        if is_stopping:
            await asyncio.sleep(2 * HANDLER_INTERVAL_S)  # until after the next look, which there must not be
        else:
            assert await asyncio.to_thread(worker.stdout.readline) == b"saves\n"
        out, _ = worker.communicate(b"\n")
    assert not out


async def test_the_notice_waits_for_a_worker_that_handles_the_signal_while_others_save(tmp_path: Path) -> None:
    board = NoticeBoard(cast(TempDir, Folder(tmp_path)), 1, 2, "SIGUSR2")
    listens(board, 1)
    acknowledgement = Path(board.environment(0)["NODE_AGENT_NOTICE_ACK"])
    acknowledge = f"lambda *_: open({str(acknowledgement)!r}, 'w').write('saved')"
    handles = f"print(flush=True); input(); signal.signal(signal.SIGUSR2, {acknowledge}); input()"
    with started(handles) as worker, started("print(flush=True); input()") as other:
        assert worker.stdin
        told: list[Any] = []
        pids = {0: worker.pid, 1: other.pid}
        given = asyncio.create_task(board.give(NOTICE, lambda: pids, told.append))
        await until(lambda: told)
        assert told == [words.signal_not_handled("SIGUSR2", [0, 1])]
        worker.stdin.write(b"\n")
        worker.stdin.flush()
        await until(lambda: acknowledgement.exists() and acknowledgement.read_text())
        listens(board, 1, "saved")
        assert await given == Noticed(listening=2, acknowledged=2)
        for each in (worker, other):
            each.communicate(b"\n")


async def test_the_board_knows_which_workers_have_saved(tmp_path: Path) -> None:
    """A worker that has ended without an acknowledgement has not saved. One may save and end between two looks."""
    board = NoticeBoard(cast(TempDir, Folder(tmp_path)), 1, 3)
    listens(board, 0, "saved")
    listens(board, 1)
    assert not await board.has_saved(0), "there was no notice"
    await board.give(NOTICE, dict, lambda problem: None)
    assert [await board.has_saved(rank) for rank in range(3)] == [True, False, False]
    listens(board, 1, "saved")
    assert await board.has_saved(1)


async def test_a_wall_clock_that_jumps_does_not_change_the_time_that_a_worker_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may leave out its last save if too little time seems to remain."""
    board = NoticeBoard(cast(TempDir, Folder(tmp_path)), 1, 1, None)
    await board.give(NOTICE, dict, lambda problem: None)
    for name, value in board.environment(0).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(in_worker, "_listens", False)
    true_time = time.time
    for jump_s in (HOUR_S, -HOUR_S):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: true_time() + jump_s)
        given = in_worker.notice()
        assert given and NOTICE.remaining_s / 2 < given.remaining_s <= NOTICE.remaining_s


@need_time_namespaces
@pytest.mark.parametrize("ahead_s", [-9, 100_000])
async def test_a_worker_in_a_time_namespace_knows_the_time_that_it_has_left(tmp_path: Path, ahead_s: int) -> None:
    board = NoticeBoard(cast(TempDir, Folder(tmp_path)), 1, 1, None)
    await board.give(NOTICE, dict, lambda problem: None)
    script = "from node_agent import notice; print(notice().remaining_s)"
    inside = in_time_namespace(ahead_s, sys.executable, "-c", script)
    worker = await asyncio.create_subprocess_exec(
        *inside, env={**os.environ, **board.environment(0)}, stdout=subprocess.PIPE
    )
    left_s = float((await worker.communicate())[0])
    assert NOTICE.remaining_s / 2 < left_s <= NOTICE.remaining_s
