"""Disks that hang: the agent continues to poll its server, and workers run without the files on that disk."""

import asyncio
import builtins
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import LeaveRequest, PollRequest, ReportRequest
from rdzv_protocol.queries import Examine, Notice, Noticed, Refused

from node_agent import agent as agent_module
from node_agent import words
from node_agent.compat.api.errors import LaunchError
from node_agent.compat.api.processes import PContext
from node_agent.features.notices import Notices
from node_agent.features.notices import words as notices
from node_agent.features.notices.notice_board import NoticeBoard
from node_agent.features.preemption import Preemption
from node_agent.features.readiness import Readiness
from node_agent.features.readiness import ready_file as ready_file_module
from node_agent.kernel import threads as threads_module
from node_agent.kernel.core.log_options import LogOptions, Std
from node_agent.kernel.environment import ERROR_FILE
from node_agent.kernel.output import logs as logs_module
from node_agent.kernel.processes.temp_dir import TempDir
from node_agent.kernel.threads import ThreadLoop, in_thread
from node_agent.kernel.workers import group as group_module
from tests.support.message_search import has_message, pattern
from tests.support.process_info import until
from tests.unit.node_agent.rig import PATIENCE_S, Rig, rig
from tests.unit.node_agent.story import finish, start


class HungDisk:
    """Makes calls of a function hang in threads, from `hangs` to `answers`, if they are about a file below the folder.

    A call in an event loop's thread is an error.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = str(folder), monkeypatch
        self.hangs, self.answers = threading.Event(), threading.Event()
        self.faults: list[str] = []

    def holds_up(self, where: object, name: str) -> None:
        real: Callable[..., Any] = getattr(where, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if any(self._folder in _path(each) for each in args):
                if asyncio._get_running_loop():
                    self.faults.append(f"{name}{args}")
                else:
                    self.hangs.set()
                    self.answers.wait()
            return real(*args, **kwargs)

        self._monkeypatch.setattr(where, name, call)


def _path(argument: object) -> str:
    """Return the argument of a call as a path. A descriptor's path is that of its file."""
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
        assert has_message(agent.console.lines[-1], words.progress.logs_are_in)


