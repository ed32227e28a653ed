"""torch's file timer on a real pipe: an expired timer ends its worker, and only that."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent.features import file_timer, words
from node_agent.features.file_timer import FileTimer, open_pipe
from tests.support.changes import PATIENCE_S
from tests.support.message_search import pattern
from tests.support.process_info import until

LONG_AGO, SOON_ENOUGH, PAUSED_S = 0.0, 0.05, 2.0


class Served:
    """A timer, a process that it may end, and its log lines."""

    def __init__(self, path: Path, worker: asyncio.subprocess.Process) -> None:
        self.worker = worker
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.timer = FileTimer(str(path), open_pipe(str(path)), self.said.put_nowait, lambda pid: pid == worker.pid)

    def write(self, line: str) -> None:
        with open(self.timer.path, "w") as pipe:  # as torch's client does, for each request
            pipe.write(line + "\n")

    def ask(self, expires_at: float, *, scope: str = "step", pid: int | None = None, signum: int = 9) -> None:
        pid = self.worker.pid if pid is None else pid
        request = {"version": 1, "pid": pid, "scope_id": scope, "expiration_time": expires_at, "signal": signum}
        self.write(json.dumps(request))

    async def hears(self) -> str:
        async with asyncio.timeout(PATIENCE_S):
            return await self.said.get()

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.worker.wait()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    served = Served(tmp_path / "timer", await asyncio.create_subprocess_exec("sleep", "1000"))
    yield served
    served.timer.close()
    await until(lambda: os.listdir(tmp_path) == [])
    if served.worker.returncode is None:
        served.worker.kill()
        await served.worker.wait()


async def test_a_worker_that_misses_its_deadline_gets_the_signal_it_asked_for(served):
    served.ask(time.time() + SOON_ENOUGH, signum=15)
    assert await served.exit_code() == -15
    assert await served.hears() == words.timer_signals("step", served.worker.pid, "SIGTERM")


async def test_a_released_or_reset_timer_no_longer_counts(served):
    served.ask(time.time() + 1000, scope="released")
    served.ask(-1, scope="released")
    served.ask(time.time() + 1000, scope="anew")
    served.ask(LONG_AGO, scope="anew", signum=0)
    assert await served.hears() == words.timer_expired("anew", served.worker.pid)
    assert served.worker.returncode is None


async def test_workers_survive_a_pause_of_the_whole_machine(served, monkeypatch):
    """Such as a virtual machine that was paused: the worker had no time for its work either."""
    monkeypatch.setattr(file_timer, "LATE_S", 0.25)
    served.ask(time.time() + PAUSED_S / 2, scope="paused")
    served.ask(LONG_AGO, scope="read", signum=0)
    assert await served.hears() == words.timer_expired("read", served.worker.pid)
    time.sleep(PAUSED_S)  # noqa: ASYNC251 - the agent stands still
    await asyncio.sleep(SOON_ENOUGH)  # the agent notices that the timer has expired
    served.ask(-1, scope="paused")
    served.ask(LONG_AGO, scope="released", signum=0)
    assert await served.hears() == words.timer_expired("released", served.worker.pid)
    assert served.worker.returncode is None
    served.ask(time.time() + SOON_ENOUGH)
    assert await served.exit_code() == -9


async def test_only_workers_are_signalled(served):
    served.ask(LONG_AGO, pid=os.getpid())
    served.ask(LONG_AGO, signum=0)
    assert await served.hears() == words.timer_expired("step", served.worker.pid)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense", "{}", "[1]", '{"pid": "x", "scope_id": 1}', "null",
        '{"pid": 2147483648, "scope_id": "step", "expiration_time": 0.0, "signal": 9}',
        '{"pid": 1, "scope_id": "step", "expiration_time": 0.0, "signal": 2147483648}',
    ],
)  # fmt: skip
async def test_an_invalid_timer_request_is_logged_and_ignored(served, line):
    served.write(line)
    assert await served.hears() == words.no_timer_request(served.timer.path, line.encode())
    served.ask(LONG_AGO)
    assert await served.exit_code() == -9


async def test_timers_end_with_their_workers(served):
    served.ask(time.time() + SOON_ENOUGH, scope="first")
    served.ask(LONG_AGO, scope="mark", signum=0)
    await served.hears()
    served.timer.clear()
    assert served.timer._timers == {}


async def test_an_old_pipe_is_replaced_and_anything_else_left_alone(tmp_path):
    path = tmp_path / "timer"
    os.mkfifo(path)
    FileTimer(str(path), open_pipe(str(path)), print, lambda pid: True).close()
    await until(lambda: not path.exists())
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=pattern(words.no_pipe, path=str(path))):
        open_pipe(str(path))
    assert path.read_text() == "mine"
