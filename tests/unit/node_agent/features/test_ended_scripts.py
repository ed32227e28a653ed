"""Workers whose script an exception has ended, while something keeps their process alive."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.messages import EndedScript, PollRequest

from node_agent.features import ended_scripts, words
from node_agent.features.ended_scripts import EndedScripts
from node_agent.kernel.core.command import Command
from node_agent.kernel.core.log_options import LogOptions, Std
from node_agent.kernel.workers.group import Worker
from tests.support.message_search import has_message
from tests.support.process_info import until
from tests.unit.node_agent.rig import Rig, rig
from tests.unit.node_agent.story import start

MARKS = """
import os, sys, threading, traceback
def mark(kind, error, frames):
    for line in "".join(traceback.format_exception(kind, error, frames)).splitlines():
        print("[rank0]: " + line, file=sys.stderr)
sys.excepthook = mark
"""
"""Beginning of a script that marks uncaught exceptions like torch."""
RAISES = """
threading.Thread(target=input).start()
raise ValueError('boom')
"""
POOL = """
from concurrent.futures import ThreadPoolExecutor
ThreadPoolExecutor().submit(input)
raise ValueError('boom')
"""
CAUGHT = """
try: 1 / 0
except ArithmeticError: mark(*sys.exc_info())
input()
"""
CAUGHT_AT_ONCE = """
lines = "Traceback (most recent call last):", '  File "train.py", line 1, in <module>', "ValueError: boom"
os.write(2, "".join(f"[rank0]: {line}\\n" for line in lines).encode())
input()
"""
"""The agent reads all of its output at one time."""
PRINTED = """
threading.Thread(target=input).start()
try: 1 / 0
except ArithmeticError: traceback.print_exc()
"""
FORKED = """
if os.fork() == 0: raise ValueError('boom')
os.wait()
input()
"""
OF_THREAD = """
threading.excepthook = lambda raised: mark(*raised[:3])
threading.Thread(target=int, args='x').start()
input()
"""
OF_CHILD = """
threading.Thread(target=input).start()
for line in ("Traceback (most recent call last):", '  File "child.py", line 1, in <module>', "ValueError: boom"):
    print("[rank7]: " + line, file=sys.stderr)
