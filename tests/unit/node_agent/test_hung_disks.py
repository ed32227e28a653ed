"""Disks that hang: an agent polls its server all the same, and workers get by without what is on them."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import LeaveRequest, PollRequest, ReportRequest

from node_agent import agent as agent_module
from node_agent.core.log_options import LogOptions, Std
from node_agent.output import logs as logs_module
from node_agent.output import threads as threads_module
from node_agent.output.threads import in_thread
from node_agent.transport.base import ThreadLoop
from node_agent.workers import group as group_module
from node_agent.workers.environment import ERROR_FILE
from tests.support.process_info import until
from tests.unit.node_agent.rig import Rig, rig
from tests.unit.node_agent.story import finish, start


class HungDisk:
    """Calls to a function hang in threads, from `hangs` to `answers`, if they are about a file below the folder. A call
    by the event loop's thread is a fault.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = str(folder), monkeypatch
        self.hangs, self.answers = threading.Event(), threading.Event()
        self.faults: list[str] = []

    def holds_up(self, where: object, name: str) -> None:
        real: Callable[..., Any] = getattr(where, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if any(self._folder in _path(each) for each in args):
                if threading.current_thread() is threading.main_thread():
                    self.faults.append(f"{name}{args}")
                else:
                    self.hangs.set()
                    self.answers.wait()
            return real(*args, **kwargs)

        self._monkeypatch.setattr(where, name, call)


def _path(argument: object) -> str:
    """The argument of a call as a path; a descriptor is that of its file."""
    if not isinstance(argument, int):
        return str(argument)
    try:
        return os.readlink(f"/proc/self/fd/{argument}")
    except OSError:
        return ""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HungDisk]:
    disk = HungDisk(tmp_path / "disk", monkeypatch)
    (tmp_path / "disk").mkdir()
    yield disk
    disk.answers.set()
    assert disk.faults == []


def logging_to(tmp_path: Path) -> LogOptions:
    return LogOptions(log_dir=str(tmp_path / "disk"), tee=Std.ALL)


async def polls_while_it_hangs(agent: Rig, disk: HungDisk) -> None:
    await until(disk.hangs.is_set)
    await agent.server.hears(PollRequest)


