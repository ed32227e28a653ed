"""Evidence of real processes that hang is collected in time, in any state of the processes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from rdzv_protocol.evidence import Evidence, ProcessState, StackGroup

from node_agent.features.evidence import STACKS_FILE, words
from node_agent.features.evidence.examine_helper import main_thread, process_state
from node_agent.features.evidence.gather import Target, gather
from node_agent.features.warm.pool import WarmPool, WarmProcess
from node_agent.kernel.core.command import Command
from tests.support import leaderless
from tests.support.message_search import pattern
from tests.support.process_info import children, ended, is_running, state, subreaper, until

LIMIT_S = 20.0
Ras = tuple[str, dict[str, str]]
WAITS = """
import time
def wait_for_batch():
    print("up", flush=True)
    time.sleep(1000)
wait_for_batch()
"""
LOADS = WAITS.replace("wait_for_batch", "load")
RAISED = ('  File "train.py", line 7, in <module>', '    raise ValueError("boom")', "ValueError: boom")
RAISES = """
import sys, threading, time
def serve():
    while sys._current_frames()[threading.main_thread().ident].f_code.co_name != "_shutdown":
        time.sleep(0.001)
    print("up", flush=True)
    time.sleep(1000)
threading.Thread(target=serve).start()
"""
LEAVES = """
import atexit, time
def save_last():
    print("up", flush=True)
    time.sleep(1000)
atexit.register(save_last)
raise ValueError("boom")
"""
DEEP = """
import time
def descend(left):
    if left:
        descend(left - 1)
    print("up", flush=True)
    time.sleep(1000)
