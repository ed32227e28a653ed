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
async def agent_with(script: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """Yield an agent whose worker runs this script, and whose every silence counts. Its stdin never ends."""
    monkeypatch.setattr(ended_scripts, "SILENT_S", 0.0)
    path.write_text(MARKS + script)  # noqa: ASYNC240
    reads, writes = os.pipe()
    command = Command(("sh", "-c", f"exec {sys.executable} -u {path} < /proc/{os.getpid()}/fd/{reads}"))
    try:
        async with rig(command=command) as agent:
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


async def test_an_error_of_the_search_is_logged_and_the_worker_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(worker: object) -> tuple[str, ...]:
        raise RuntimeError("oops")

    monkeypatch.setattr(ended_scripts, "_last_lines", fails)
    async with agent_with(RAISES, tmp_path / "w.py", monkeypatch) as agent:
        assert await looked(agent) is None
        assert has_message("\n".join(agent.console.lines), words.ended_scripts_unknown)
        assert agent.pids