@pytest.mark.parametrize("name", ["mkdir", "open"])
async def test_workers_start_when_the_disk_of_their_files_answers(name: str, tmp_path: Path, disk: HungDisk) -> None:
    disk.holds_up(os, name)
    async with rig("echo here; exec sleep 60", logs=logging_to(tmp_path)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await polls_while_it_hangs(agent, disk)
        assert agent.pids == []
        disk.answers.set()
        await until(lambda: b"here" in agent.console.text())
        assert agent.console.lines[-1].startswith("logs: ")


async def test_workers_start_without_files_if_the_disk_does_not_answer(
    tmp_path: Path, disk: HungDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "OPENED_WITHIN_S", 0.05)
    disk.holds_up(os, "mkdir")
    async with rig("echo here; exit 0", logs=logging_to(tmp_path)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await until(lambda: b"here" in agent.console.text())
        problem = f"log files: {tmp_path}/disk: no answer for 0.05 s: its disk hangs; the run continues"
        assert problem in agent.console.lines


async def test_a_stop_does_not_wait_for_the_disk(tmp_path: Path, disk: HungDisk) -> None:
    disk.holds_up(os, "mkdir")
    async with rig(logs=logging_to(tmp_path)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await polls_while_it_hangs(agent, disk)
        await agent.server.answers(finish(succeeded=False))
        assert await agent.exit_code() == ExitCode.FAILED


async def test_a_preemption_file_on_a_hung_disk_is_looked_for_when_it_answers(tmp_path: Path, disk: HungDisk) -> None:
    path = tmp_path / "disk" / "preempted"
    path.touch()
    disk.holds_up(os.path, "exists")
    async with rig(preemption_file=str(path)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await polls_while_it_hangs(agent, disk)
        disk.answers.set()
        assert (await agent.server.hears(LeaveRequest)).reason == f"preempted: {path} is there"


async def test_locks_of_extensions_on_a_hung_disk_hold_up_no_worker(tmp_path: Path, disk: HungDisk) -> None:
    lock = tmp_path / "disk" / "extension" / "lock"
    lock.parent.mkdir()
    lock.touch()
    disk.holds_up(os, "listdir")
    environment = {"PATH": os.environ["PATH"], "TORCH_EXTENSIONS_DIR": str(tmp_path / "disk")}
    async with rig(environment=environment) as agent:
        await agent.server.answers(start(local_world_size=1))
        await polls_while_it_hangs(agent, disk)
        await until(lambda: agent.pids)
        disk.answers.set()
        await until(lambda: any(line.startswith(f"{lock} is the lock") for line in agent.console.lines))


async def test_an_agent_ends_without_its_error_file_if_the_disk_hangs(
    tmp_path: Path, disk: HungDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "ERROR_FILE_S", 0.05)
    disk.holds_up(os, "open")
    environment = {"PATH": os.environ["PATH"], ERROR_FILE: str(tmp_path / "disk" / "error.json")}
    async with rig(environment=environment) as agent:
        await agent.server.answers(start(local_world_size=1))
        await until(lambda: agent.pids)
        await agent.server.answers(finish(succeeded=False))
        assert await agent.exit_code() == ExitCode.FAILED
        assert disk.hangs.is_set()


@pytest.mark.parametrize("name", ["pread", "fstat", "fstatvfs"])
async def test_a_failure_is_reported_without_what_the_disk_holds(
    name: str, tmp_path: Path, disk: HungDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "READ_WITHIN_S", 0.05)
    os.mkfifo(tmp_path / "gate")
    async with rig(f"read word < {tmp_path}/gate; echo last; exit 3", logs=logging_to(tmp_path)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await until(lambda: agent.pids)
        disk.holds_up(os, "statvfs" if name == "fstatvfs" else name)
        await asyncio.to_thread((tmp_path / "gate").write_text, "go\n")
        failure = (await agent.server.hears(ReportRequest)).failure
        assert failure.exit_code == 3
        assert failure.cause == "exit code 3 (its error file cannot be read: no answer for 0.05 s: its disk hangs)"
        assert disk.hangs.is_set()


async def test_what_is_left_is_read_when_the_disk_answers_in_time(tmp_path: Path, disk: HungDisk) -> None:
    os.mkfifo(tmp_path / "gate")
    async with rig(f"read word < {tmp_path}/gate; echo last >&2; exit 3", logs=logging_to(tmp_path)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await until(lambda: agent.pids)
        disk.holds_up(os, "pread")
        await asyncio.to_thread((tmp_path / "gate").write_text, "go\n")
        await until(disk.hangs.is_set)
        disk.answers.set()
        assert (await agent.server.hears(ReportRequest)).failure.stderr_tail == ("last",)
        assert b"last" in agent.console.text(2)


async def test_copies_of_lines_wait_for_the_disk_and_nobody_else_does(tmp_path: Path, disk: HungDisk) -> None:
    disk.holds_up(os, "write")
    options = LogOptions(log_dir=str(tmp_path / "disk"), stdout_filters=("apple",))
    async with rig("echo apple; exec sleep 60", logs=options) as agent:
        await agent.server.answers(start(local_world_size=1))
        await polls_while_it_hangs(agent, disk)
        await until(lambda: b"apple" in agent.console.text())
        disk.answers.set()
        (copy,) = (tmp_path / "disk").rglob("filtered_stdout.log")
        await until(lambda: copy.read_text() == "[default0]:apple\n")


# Calls in threads.


async def test_the_result_of_a_call_or_its_error_is_returned() -> None:
    assert await in_thread(lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_result_that_comes_too_late_is_undone() -> None:
    undone, answers = threading.Event(), threading.Event()
    with pytest.raises(OSError, match=r"no answer for 0\.01 s"):
        await in_thread(answers.wait, 0.01, lambda result: undone.set())
    answers.set()
    await until(undone.is_set)


async def test_a_result_that_comes_after_the_loop_is_undone() -> None:
    undone, answers = threading.Event(), threading.Event()

    async def give_up() -> None:
        with pytest.raises(OSError, match="no answer"):
            await in_thread(answers.wait, 0.01, lambda result: undone.set())

    await asyncio.to_thread(asyncio.run, give_up())
    answers.set()
    await until(undone.is_set)


def test_a_result_that_comes_between_the_last_step_of_a_loop_and_its_end_is_undone() -> None:
    answers, undone = threading.Event(), list[str]()

    class Loop(ThreadLoop):
        def close(self) -> None:
            answers.set()
            for thread in threads_module._threads[self]:
                thread.join()
            super().close()

    def call() -> str:
        answers.wait()
        return "result"

    async def give_up() -> None:
        with pytest.raises(OSError, match="no answer"):
            await in_thread(call, 0.01, undone.append)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(give_up())
    assert undone == ["result"]


def test_a_loop_beside_the_main_one_waits_at_its_end_for_its_threads() -> None:
    answers, ended = threading.Event(), threading.Event()

    def call() -> None:
        answers.wait()
        time.sleep(0.1)  # the loop would be closed before
        ended.set()

    async def give_up() -> None:
        with pytest.raises(OSError, match="no answer"):
            await in_thread(call, 0.01)
        answers.set()

    with asyncio.Runner(loop_factory=ThreadLoop) as runner:
        runner.run(give_up())
    assert ended.is_set()


def test_a_thread_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "LEFT_BEHIND_S", 0.05)
    answers, ended = threading.Event(), threading.Event()

    def call() -> None:
        answers.wait()
        ended.set()

    async def give_up() -> None:
        with pytest.raises(OSError, match="no answer"):
            await in_thread(call, 0.01)

    with asyncio.Runner(loop_factory=ThreadLoop) as runner:
        runner.run(give_up())
    assert not ended.is_set()
    answers.set()


async def test_a_call_is_made_here_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    assert await in_thread(threading.current_thread) is threading.main_thread()