descend(120)
"""
SLEEPS_UNINTERRUPTIBLY = """
import ctypes, time
CLONE_VFORK, SIGCHLD, SYS_CLONE = 0x4000, 17, {"x86_64": 56, "aarch64": 220}[__import__("os").uname().machine]
def read_from_disk():
    print("up", flush=True)
    if ctypes.CDLL(None).syscall(SYS_CLONE, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0:
        time.sleep(1000)
read_from_disk()
"""


NO_PY_SPY = "exit 1"
SIGNAL_OF_STACKS = "import signal; number = signal.SIGRTMIN + 11\n"
TAKES_THE_SIGNAL_OVER = f"{SIGNAL_OF_STACKS}signal.signal(number, lambda *_: print('mine', flush=True)){WAITS}"
GIVES_THE_SIGNAL_UP = f"{SIGNAL_OF_STACKS}import faulthandler; faulthandler.unregister(number){WAITS}"
CLOSES_ITS_FILES = f"import os; os.closerange(3, 1000); os.dup2(1, 200){WAITS}"
BLOCKS_THE_SIGNAL = f"{SIGNAL_OF_STACKS}signal.pthread_sigmask(signal.SIG_BLOCK, [number]){WAITS}"
IS_REPLACED = f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {WAITS!r}])"


RAS_STATUS = """\
NCCL version 2.27.3 compiled with CUDA 12.9

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1
"""
RAS = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), reuse_port=True)
print("up", flush=True)
while True:
    connection, _ = listener.accept()
    lines = connection.makefile("rwb", buffering=0)
    for line in lines:
        answer = ANSWERS[line.split()[0]]
        lines.write(answer)
        if line.startswith(b"VERBOSE"):
            break
    lines.close()
    connection.close()
"""
NCCL = {b"CLIENT": b"SERVER PROTOCOL 2\n", b"TIMEOUT": b"OK\n", b"VERBOSE": RAS_STATUS.encode()}
"""Answers of NCCL 2.27 by the first word of the request, as published by a user of its client."""


class Node:
    """Workers of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = dict(os.environ)
        self._processes: list[asyncio.subprocess.Process] = []
        self._scripts: dict[str, Path] = {}

    async def start(self, code: str, *words: str, **environment: str) -> int:
        """Return the pid of a worker that has reached its final place."""
        script = self._scripts.setdefault(code, self.folder / f"train{len(self._scripts)}.py")
        script.write_text(code)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), *words, stdout=asyncio.subprocess.PIPE, env={**os.environ, **environment},
            start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        assert process.stdout
        assert await process.stdout.readline() == b"up\n"
        return process.pid

    async def examine(self, *pids: int, limit_s: float = LIMIT_S) -> Evidence:
        targets = [Target(rank=rank, pid=pid, environment={}) for rank, pid in enumerate(pids)]
        return await gather(targets, str(self.folder / "evidence"), [sys.executable], self.environment, limit_s)

    def kept(self, name: str) -> str:
        return (self.folder / "evidence" / name).read_text()

    def py_spy(self, script: str) -> None:
        """Install a program of this name that is found instead of the real one."""
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


class WarmNode(Node):
    """Workers that are forked warm, on a node without py-spy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.py_spy(NO_PY_SPY)
        command = Command((sys.executable,), (f"{folder}/train${{local_rank}}.py",))
        self._pool = WarmPool(["json"], command, os.environ, 2, lambda _: None, [signal.SIGTERM])
        self._pids: list[int] = []

    async def start(self, code: str, **environment: str) -> int:
        async with asyncio.timeout(LIMIT_S):
            await self._pool.full()
        rank = len(self._pids)
        up = self.folder / f"up{rank}"
        (self.folder / f"train{rank}.py").write_text(code)
        with up.open("wb") as out:
            variables = {**os.environ, **environment, STACKS_FILE: self.stacks_file(rank)}
            process = self._pool.start_worker(rank, variables, (), out.fileno(), 2)
        assert isinstance(process, WarmProcess)
        self._pids.append(process.pid)
        await until(lambda: up.read_bytes() == b"up\n")
        return process.pid

    def stacks_file(self, rank: int) -> str:
        return f"{self.folder}/{rank}.stacks"

    async def examine_ranks(self) -> Evidence:
        targets = [
            Target(rank=rank, pid=pid, environment={STACKS_FILE: self.stacks_file(rank)})
            for rank, pid in enumerate(self._pids)
        ]
        return await gather(targets, str(self.folder / "evidence"), [sys.executable], self.environment, LIMIT_S)

    async def end(self) -> None:
        self._pool.close()
        for pid in self._pids:
            os.killpg(pid, signal.SIGKILL)
            await ended(pid)


@pytest.fixture
async def warm_node(tmp_path: Path) -> AsyncIterator[WarmNode]:
    with subreaper():
        node = WarmNode(tmp_path)
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


async def test_a_stopped_worker_and_one_in_uninterruptible_sleep_do_not_block_the_examination(node: Node) -> None:
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
    assert (state(stopped), state(stuck)) == ("T", "D")  # the examination has changed nothing


@pytest.mark.parametrize("to_file", [False, True])
async def test_a_worker_whose_main_thread_has_raised_shows_its_exception(node: Node, to_file: bool) -> None:
    file, lines = node.folder / "stderr.log", ("Traceback (most recent call last):", *RAISED)
    file.write_text("\n".join(lines))
    pid = await node.start(RAISES)
    target = Target(rank=3, pid=pid, stderr=() if to_file else lines, stderr_file=str(file) if to_file else "")
    evidence = await gather([target], f"{node.folder}/evidence", [sys.executable], node.environment, LIMIT_S)
    assert functions(evidence.groups[0])[-1] == "_shutdown"
    (error,) = evidence.errors
    assert (error.rank, error.error, error.traceback) == (3, "ValueError: boom", lines)


async def test_the_stack_of_an_exit_handler_has_no_module(node: Node) -> None:
    evidence = await node.examine(await node.start(LEAVES))
    assert functions(evidence.groups[0]) == ["save_last"]


async def test_the_stack_of_an_exit_handler_is_read_by_a_signal_too_and_a_cut_one_says_so(
    warm_node: WarmNode,
) -> None:
    for code in (LEAVES, DEEP):
        await warm_node.start(code)
    evidence = await warm_node.examine_ranks()
    assert evidence.problems == ()
    assert [functions(group)[-1] for group in evidence.groups] == ["save_last", "..."]
    assert evidence.groups[1].frames[-1].file == "<cut>"


def test_a_stack_that_may_be_another_threads_is_not_taken_for_the_main_threads() -> None:
    def thread(name: str, number: int | None) -> dict[str, object]:
        frames = [{"name": name, "filename": "train.py", "line": 1}]
        return {"os_thread_id": number, "thread_name": name, "frames": frames}

    assert main_thread([thread("Thread-1", 8), thread("MainThread", 7)], 7) == [("MainThread", "train.py", 1)]
    assert main_thread([thread("MainThread", None), thread("Thread-1", None)], 7) == [("MainThread", "train.py", 1)]
    assert main_thread([thread("?", None)], 7) == [("?", "train.py", 1)]
    for others in ([thread("MainThread", 8), thread("Thread-1", 9)], [thread("Thread-1", None), thread("?", None)]):
        with pytest.raises(ValueError, match=pattern(words.NO_MAIN_THREAD)):
            main_thread(others, 7)


async def test_a_worker_that_is_gone_has_ended(node: Node) -> None:
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    evidence = await node.examine(gone.pid)
    assert [(group.ranks, group.state, group.frames) for group in evidence.groups] == [((0,), ProcessState.ENDED, ())]


def test_a_worker_whose_main_thread_has_ended_runs_as_long_as_another_thread() -> None:
    with subprocess.Popen(leaderless.COMMAND) as process:
        leaderless.until_leaderless(process.pid)
        assert process_state(process.pid) == "alive"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_state(process.pid) == "ended"


async def test_a_program_that_is_not_python_is_recognized(node: Node) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    node._processes.append(process)
    evidence = await node.examine(process.pid)
    assert [(group.state, group.frames) for group in evidence.groups] == [(ProcessState.ALIVE, ())]
    assert evidence.problems[0].startswith(words.no_stack(0, [words.py_spy_failed("Failed to find")]))


async def test_without_permission_to_read_memory_py_spys_reason_is_shown(node: Node) -> None:
    node.py_spy("echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    evidence = await node.examine(await node.start(WAITS))
    assert [functions(group) for group in evidence.groups] == [[]]
    why = words.py_spy_failed("Permission Denied: Try running again with elevated permissions")
    assert evidence.problems == (words.no_stack(0, [why]),)


async def test_an_examination_that_hangs_ends_in_time_and_keeps_its_findings(node: Node) -> None:
    node.py_spy("exec sleep 1000")
    pid, ticks = await node.start(WAITS), 0
    before = children(os.getpid())

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    evidence = await node.examine(pid, limit_s=6.0)
    ticking.cancel()
    assert evidence.took_s < 100.0  # and not the 1,000 s of a hang
    assert ticks > 10  # the loop continued
    assert [(group.state, group.frames) for group in evidence.groups] == [(ProcessState.ALIVE, ())]
    assert evidence.problems
    await until(lambda: not any(is_running(child) for child in children(os.getpid()) - before))


async def test_if_files_cannot_be_written_everything_else_is_kept(node: Node) -> None:
    (node.folder / "evidence").write_text("in the way")
    evidence = await node.examine(await node.start(WAITS))
    assert functions(evidence.groups[0])[0] == "wait_for_batch"
    assert evidence.folder == ""
    assert evidence.problems == (words.files_missing(f"{node.folder}/evidence", "File exists"),)


async def test_without_py_spy_workers_that_were_forked_warm_write_their_stacks_upon_a_signal(
    warm_node: WarmNode,
) -> None:
    for code in (WAITS, LOADS):
        await warm_node.start(code)
    for _ in range(2):  # each time they are asked
        evidence = await warm_node.examine_ranks()
        assert evidence.problems == ()
        assert [functions(group)[:2] for group in evidence.groups] == [
            ["wait_for_batch", "<module>"],
            ["load", "<module>"],
        ]
        first = evidence.groups[0].frames[0]
        assert (first.file, first.line) == (str(warm_node.folder / "train0.py"), 5)
        assert warm_node.kept("rank_1.stacks.txt").count("in load\n") == 1


GONE, LATE = words.SIGNAL_NOT_CAUGHT, words.SIGNAL_NOT_ANSWERED


@pytest.mark.parametrize(
    ("code", "why"),
    [
        pytest.param(GIVES_THE_SIGNAL_UP, GONE, id="has given it up"),
        pytest.param(CLOSES_ITS_FILES, GONE, id="has closed its files"),
        pytest.param(IS_REPLACED, GONE, id="is another program by now"),
        pytest.param(TAKES_THE_SIGNAL_OVER, LATE, id="has taken it over"),
        pytest.param(BLOCKS_THE_SIGNAL, LATE, id="blocks it"),
    ],
)
async def test_the_signal_for_stacks_does_not_harm_a_worker(warm_node: WarmNode, code: str, why: str) -> None:
    pid = await warm_node.start(code)
    evidence = await warm_node.examine_ranks()
    assert [(group.state, group.frames) for group in evidence.groups] == [(ProcessState.ALIVE, ())]
    assert evidence.problems[0].startswith(words.no_stack(0, [words.py_spy_failed("")]))
    assert evidence.problems[0].endswith(f"; {why}")
    assert is_running(pid)


async def test_a_warm_worker_that_is_stopped_is_not_waited_for(warm_node: WarmNode) -> None:
    stopped, _ = await warm_node.start(WAITS), await warm_node.start(WAITS)
    os.kill(stopped, signal.SIGSTOP)
    await until(lambda: state(stopped) == "T")
    evidence = await warm_node.examine_ranks()
    found = {group.ranks[0]: (group.state, functions(group)[:1]) for group in evidence.groups}
    assert found == {0: (ProcessState.STOPPED, []), 1: (ProcessState.ALIVE, ["wait_for_batch"])}
    assert "state T" in warm_node.kept("rank_0.kernel.txt")
    os.kill(stopped, signal.SIGCONT)
    assert [functions(group)[0] for group in (await warm_node.examine_ranks()).groups] == ["wait_for_batch"] * 2


# NCCL's RAS.


@pytest.fixture
def ras(unused_tcp_port: int) -> Ras:
    """A port for workers to listen at, and the variable that tells NCCL."""
    return str(unused_tcp_port), {"NCCL_RAS_ADDR": f"localhost:{unused_tcp_port}"}


async def test_nccls_complaints_are_shown_and_its_whole_answer_is_kept(node: Node, ras: Ras) -> None:
    port, variable = ras
    evidence = await node.examine(await node.start(f"ANSWERS = {NCCL}{RAS}", port, **variable))
    assert evidence.nccl[0].endswith("MISMATCH") and "Rank 7 has launched up to operation 60" in evidence.nccl[3]
    assert len(evidence.nccl) == 4 and node.kept("nccl_ras.txt") == RAS_STATUS


async def test_another_process_of_the_node_answers_for_one_that_is_stopped(node: Node, ras: Ras) -> None:
    port, variable = ras
    pids = [await node.start(f"ANSWERS = {NCCL}{RAS}", port, **variable) for _ in range(2)]
    os.kill(pids[0], signal.SIGSTOP)
    assert len((await node.examine(*pids)).nccl) == 4


async def test_another_program_at_the_port_of_nccl_is_a_problem(node: Node, ras: Ras) -> None:
    port, variable = ras
    answers = {b"CLIENT": b"HTTP/1.1 400 Bad Request\n"}
    evidence = await node.examine(await node.start(f"ANSWERS = {answers}{RAS}", port, **variable))
    assert evidence.nccl == () and "answered 'HTTP/1.1 400 Bad Request'" in "".join(evidence.problems)


async def test_only_workers_of_this_node_are_asked(node: Node, ras: Ras) -> None:
    port, variable = ras
    await node.start(f"ANSWERS = {NCCL}{RAS}", port)
    evidence = await node.examine(await node.start(WAITS, **variable))
    assert (evidence.nccl, evidence.problems) == ((), ())