async def test_workers_start_without_files_if_the_disk_does_not_answer(
    tmp_path: Path, disk: HungDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "OPENED_WITHIN_S", 0.05)
    disk.holds_up(os, "mkdir")
    async with rig("echo here; exit 0", logs=logging_to(tmp_path)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await until(lambda: b"here" in agent.console.text())
        fields = f"{tmp_path}/disk", words.output.disk_hangs(0.05), words.output.RUN_CONTINUES
        problem = words.output.file_trouble(*fields, loses_lines=False)
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
    async with rig(features=(Preemption(preemption_file=str(path)),)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await polls_while_it_hangs(agent, disk)
        disk.answers.set()
        assert (await agent.server.hears(LeaveRequest)).reason == f"preempted: {path} exists"


async def test_locks_of_extensions_on_a_hung_disk_do_not_hold_up_workers(tmp_path: Path, disk: HungDisk) -> None:
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
async def test_a_failure_is_reported_without_evidence_from_a_disk_that_hangs(
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
        hangs = words.output.disk_hangs(0.05)
        assert failure.cause == words.failures.with_broken_error_file("exit code 3", hangs)
        assert disk.hangs.is_set()


async def test_remaining_output_is_read_if_the_disk_answers_in_time(tmp_path: Path, disk: HungDisk) -> None:
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


async def test_only_copies_of_lines_wait_for_the_disk(tmp_path: Path, disk: HungDisk) -> None:
    disk.holds_up(os, "write")
    options = LogOptions(log_dir=str(tmp_path / "disk"), stdout_filters=("apple",))
    async with rig("echo apple; exec sleep 60", logs=options) as agent:
        await agent.server.answers(start(local_world_size=1))
        await polls_while_it_hangs(agent, disk)
        await until(lambda: b"apple" in agent.console.text())
        disk.answers.set()
        (copy,) = (tmp_path / "disk").rglob("filtered_stdout.log")
        await until(lambda: copy.read_text() == "[default0]:apple\n")


# The temporary folder.


@pytest.fixture
def tmpdir_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "disk"))


@pytest.mark.usefixtures("tmpdir_on_disk")
async def test_workers_get_by_without_a_temporary_folder(disk: HungDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "OPENED_WITHIN_S", 0.05)
    disk.holds_up(os, "mkdir")
    async with rig("echo here; exit 0", features=(Notices(gives_notices=True),)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await polls_while_it_hangs(agent, disk)
        await until(lambda: b"here" in agent.console.text())
        assert has_message(agent.console.lines, notices.no_folder)


@pytest.mark.usefixtures("tmpdir_on_disk")
async def test_an_agent_ends_though_its_temporary_folder_cannot_be_removed(
    disk: HungDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "REMOVED_WITHIN_S", 0.05)
    async with rig("exit 0") as agent:
        for name in ("open", "stat", "lstat", "scandir", "rmdir"):
            disk.holds_up(os, name)
        disk.answers.set()
        await agent.server.answers(start(local_world_size=1))
        await agent.server.hears(ReportRequest)
        disk.answers.clear()
        await agent.server.answers(finish())
        assert await agent.exit_code() == ExitCode.SUCCEEDED
        assert disk.hangs.is_set()


@pytest.mark.usefixtures("tmpdir_on_disk")
async def test_the_pipe_of_timers_is_made_by_a_thread(disk: HungDisk) -> None:
    disk.holds_up(os, "mkfifo")
    environment = {"PATH": os.environ["PATH"], "TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    async with rig("echo here; exec sleep 60", environment=environment) as agent:
        await agent.server.answers(start(local_world_size=1))
        await polls_while_it_hangs(agent, disk)
        disk.answers.set()
        await until(lambda: b"here" in agent.console.text())


@pytest.mark.usefixtures("tmpdir_on_disk")
async def test_a_full_disk_failure_is_reported_even_if_the_disk_is_unknown(
    disk: HungDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "FULL_WITHIN_S", 0.05)
    async with rig("echo OSError: [Errno 28] No space left on device >&2; exit 3") as agent:
        disk.holds_up(os, "statvfs")
        await agent.server.answers(start(local_world_size=1))
        failure = (await agent.server.hears(ReportRequest)).failure
        assert (failure.exit_code, failure.blame) == (3, "unknown")
        assert disk.hangs.is_set()


@pytest.mark.usefixtures("tmpdir_on_disk")
async def test_the_place_of_evidence_is_chosen_by_a_thread(disk: HungDisk) -> None:
    async with rig() as agent:
        await agent.server.answers(start(local_world_size=1))
        await until(lambda: agent.pids)
        disk.holds_up(os, "statvfs")
        answers: list[Any] = []
        agent.agent._queries._answered = lambda number, answer: answers.append(answer)
        agent.agent._queries.ask(Examine(number=1, round=1, remaining_s=0.05))
        await until(lambda: answers)
        assert answers == [Refused(reason=words.agent.query_too_slow("a"))]
        assert disk.hangs.is_set()


# Notices.


@pytest.mark.parametrize("name", ["rename", "stat"])
async def test_a_notice_ends_in_time_though_the_disk_hangs(name: str, tmp_path: Path, disk: HungDisk) -> None:
    """The notice's file cannot be written, or the workers' answers cannot be read."""
    folder = SimpleNamespace(path=lambda name: f"{tmp_path}/disk/{name}")
    board, told = NoticeBoard(cast(TempDir, folder), 1, 1, "SIGUSR2"), list[str]()
    notice = Notice(number=1, round=1, remaining_s=2.2, source="node_left", node_id="a", reason="drained")
    disk.holds_up(os, name)
    assert await board.give(notice, dict, told.append) == Noticed(listening=0, acknowledged=0)
    assert bool(told) is (name == "rename")
    assert disk.hangs.is_set()


async def test_files_of_notices_are_read_and_removed_by_a_thread(tmp_path: Path, disk: HungDisk) -> None:
    folder = SimpleNamespace(path=lambda name: f"{tmp_path}/disk/{name}")
    board = NoticeBoard(cast(TempDir, folder), 1, 1)
    notice = Notice(number=1, round=1, remaining_s=0.3, source="node_left", node_id="a", reason="drained")
    await board.give(notice, dict, print)
    for name in ("stat", "unlink"):
        disk.holds_up(os, name)
    asked = asyncio.create_task(board.is_acknowledged())
    await until(disk.hangs.is_set)
    board.close()
    disk.answers.set()
    assert await asked is False
    await until(lambda: not any((tmp_path / "disk").iterdir()))


# The file for readiness probes.


def content(path: Path) -> str:
    """Return the text of a file that may be removed at any time, empty if it does not exist."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


async def test_the_ready_file_follows_when_its_disk_answers(tmp_path: Path, disk: HungDisk) -> None:
    path = tmp_path / "disk" / "ready"
    path.write_text("of an agent that was killed")
    for where, name in ((builtins, "open"), (os, "replace"), (os, "remove")):
        disk.holds_up(where, name)
    async with rig(features=(Readiness(ready_file=str(path)),)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await polls_while_it_hangs(agent, disk)
        disk.answers.set()
        await until(lambda: content(path) == f"{os.getpid()}\n")
        await agent.server.answers(finish(succeeded=False))
        assert await agent.exit_code() == ExitCode.FAILED
        assert not path.exists()


async def test_an_agent_ends_though_its_ready_file_cannot_be_removed(
    tmp_path: Path, disk: HungDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_file_module, "CLOSE_S", 0.05)
    disk.holds_up(os, "remove")
    async with rig("exit 0", features=(Readiness(ready_file=str(tmp_path / "disk" / "ready")),)) as agent:
        await agent.server.answers(start(local_world_size=1))
        await agent.server.hears(ReportRequest)
        await agent.server.answers(finish())
        assert await agent.exit_code() == ExitCode.SUCCEEDED
        assert disk.hangs.is_set()


# The Python API.


def test_a_program_stops_while_the_disk_of_its_workers_files_hangs(tmp_path: Path, disk: HungDisk) -> None:
    context = PContext("t", "true", {0: ()}, {0: {}}, log_dir=tmp_path / "disk", redirects=Std.ALL)
    disk.holds_up(os, "mkdir")
    starting = threading.Thread(target=lambda: context.start(()), daemon=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading, "excepthook", lambda args: None)
        starting.start()
        assert disk.hangs.wait(PATIENCE_S)
        context.close()
        with pytest.raises(LaunchError, match=words.api.stopped_before_start("t")):
            context.pids()
        starting.join()


# Calls in threads.


async def test_the_result_of_a_call_or_its_error_is_returned() -> None:
    assert await in_thread(lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_result_that_comes_too_late_is_undone() -> None:
    undone, answers = threading.Event(), threading.Event()
    with pytest.raises(OSError, match=pattern(words.output.disk_hangs, within_s=0.01)):
        await in_thread(answers.wait, 0.01, lambda result: undone.set())
    answers.set()
    await until(undone.is_set)


async def test_a_result_that_comes_after_the_loop_is_undone() -> None:
    undone, answers = threading.Event(), threading.Event()

    async def give_up() -> None:
        with pytest.raises(OSError, match=pattern(words.output.disk_hangs)):
            await in_thread(answers.wait, 0.01, lambda result: undone.set())

    await asyncio.to_thread(asyncio.run, give_up())
    answers.set()
    await until(undone.is_set)


def test_a_result_that_comes_between_the_last_step_of_a_loop_and_its_end_is_undone() -> None:
    answers, undone = threading.Event(), list[str]()

    class Loop(ThreadLoop):
        def close(self) -> None:
            answers.set()
            for lasts in threads_module._threads[self]:
                lasts.acquire()
            super().close()

    def call() -> str:
        answers.wait()
        return "result"

    async def give_up() -> None:
        with pytest.raises(OSError, match=pattern(words.output.disk_hangs)):
            await in_thread(call, 0.01, undone.append)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(give_up())
    assert undone == ["result"]


def test_a_secondary_event_loop_waits_for_its_threads_when_it_ends() -> None:
    answers, ended = threading.Event(), threading.Event()

    def call() -> None:
        answers.wait()
        time.sleep(0.1)  # the loop would be closed before
        ended.set()

    async def give_up() -> None:
        with pytest.raises(OSError, match=pattern(words.output.disk_hangs)):
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
        with pytest.raises(OSError, match=pattern(words.output.disk_hangs)):
            await in_thread(call, 0.01)

    with asyncio.Runner(loop_factory=ThreadLoop) as runner:
        runner.run(give_up())
    assert not ended.is_set()
    answers.set()
