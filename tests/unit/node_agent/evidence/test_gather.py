"""Evidence of real processes that hang: gathered in time, whatever state they are in."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from rdzv_protocol.evidence import Evidence, ProcessState, StackGroup

from node_agent.evidence.gather import Target, gather
from tests.support.process_info import children, is_running, state, until

LIMIT_S = 20.0
WAITS = """
import time
def wait_for_batch():
    print("up", flush=True)
    time.sleep(1000)
wait_for_batch()
"""
LOADS = WAITS.replace("wait_for_batch", "load")
SLEEPS_UNINTERRUPTIBLY = """
import ctypes, time
CLONE_VFORK, SIGCHLD, SYS_CLONE = 0x4000, 17, {"x86_64": 56, "aarch64": 220}[__import__("os").uname().machine]
def read_from_disk():
    print("up", flush=True)
    if ctypes.CDLL(None).syscall(SYS_CLONE, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0:
        time.sleep(1000)
read_from_disk()
"""


class Node:
    """Workers of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = dict(os.environ)
        self._processes: list[asyncio.subprocess.Process] = []
        self._scripts: dict[str, Path] = {}

    async def start(self, code: str, **environment: str) -> int:
        """Pid of a worker that is where it will stay."""
        script = self._scripts.setdefault(code, self.folder / f"train{len(self._scripts)}.py")
        script.write_text(code)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), stdout=asyncio.subprocess.PIPE, env={**os.environ, **environment},
            start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        assert process.stdout
        assert await process.stdout.readline() == b"up\n"
        return process.pid

    async def examine(
        self, *pids: int, limit_s: float = LIMIT_S, variables: Mapping[str, str] | None = None
    ) -> Evidence:
        targets = [Target(rank=rank, pid=pid, environment=variables or {}) for rank, pid in enumerate(pids)]
        return await gather(targets, str(self.folder / "evidence"), [sys.executable], self.environment, limit_s)

    def kept(self, name: str) -> str:
        return (self.folder / "evidence" / name).read_text()

    def py_spy(self, script: str) -> None:
        """A program of this name that is found instead of the real one."""
        program = self.folder / "bin" / "py-spy"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        self.environment["PATH"] = f"{program.parent}:{os.environ['PATH']}"

    async def end(self) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.end()


def functions(group: StackGroup) -> Sequence[str]:
    return [frame.function for frame in group.frames]


async def test_workers_at_one_place_are_one_group_and_all_of_it_is_in_files(node: Node) -> None:
    pids = [await node.start(code) for code in (WAITS, LOADS, LOADS)]
    evidence = await node.examine(*pids)
    assert evidence.problems == ()
    assert [group.ranks for group in evidence.groups] == [(0,), (1, 2)]
    alone = evidence.groups[0]
    assert (functions(alone), alone.state) == (["wait_for_batch", "<module>"], ProcessState.ALIVE)
    assert (alone.frames[0].file, alone.frames[0].line) == (str(node.folder / "train0.py"), 5)
    assert evidence.folder == str(node.folder / "evidence")
    assert 'train0.py", line 5 in wait_for_batch' in node.kept("rank_0.stacks.txt")
    assert "state S, wchan " in node.kept("rank_0.kernel.txt")


async def test_a_stopped_worker_and_one_in_uninterruptible_sleep_hold_nobody_up(node: Node) -> None:
    stopped, stuck, well = [await node.start(code) for code in (WAITS, SLEEPS_UNINTERRUPTIBLY, WAITS)]
    os.kill(stopped, signal.SIGSTOP)
    await until(lambda: state(stopped) == "T" and state(stuck) == "D")
    evidence = await node.examine(stopped, stuck, well)
    found = {group.ranks[0]: (group.state, functions(group)[0]) for group in evidence.groups}
    assert found == {
        0: (ProcessState.STOPPED, "wait_for_batch"),
        1: (ProcessState.UNINTERRUPTIBLE, "read_from_disk"),
        2: (ProcessState.ALIVE, "wait_for_batch"),
    }
    assert evidence.took_s < LIMIT_S / 2
    assert (state(stopped), state(stuck)) == ("T", "D")  # looking has changed nothing


async def test_a_worker_that_is_gone_has_ended(node: Node) -> None:
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    evidence = await node.examine(gone.pid)
    assert [(group.ranks, group.state, group.frames) for group in evidence.groups] == [((0,), ProcessState.ENDED, ())]


async def test_a_program_that_is_not_python_is_said_to_be_none(node: Node) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    node._processes.append(process)
    evidence = await node.examine(process.pid)
    assert [(group.state, group.frames) for group in evidence.groups] == [(ProcessState.ALIVE, ())]
    assert evidence.problems[0].startswith("rank 0: no Python stack: py-spy: Failed to find")


async def test_without_leave_to_read_its_memory_the_reason_is_told_as_py_spy_says_it(node: Node) -> None:
    node.py_spy("echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    evidence = await node.examine(await node.start(WAITS))
    assert [functions(group) for group in evidence.groups] == [[]]
    assert evidence.problems == (
        "rank 0: no Python stack: py-spy: Permission Denied: Try running again with elevated permissions",
    )


async def test_what_hangs_is_given_up_in_time_and_what_was_found_till_then_is_kept(node: Node) -> None:
    node.py_spy("exec sleep 1000")
    pid, ticks = await node.start(WAITS), 0
    before = children(os.getpid())

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    evidence = await node.examine(pid, limit_s=3.0)
    ticking.cancel()
    assert evidence.took_s < 3.0
    assert ticks > 10  # the loop went on
    assert [(group.state, group.frames) for group in evidence.groups] == [(ProcessState.ALIVE, ())]
    assert evidence.problems
    await until(lambda: not any(is_running(child) for child in children(os.getpid()) - before))


async def test_files_that_cannot_be_written_lose_nothing_else(node: Node) -> None:
    (node.folder / "evidence").write_text("in the way")
    evidence = await node.examine(await node.start(WAITS))
    assert functions(evidence.groups[0])[0] == "wait_for_batch"
    assert evidence.folder == ""
    assert evidence.problems == (f"{node.folder}/evidence: File exists: the files of the evidence are missing",)