"""
CONTINUED = """
threading.Thread(target=input).start()
if os.fork() == 0: raise ValueError('boom')
os.wait()
print("evaluated: 1 Error: none", file=sys.stderr)
"""


@asynccontextmanager
async def agent_with(script: str, path: Path, monkeypatch: pytest.MonkeyPatch, **config: Any) -> AsyncIterator[Rig]:
    """Yield an agent whose worker runs this script, and whose every silence counts. Its stdin never ends."""
    monkeypatch.setattr(ended_scripts, "SILENT_S", 0.0)
    path.write_text(MARKS + script)  # noqa: ASYNC240
    reads, writes = os.pipe()
    command = Command(("sh", "-c", f"exec {sys.executable} -u {path} < /proc/{os.getpid()}/fd/{reads}"))
    try:
        async with rig(command=command, **config) as agent:
            await agent.server.answers(start(1, local_world_size=1, group_rank=0, first_rank=0))
            await until(lambda: agent.pids)
            yield agent
    finally:
        os.close(reads)
        os.close(writes)


async def looked(agent: Rig) -> EndedScript | None:
    """Return the report of the poll after a look that has ended."""
    feature = agent.feature(EndedScripts)
    _polled(agent)
    await asyncio.gather(*feature._looks)
    return _polled(agent)


async def looked_at(agent: Rig, now: float) -> EndedScript | None:
    """Poll at this time and return the report of a second poll, after a look that has ended."""
    feature, request = agent.feature(EndedScripts), PollRequest(run_id="r", agent_id="a", revision=1)
    feature.polling(request, now)
    await asyncio.gather(*feature._looks)
    return feature.polling(request, now).ended_script


async def the_worker(agent: Rig) -> Worker:
    """Return the worker, once its script has ended with an exception."""
    assert agent.agent.started
    (worker,) = agent.agent.started.group.workers
    async with asyncio.timeout(30.0):
        while not await agent.feature(EndedScripts)._waits_to_exit(worker):
            pass
    return worker


def _polled(agent: Rig) -> Any:
    return agent.agent.filled(PollRequest(run_id="r", agent_id="a", revision=1)).ended_script


def stderr(agent: Rig) -> str:
    assert agent.agent.started
    return "\n".join(line for worker in agent.agent.started.group.workers for line in worker.stderr_tail)


@pytest.mark.parametrize("script", [RAISES, POOL], ids=["thread", "pool"])
async def test_a_worker_that_has_raised_and_waits_to_exit_is_reported(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_with(script, tmp_path / "w.py", monkeypatch) as agent:
        async with asyncio.timeout(30.0):
            while not (found := await looked(agent)):
                pass
        assert found == EndedScript(round=1, rank=0, error="ValueError: boom")


@pytest.mark.parametrize("script", [CAUGHT, FORKED, OF_THREAD], ids=["caught", "forked", "thread"])
async def test_a_script_that_continues_is_not_reported(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_with(script, tmp_path / "w.py", monkeypatch) as agent:
        await until(lambda: "Error: " in stderr(agent))
        assert await looked(agent) is None


@pytest.mark.parametrize("script", [PRINTED, OF_CHILD, CONTINUED], ids=["printed", "child", "continued"])
async def test_a_script_that_has_ended_without_its_own_exception_is_not_reported(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_with(script, tmp_path / "w.py", monkeypatch) as agent:
        await until(lambda: "Error: " in stderr(agent))
        feature = agent.feature(EndedScripts)
        assert agent.agent.started
        (worker,) = agent.agent.started.group.workers
        async with asyncio.timeout(30.0):
            while not await feature._waits_to_exit(worker):
                pass
        assert await looked(agent) is None


async def test_output_takes_the_report_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with agent_with(RAISES, tmp_path / "w.py", monkeypatch) as agent:
        async with asyncio.timeout(30.0):
            while not await looked(agent):
                pass
        assert agent.agent.started
        (worker,) = agent.agent.started.group.workers
        worker._streams[0].last_read_at = asyncio.get_running_loop().time()
        assert _polled(agent) is None


async def test_later_output_on_stdout_shows_that_a_script_has_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child may have written the exception. Then the script has ended normally."""
    async with agent_with(RAISES, tmp_path / "w.py", monkeypatch) as agent:
        worker = await the_worker(agent)
        await until(lambda: "Error: " in stderr(agent))
        stdout, raised_at = worker._streams[0], worker._streams[1].last_read_at
        assert raised_at and not worker.has_both_streams
        stdout.last_read_at = raised_at + 3.0
        assert await looked_at(agent, raised_at + 60.0) is None
        stdout.last_read_at = raised_at
        assert await looked_at(agent, raised_at + 120.0)


@pytest.mark.parametrize("redirects", [Std.OUT, Std.ERR, Std.ALL])
async def test_a_worker_that_writes_into_files_is_not_reported(
    redirects: Std, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent does not see when it writes again."""
    logs = LogOptions(log_dir=str(tmp_path / "logs"), redirects=redirects)
    async with agent_with(RAISES, tmp_path / "w.py", monkeypatch, logs=logs) as agent:
        await the_worker(agent)
        if redirects is Std.OUT:
            await until(lambda: "Error: " in stderr(agent))
        now = asyncio.get_running_loop().time()
        assert [await looked_at(agent, now + later_s) for later_s in (60.0, 120.0, 180.0)] == [None] * 3


async def test_a_silent_worker_that_continues_is_examined_ever_less_often_until_it_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    async def continues(worker: Worker) -> bool:
        looks.append(after_s)
        return False

    async with agent_with(CAUGHT_AT_ONCE, tmp_path / "w.py", monkeypatch) as agent:
        await until(lambda: "Error: " in stderr(agent))
        assert agent.agent.started
        (worker,) = agent.agent.started.group.workers
        monkeypatch.setattr(ended_scripts, "SILENT_S", 30.0)
        monkeypatch.setattr(agent.feature(EndedScripts), "_waits_to_exit", continues)
        begin = worker.last_output_at
        for after_s in range(30, 3601, 30):
            await looked_at(agent, begin + after_s)
        assert looks == [30, 60, 120, 240, 480, 960, 1560, 2160, 2760, 3360]
        looks.clear()
        worker._streams[1].last_read_at = begin + 3600.0
        for after_s in range(3630, 3721, 30):
            await looked_at(agent, begin + after_s)
        assert looks == [3630, 3660, 3720]


async def test_an_error_of_the_search_is_logged_and_the_worker_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> str:
        raise RuntimeError("oops")

    monkeypatch.setattr(ended_scripts, "_uncaught_error", fails)
    async with agent_with(RAISES, tmp_path / "w.py", monkeypatch) as agent:
        assert await looked(agent) is None
        assert has_message("\n".join(agent.console.lines), words.ended_scripts_unknown)
        assert agent.pids
