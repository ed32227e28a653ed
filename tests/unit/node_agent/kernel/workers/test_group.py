"""Real processes: how they end, how they are stopped, and that none of them remains."""

import asyncio
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rdzv_protocol.messages import Failure
from rdzv_protocol.timing import hold_s

from node_agent import words
from node_agent.kernel.config import SIDE_BY_SIDE
from node_agent.kernel.failures import diagnose, error_file, oom, recorded_causes
from node_agent.kernel.output.log_files import LogFile, LogFiles
from node_agent.kernel.output.pieces import End
from node_agent.kernel.output.sinks import Tail
from node_agent.kernel.output.streams import Joined, Relay
from node_agent.kernel.processes import process as process_module
from node_agent.kernel.processes.orphans import children, family
from node_agent.kernel.workers import group as workers
from node_agent.kernel.workers.group import KilledLate, ProcessGroup, WorkerGroup
from tests.support.changes import PATIENCE_S
from tests.support.console import FakeConsole, command_spec
from tests.support.process_info import ended, until

NEVER_S = 1_000.0
WRAPPED = ("sh", "-c", '"$0" "$@"; exit $?')
"""Beginning of the command of a shell that runs a program, and exits as it does."""
HOLD_S = hold_s(10.0)
"""Seconds between two polls of an idle agent with the usual lease."""
SIGNALS = frozenset(signal.Signals[f"SIG{name}"] for name in ("TERM", "INT", "HUP", "QUIT", "USR1"))


def _one_pipe() -> tuple[Relay, Joined]:
    both = Relay([Tail()], None)
    return both, Joined(both)


class Crew:
    """The worker groups of one test, and what they called back."""

    def __init__(self) -> None:
        self.console = FakeConsole()
        self.calls: list[str] = []
        self.failures: list[Failure] = []
        self.raised: list[Failure] = []
        self.failed_too: list[Failure] = []
        self.left: list[int] = []
        self.error_file = ""
        self.error_files: list[str] = []
        self.have_one_pipe = False
        self.log_folder: Path | None = None
        self.is_last = False
        self.progress: dict[int, float] = {}
        self.leftovers: list[int] | None = None
        self.groups: list[WorkerGroup] = []
        self._called = asyncio.Event()
        self._files = LogFiles(self.console)

    def start(self, *commands: tuple[str, ...], **environment: str) -> WorkerGroup:
        specs = [
            replace(
                command_spec(self.console, 10 + index, index, command, {**os.environ, **environment}),
                error_file=self.error_files[index] if self.error_files else self.error_file,
                **({"open_streams": _one_pipe} if self.have_one_pipe else {}),
                **({"open_streams": partial(self._open_files, index)} if self.log_folder else {}),
            )
            for index, command in enumerate(commands)
        ]
        group = WorkerGroup(
            specs,
            signals=SIGNALS,
            succeeded=lambda: self._call("succeeded"),
            failed=self._failed,
            stopped=self._stopped,
            raised=self.raised.append,
            failed_too=self._failed_too,
            is_last=self.is_last,
            progress_times=lambda: self.progress,
            leftovers=None if self.leftovers is None else lambda: self.leftovers,
        )
        self.groups.append(group)
        return group

    def _open_files(self, index: int) -> tuple[LogFile, LogFile]:
        """Return streams that are files, as with `--redirects 3`."""
        out, err = (LogFile(self.log(index, name), tuple, self._files, shown=False) for name in ("stdout", "stderr"))
        return out, err

    def log(self, index: int, name: str = "stderr") -> str:
        assert self.log_folder
        return str(self.log_folder / f"{index}.{name}")

    async def calls_back(self, what: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while what not in self.calls:
                self._called.clear()
                await self._called.wait()

    async def says(self, text: bytes) -> None:
        await self.console.until(lambda: text in self.console.text())

    async def complains(self, text: bytes) -> None:
        await self.console.until(lambda: text in self.console.text(2))

    async def all_reaped(self, group: WorkerGroup) -> None:
        await until(lambda: not group.pids)
        await asyncio.sleep(0)  # a callback that is not held comes in this turn

    async def said(self, prefix: bytes) -> bytes:
        """Return the rest of the line with this beginning."""
        await self.console.until(lambda: any(line.startswith(prefix) for line in self.console.text().splitlines()))
        return next(line for line in self.console.text().splitlines() if line.startswith(prefix)).removeprefix(prefix)

    async def end(self) -> None:
        for group in self.groups:
            self.calls.clear()
            group.stop(signal.SIGKILL, 0.0)
            await self.calls_back("stopped")
        self._files.close()

    def _failed(self, failure: Failure) -> None:
        self.failures.append(failure)
        self._call("failed")

    def _failed_too(self, failure: Failure) -> None:
        self.failed_too.append(failure)
        self._call("failed too")

    def _stopped(self, left: list[int]) -> None:
        self.left = left
        self._call("stopped")

    def _call(self, what: str) -> None:
        self.calls.append(what)
        self._called.set()


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    crew = Crew()
    yield crew
    await crew.end()


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def stubborn() -> tuple[str, ...]:
    """Return the command of a worker that ignores requests to end."""
    return sh("trap '' TERM; echo ready; while :; do sleep 0.05; done")


@pytest.fixture
def gate(tmp_path) -> "Gate":
    return Gate(tmp_path / "gate")


class Gate:
    """Gate at which a worker waits until the test opens it: `read go < PATH`."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path

    async def open(self) -> None:
        await asyncio.to_thread(self.path.write_text, "go\n")


# How a round ends.


async def test_a_round_succeeds_once_when_its_last_worker_has(crew, gate):
    crew.start(sh("echo pid=$$"), sh(f"read go < {gate.path}; echo last"), sh("exit 0"))
    await ended(int(await crew.said(b"[0]:pid=")))
    for _ in range(3):
        await asyncio.sleep(0)  # its end is noticed in this turn
    assert crew.calls == []
    await gate.open()
    await crew.calls_back("succeeded")
    assert b"[1]:last\n" in crew.console.text()
    assert crew.calls == ["succeeded"]


async def test_the_first_failure_is_reported_with_its_evidence(crew):
    crew.start(sh("exec sleep 1000"), sh("echo fine; echo dear me >&2; printf 'last words' >&2; exit 3"))
    await crew.calls_back("failed")
    (failure,) = crew.failures
    assert (failure.node_id, failure.rank, failure.local_rank) == ("a", 11, 1)
    assert (failure.exit_code, failure.cause) == (3, "exit code 3")
    assert failure.stderr_tail == ("dear me", "last words")
    assert failure.pid > 0 and not failure.both_streams


async def test_a_failure_says_whether_its_last_lines_are_of_both_streams(crew):
    crew.have_one_pipe = True
    crew.start(sh("echo loss 3; echo dear me >&2; exit 3"))
    await crew.calls_back("failed")
    (failure,) = crew.failures
    assert failure.stderr_tail == ("loss 3", "dear me") and failure.both_streams


async def test_an_error_file_is_read(crew, tmp_path):
    crew.error_file = str(tmp_path / "error.json")
    content = '{"message": {"message": "KeyError: 7", "extraInfo": {"py_callstack": "all of it", "timestamp": "1000"}}}'
    group = crew.start(sh(f"echo '{content}' > {crew.error_file}; exit 3"))
    await crew.calls_back("failed")
    (failure,) = crew.failures
    assert (failure.error, failure.traceback, failure.failed_at) == ("KeyError: 7", ("all of it",), 1000.0)
    assert failure.error_file == crew.error_file
    assert group.error_file(failure.pid) == crew.error_file
    assert group.error_file(failure.pid + 1) == ""


async def test_only_one_of_several_failures_is_reported_and_the_others_are_stopped(crew):
    group = crew.start(sh("exit 1"), sh("exit 2"), sh("exec sleep 1000"))
    await crew.calls_back("failed")
    assert crew.calls == ["failed"]
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert (crew.calls, crew.left) == (["failed", "stopped"], [])


# Consequences.

SUFFERS = "echo pid=$$; echo 'RuntimeError: gloo: Connection closed by peer' >&2; exit 1"


async def suffered(crew: Crew) -> None:
    """Return when the first worker, whose failure is a consequence, has ended and this was noticed."""
    await ended(int(await crew.said(b"[0]:pid=")))
    await crew.console.until(lambda: b"closed by peer" in crew.console.text(2))


async def test_a_consequence_waits_for_its_cause(crew, gate, monkeypatch):
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    crew.start(sh(SUFFERS), sh(f"read go < {gate.path}; exit 3"))
    await suffered(crew)
    assert crew.calls == []
    await gate.open()
    await crew.calls_back("failed")
    assert [failure.rank for failure in crew.failures] == [11]
    assert not crew.failures[0].consequence


async def test_a_failure_that_follows_from_another_workers_is_reported_after_it(crew, gate, monkeypatch):
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    crew.start(sh(SUFFERS), sh(f"read go < {gate.path}; exit 3"), sh("exec sleep 1000"))
    await suffered(crew)
    await gate.open()
    await until(lambda: crew.failed_too)
    assert [failure.rank for failure in crew.failures] == [11]
    assert [(failure.rank, failure.consequence) for failure in crew.failed_too] == [(10, True)]
    assert not crew.raised


@pytest.fixture
def slow_disk(crew, tmp_path, monkeypatch) -> Iterator[dict[str, Event]]:
    """Disk on which no error file of the first two workers can be read before the event of its path is set."""
    crew.error_files = [str(tmp_path / "10"), str(tmp_path / "11")]
    reads, look_at_disk = {path: Event() for path in crew.error_files}, diagnose.look_at_disk

    def look(path: str, ends: Sequence[End] = ()) -> diagnose.LeftOnDisk:
        reads[path].wait(PATIENCE_S)
        return look_at_disk(path, ends)

    monkeypatch.setattr(diagnose, "look_at_disk", look)
    monkeypatch.setattr(workers, "READ_WITHIN_S", NEVER_S)
    yield reads
    for read in reads.values():
        read.set()


async def test_a_cause_that_has_exited_in_time_counts_although_its_disk_is_slow(crew, slow_disk, monkeypatch):
    searches = []

    async def find(*_: object) -> None:
        searches.append("")

    monkeypatch.setattr(recorded_causes, "find", find)
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", 0.05)
    group = crew.start(sh(SUFFERS), sh("exit 3"))
    await until(lambda: all(worker.ended_at for worker in group.workers))
    consequence, cause = slow_disk.values()
    consequence.set()
    await until(lambda: group._settling and group._settling.when() < asyncio.get_running_loop().time())
    for _ in range(10):
        await asyncio.sleep(0)  # a search for other causes begins in these turns
    assert not searches
    cause.set()
    await until(lambda: crew.failed_too)
    assert [failure.rank for failure in crew.failures] == [11]
    assert [(failure.rank, failure.consequence) for failure in crew.failed_too] == [(10, True)]


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_a_failure_whose_disk_is_slow_is_reported_after_the_cause_that_came_later(crew, slow_disk, is_stopped):
    """The final report contains it even if it is the last thing that a stop waits for."""
    group = crew.start(sh(SUFFERS), sh("exit 3"))
    await until(lambda: all(worker.ended_at for worker in group.workers))
    consequence, cause = slow_disk.values()
    cause.set()
    await crew.calls_back("failed")
    if is_stopped:
        group.stop(signal.SIGTERM, NEVER_S)
    consequence.set()
    await until(lambda: crew.failed_too)
    assert [failure.rank for failure in crew.failures] == [11]
    assert [(failure.rank, failure.consequence) for failure in crew.failed_too] == [(10, True)]
    if is_stopped:
        await crew.calls_back("stopped")
        assert crew.calls == ["failed", "failed too", "stopped"]


@pytest.mark.parametrize("others", [(), (sh("exec sleep 1000"),)], ids=["all have exited", "another one runs"])
async def test_a_cause_that_ends_the_run_waits_for_the_files_of_workers_that_have_exited(crew, slow_disk, others):
    crew.is_last = True
    crew.error_files.append("")
    group = crew.start(sh(SUFFERS), sh("exit 3"), *others)
    await until(lambda: all(worker.ended_at for worker in group.workers[:2]))
    consequence, cause = slow_disk.values()
    cause.set()
    await until(lambda: group._held)
    assert not crew.calls
    consequence.set()
    await until(lambda: crew.failed_too)
    assert [failure.rank for failure in crew.failures] == [11]
    assert [(failure.rank, failure.consequence) for failure in crew.failed_too] == [(10, True)]


async def holds_a_cause(crew: Crew, slow_disk: dict[str, Event]) -> WorkerGroup:
    """Return a group whose cause is known, and waits until the files of the other worker are read."""
    crew.is_last = True
    group = crew.start(sh(SUFFERS), sh("exit 3"))
    await until(lambda: all(worker.ended_at for worker in group.workers))
    slow_disk[crew.error_files[1]].set()
    await until(lambda: group._held)
    return group


async def test_a_stop_reports_a_cause_that_waits_for_other_workers_files(crew, slow_disk):
    group = await holds_a_cause(crew, slow_disk)
    group.stop(signal.SIGTERM, NEVER_S)
    await until(lambda: crew.raised)
    slow_disk[crew.error_files[0]].set()
    await crew.calls_back("stopped")
    assert [failure.rank for failure in crew.raised] == [11] and not crew.failures


async def test_a_cause_that_waits_for_other_workers_files_is_reported_if_it_is_asked_for(crew, slow_disk):
    group = await holds_a_cause(crew, slow_disk)
    assert await group.report_raised()
    await crew.calls_back("failed")
    assert [failure.rank for failure in crew.failures] == [11]


async def test_a_failure_that_was_reported_before_its_worker_was_examined_is_not_reported_again(crew, slow_disk):
    """The worker's stderr shows its exception before the worker's files are read."""
    group = crew.start(raises("ValueError: boom", then="exit 1"), sh("exit 3"))
    await crew.complains(b"ValueError")
    await until(lambda: all(worker.ended_at for worker in group.workers))
    first, second = slow_disk.values()
    second.set()
    await until(lambda: crew.failed_too)
    group.stop(signal.SIGTERM, NEVER_S)
    first.set()
    await crew.calls_back("stopped")
    assert [failure.rank for failure in (*crew.failures, *crew.failed_too)] == [11, 10]


async def test_a_signal_that_is_noticed_while_a_consequence_is_reported_begins_a_whole_timeout(
    crew, slow_disk, monkeypatch
):
    """The agent may be about to get the signal, too."""
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", 0.05)
    group = crew.start(sh(SUFFERS), sh("kill -TERM $$"))
    await until(lambda: all(worker.ended_at for worker in group.workers))
    consequence, signalled = slow_disk.values()
    consequence.set()
    await until(lambda: group._settling and group._settling.when() < asyncio.get_running_loop().time())
    for _ in range(10):
        await asyncio.sleep(0)  # the wait for the other worker begins in these turns
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    signalled.set()
    await crew.all_reaped(group)
    for _ in range(10):
        await asyncio.sleep(0)  # the wait ends in these turns
    await stops_without_a_failure(crew, group)


async def test_a_worker_that_ends_after_the_failure_was_reported_did_not_fail_too(crew, slow_disk, monkeypatch):
    for read in slow_disk.values():
        read.set()
    group = crew.start(sh("trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"), sh("exit 3"))
    await crew.says(b"ready")
    await crew.calls_back("failed")
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert crew.calls == ["failed", "stopped"] and not crew.failed_too


async def stops_without_a_failure(crew, group):
    """The agent gets the signal, too, and stops the group."""
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert (crew.calls, crew.raised, crew.failed_too) == (["stopped"], [], [])


@pytest.mark.parametrize("is_evicted", [True, False])
async def test_a_worker_that_a_signal_has_ended_is_not_hidden_by_one_that_fails_after_it(
    crew, gate, monkeypatch, is_evicted
):
    """If the agent does not get that signal, too, the worker has failed first. The other one may have needed it."""
    if is_evicted:
        monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    group = crew.start(sh("echo pid=$$; kill -TERM $$"), sh(f"read go < {gate.path}; exit 3"))
    await ended(int(await crew.said(b"[0]:pid=")))
    await until(lambda: len(group.pids) == 1)
    await gate.open()
    if is_evicted:
        await crew.all_reaped(group)
        await stops_without_a_failure(crew, group)
    else:
        await until(lambda: crew.failed_too)
        assert [failure.exit_code for failure in (*crew.failures, *crew.failed_too)] == [-signal.SIGTERM, 3]


LOSES = "trap 'exit 0' TERM; read go < $GATE; echo 'RuntimeError: gloo: Connection closed by peer' >&2; exit 1"


async def test_a_consequence_of_workers_that_handle_signals_waits_for_its_cause(crew, gate, tmp_path):
    """No restart is left, so the group holds back the exit codes of both."""
    crew.is_last = True
    last = Gate(tmp_path / "last")
    group = crew.start(sh(LOSES), sh(f"trap 'exit 0' TERM; read go < {last.path}; exit 3"), GATE=str(gate.path))
    await gate.open()
    await until(lambda: len(group.pids) == 1)
    await last.open()
    await until(lambda: crew.failed_too)
    assert [(failure.rank, failure.exit_code) for failure in (*crew.failures, *crew.failed_too)] == [(11, 3), (10, 1)]


@pytest.mark.parametrize("is_evicted", [True, False])
async def test_a_worker_that_has_lost_one_which_a_signal_ended_is_not_blamed(crew, gate, monkeypatch, is_evicted):
    """The lost worker's end is noticed later. The agent may be about to get its signal, too."""
    if is_evicted:
        monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    group = crew.start(sh(SUFFERS), sh(f"read go < {gate.path}; kill -TERM $$"))
    await suffered(crew)
    await gate.open()
    await crew.all_reaped(group)
    if is_evicted:
        assert crew.calls == []
        await stops_without_a_failure(crew, group)
    else:
        await until(lambda: crew.failed_too)
        assert [(failure.rank, failure.exit_code) for failure in (*crew.failures, *crew.failed_too)] == [
            (11, -15),
            (10, 1),
        ]


TRACEBACK = """\
echo 'Traceback (most recent call last):' >&2
echo '  File "train.py", line 7, in <module>' >&2
echo "ValueError: boom" >&2
"""


@pytest.mark.parametrize("is_evicted", [True, False])
@pytest.mark.parametrize(
    ("end", "is_last", "exit_code"),
    [
        (f"{TRACEBACK} exit 1", False, 1),
        (f"trap 'exit 0' TERM; {TRACEBACK} exit 1", True, 1),
        ("ulimit -c 0; kill -SEGV $$", False, -signal.SIGSEGV),
    ],
    ids=["exception", "exception of a worker that handles signals", "crash"],
)
async def test_a_worker_that_fails_by_itself_may_have_asked_the_other_one_to_end(
    crew, gate, monkeypatch, end, is_last, exit_code, is_evicted
):
    """A script may signal its siblings before it raises its exception again."""
    if is_evicted:
        monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    crew.is_last = is_last
    group = crew.start(sh("echo pid=$$; kill -TERM $$"), sh(f"read go < {gate.path}; {end}"))
    await ended(int(await crew.said(b"[0]:pid=")))
    await until(lambda: len(group.pids) == 1)
    await gate.open()
    if is_evicted:
        await crew.all_reaped(group)
        await stops_without_a_failure(crew, group)
    else:
        await until(lambda: crew.failed_too)
        assert [each.exit_code for each in (*crew.failures, *crew.failed_too)] == [exit_code, -signal.SIGTERM]


async def test_a_worker_that_takes_its_time_to_exit_may_have_asked_the_other_one_to_end(crew, gate):
    crew.start(raises("ValueError: boom"), sh(f"read go < {gate.path}; kill -TERM $$"))
    await crew.complains(b"ValueError")
    await gate.open()
    await until(lambda: crew.failed_too)
    assert [(each.rank, each.exit_code) for each in (*crew.failures, *crew.failed_too)] == [(10, 1), (11, -15)]


async def test_the_first_of_several_workers_that_got_a_signal_is_named(crew, gate):
    """Python writes a KeyboardInterrupt, which is no error of the worker's own."""
    group = crew.start(
        sh("kill -TERM $$"),
        sh(f"read go < {gate.path}; {TRACEBACK.replace('ValueError', 'KeyboardInterrupt')} kill -INT $$"),
    )
    await until(lambda: len(group.pids) == 1)
    await gate.open()
    await until(lambda: crew.failed_too)
    assert [each.exit_code for each in (*crew.failures, *crew.failed_too)] == [-signal.SIGTERM, -signal.SIGINT]


async def test_a_worker_that_a_signal_ends_after_a_consequence_begins_a_whole_timeout(crew, gate, monkeypatch):
    """It may end just before the consequence would be reported, and its agent may be about to get the signal, too."""
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    group = crew.start(sh(SUFFERS), sh(f"read go < {gate.path}; kill -TERM $$"), sh("exec sleep 1000"))
    await until(lambda: group._settling)
    of_consequence = group._settling
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", 0.05)
    began = asyncio.get_running_loop().time()
    await gate.open()
    await crew.calls_back("failed")
    assert of_consequence.cancelled()
    assert asyncio.get_running_loop().time() - began >= workers.CAUSE_TIMEOUT_S
    assert [(failure.rank, failure.exit_code) for failure in crew.failures] == [(11, -signal.SIGTERM)]


async def test_a_consequence_without_a_cause_is_reported_soon(crew):
    began = asyncio.get_running_loop().time()
    crew.start(sh(SUFFERS), sh("exec sleep 1000"))
    await crew.calls_back("failed")
    assert asyncio.get_running_loop().time() - began >= workers.CAUSE_TIMEOUT_S
    assert crew.failures[0].rank == 10
    assert crew.failures[0].consequence


def raises(error: str, then: str = "exec sleep 1000") -> tuple[str, ...]:
    """Return the command of a worker whose script an exception has ended, and which takes its time to exit."""
    lines = ("Traceback (most recent call last):", '  File "train.py", line 7, in <module>', error)
    return sh("; ".join(f"echo '[rank7]: {line}' >&2" for line in lines) + f"; {then}")


def records(path: str, error: str) -> tuple[str, ...]:
    """Return the command of a worker that has written its error file and takes its time to exit."""
    return sh(f"echo '{json.dumps(error_file.content(error))}' > {path}; echo recorded; exec sleep 1000")


@pytest.fixture
def recording(crew, tmp_path) -> str:
    """Return the path of the workers' error file."""
    crew.error_file = str(tmp_path / "error.json")
    return crew.error_file


async def test_a_worker_that_exits_long_after_it_has_recorded_its_error_is_the_cause(crew, recording):
    path = recording
    crew.error_files = ["", path]
    crew.start(sh(SUFFERS), records(path, "ValueError: boom"))
    await crew.calls_back("failed")
    (failure,) = crew.failures
    assert (failure.rank, failure.error, failure.error_file) == (11, "ValueError: boom", path)
    assert failure.cause == words.failures.STILL_EXITING


async def test_a_worker_that_has_recorded_the_loss_of_its_peer_is_not_the_cause(crew, recording):
    crew.error_files = ["", recording]
    crew.start(sh(SUFFERS), records(recording, "RuntimeError: gloo/pair.cc: Connection closed by peer"))
    await crew.calls_back("failed")
    assert [failure.rank for failure in crew.failures] == [10]


async def test_a_stop_reports_the_error_that_a_worker_had_recorded_before_it(crew, recording):
    """The stop follows from the failure of another node's worker, which has lost this one."""
    group = crew.start(records(recording, "ValueError: boom"))
    await crew.says(b"recorded")
    _let_pass_s(recording, 1.0)
    group.stop(signal.SIGTERM, NEVER_S, seeks_cause=True)
    await crew.calls_back("stopped")
    assert [(failure.rank, failure.error) for failure in crew.raised] == [(10, "ValueError: boom")]
    assert crew.calls == ["stopped"]


async def test_a_stop_without_a_failure_does_not_report_a_recorded_error(crew, recording):
    """The script may have caught it."""
    group = crew.start(records(recording, "ValueError: boom"))
    await crew.says(b"recorded")
    _let_pass_s(recording, 1.0)
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert not crew.raised


async def test_a_stop_does_not_report_an_error_that_was_recorded_after_it(crew, recording):
    group = crew.start(records(recording, "ValueError: boom"))
    await crew.says(b"recorded")
    in_a_minute = time.time() + 60
    os.utime(recording, (in_a_minute, in_a_minute))
    group.stop(signal.SIGTERM, NEVER_S, seeks_cause=True)
    await crew.calls_back("stopped")
    assert not crew.raised


def _let_pass_s(path: str, seconds: float) -> None:
    """Make the file older by some seconds."""
    written_at = os.stat(path).st_mtime - seconds
    os.utime(path, (written_at, written_at))


class SkewedDisk:
    """`os` of a node whose file server has another clock."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def stat(self, path: str) -> SimpleNamespace:
        return SimpleNamespace(st_mtime=os.stat(path).st_mtime + self._ahead_s)

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


@pytest.mark.parametrize("ahead_s", [-1.5, 1.5])
@pytest.mark.parametrize("is_before", [True, False])
async def test_a_stop_does_not_compare_a_file_servers_clock_with_the_nodes(
    crew, recording, monkeypatch, ahead_s, is_before
):
    monkeypatch.setattr(error_file, "os", SkewedDisk(ahead_s))
    group = crew.start(sh("echo begun; exec sleep 1000"))
    await crew.says(b"begun")
    if is_before:
        _write_error(recording)
        _let_pass_s(recording, 0.5)
    group.stop(signal.SIGTERM, NEVER_S, seeks_cause=True)
    if not is_before:
        _write_error(recording)
    await crew.calls_back("stopped")
    assert len(crew.raised) == is_before


def _write_error(path: str, ago_s: float = 0.0) -> None:
    """Write what a worker has recorded then."""
    Path(path).write_text(json.dumps(error_file.content("ValueError: boom", at=time.time() - ago_s)))


@pytest.mark.parametrize("progressed_ago_s", [70.0, 1.0])
async def test_a_worker_that_has_reported_progress_since_it_recorded_an_error_has_caught_it(
    crew, recording, progressed_ago_s
):
    """Its peer has been lost for another reason."""
    group = crew.start(sh("exec sleep 1000"))
    _write_error(recording, ago_s=60.0)
    crew.progress[0] = asyncio.get_running_loop().time() - progressed_ago_s
    assert await group.report_raised() == (progressed_ago_s > 60.0)


@pytest.mark.parametrize("said_ago_s", [57.0, 70.0])
async def test_an_error_long_before_the_loss_is_the_cause_if_its_worker_was_silent_since(
    crew, recording, monkeypatch, said_ago_s
):
    group = crew.start(sh("exec sleep 1000"))
    _write_error(recording, ago_s=60.0)
    said_at = asyncio.get_running_loop().time() - said_ago_s
    monkeypatch.setattr(workers.Worker, "last_output_at", said_at)
    assert await group.report_raised() == (said_ago_s > 60.0)


@pytest.mark.parametrize("is_stop", [True, False])
async def test_an_error_that_peers_would_have_noticed_long_ago_was_caught_even_by_a_silent_worker(
    crew, recording, is_stop
):
    age_s = recorded_causes.NOTICED_WITHIN_S + 60.0
    group = crew.start(sh("exec sleep 1000"))
    _write_error(recording, ago_s=age_s)
    _let_pass_s(recording, age_s)
    if not is_stop:
        assert not await group.report_raised()
    group.stop(signal.SIGTERM, NEVER_S, seeks_cause=True)
    await crew.calls_back("stopped")
    assert not crew.raised


async def test_output_after_a_stop_does_not_show_that_the_script_has_caught_its_error(crew, recording, monkeypatch):
    """The worker was silent since its error, until the signal came."""
    group = crew.start(sh("exec sleep 1000"))
    _write_error(recording, ago_s=60.0)
    _let_pass_s(recording, 60.0)
    group.stop(signal.SIGTERM, NEVER_S, seeks_cause=True)
    monkeypatch.setattr(workers.Worker, "last_output_at", asyncio.get_running_loop().time())
    await crew.calls_back("stopped")
    assert [failure.rank for failure in crew.raised] == [10]


async def test_a_failure_that_follows_from_a_recorded_error_is_reported_too(crew, recording):
    crew.error_files = ["", recording]
    crew.start(sh(SUFFERS), records(recording, "ValueError: boom"))
    await crew.calls_back("failed")
    await until(lambda: crew.failed_too)
    assert [failure.rank for failure in crew.failures] == [11]
    assert [(failure.rank, failure.consequence) for failure in crew.failed_too] == [(10, True)]


async def test_a_failure_is_reported_even_if_the_search_for_its_cause_fails(crew, monkeypatch):
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))

    async def find(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(recorded_causes, "find", find)
    crew.start(sh(SUFFERS), sh("exec sleep 1000"))
    await crew.calls_back("failed")
    assert [failure.rank for failure in crew.failures] == [10]
    assert [str(error) for error in errors] == ["boom"]


async def test_a_worker_that_has_written_something_long_after_it_recorded_an_error_has_caught_it(crew, recording):
    content = json.dumps(error_file.content("ValueError: boom", at=time.time() - 2 * recorded_causes.CONTINUES_S))
    group = crew.start(sh(f"echo '{content}' > {recording}; echo step 8; exec sleep 1000"))
    await crew.says(b"step 8")
    assert not await group.report_raised()
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert not crew.raised


async def test_the_first_of_several_recorded_errors_is_the_cause(crew, tmp_path):
    crew.error_files = [str(tmp_path / name) for name in ("late", "early", "broken")]
    now = time.time()
    late, early = (json.dumps(error_file.content("ValueError: boom", at=at)) for at in (now, now - 2))
    texts = zip(crew.error_files, (late, early, "{"), strict=True)
    group = crew.start(*[sh(f"echo '{text}' > {path}; echo recorded; exec sleep 1000") for path, text in texts])
    await crew.console.until(lambda: crew.console.text().count(b"recorded") == 3)
    assert await group.report_raised()
    await crew.calls_back("failed")
    assert [failure.rank for failure in crew.failures] == [11]


async def test_a_worker_that_takes_its_time_to_exit_after_an_exception_is_the_cause(crew):
    crew.start(sh(SUFFERS), raises("ValueError: boom"))
    await crew.complains(b"ValueError")
    await crew.calls_back("failed")
    (failure,) = crew.failures
    assert (failure.rank, failure.error, failure.consequence) == (11, "ValueError: boom", False)
    assert failure.cause == words.failures.STILL_EXITING and failure.exit_code == 1


async def test_a_failure_is_reported_with_the_exception_that_had_ended_a_sibling_s_script_before(crew, gate):
    """The worker may have caught the loss of its peer and exited at once, while the peer still exits."""
    crew.start(sh(f"read go < {gate.path}; exit 2"), raises("ValueError: boom"))
    await crew.complains(b"ValueError: boom")
    await gate.open()
    await crew.calls_back("failed")
    await until(lambda: crew.failed_too)
    assert [(failure.rank, failure.exit_code) for failure in crew.failures] == [(10, 2)]
    assert [(failure.rank, failure.error) for failure in crew.failed_too] == [(11, "ValueError: boom")]


async def test_a_worker_that_has_lost_its_peer_too_is_not_the_cause(crew):
    crew.start(sh(SUFFERS), raises("RuntimeError: gloo/pair.cc: Connection closed by peer"))
    await crew.complains(b"rank7]: RuntimeError")
    await crew.calls_back("failed")
    assert [failure.rank for failure in crew.failures] == [10]


async def test_a_stop_reports_the_exception_that_ended_a_script_before_it(crew):
    group = crew.start(sh("exec sleep 1000"), raises("ValueError: boom"))
    await crew.complains(b"ValueError")
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert [(failure.rank, failure.error) for failure in crew.raised] == [(11, "ValueError: boom")]
    assert crew.calls == ["stopped"], "it is not reported twice"


@pytest.fixture
def logs(crew, tmp_path) -> Crew:
    """Return a crew whose workers write into files."""
    crew.log_folder = tmp_path
    return crew


def _ends_with(path: str, text: str) -> bool:
    return Path(path).exists() and Path(path).read_text().endswith(text)


def _open_files() -> list[str]:
    paths = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it was closed meanwhile
            paths.append(os.readlink(f"/proc/self/fd/{name}"))
    return paths


async def test_an_exception_in_a_log_file_is_the_cause_although_its_worker_still_exits(logs):
    logs.start(sh(f"until grep -q boom {logs.log(1)}; do sleep 0.01; done; {SUFFERS}"), raises("ValueError: boom"))
    await logs.calls_back("failed")
    await until(lambda: logs.failed_too)
    (failure,) = logs.failures
    assert (failure.rank, failure.error, failure.consequence) == (11, "ValueError: boom", False)
    assert failure.cause == words.failures.STILL_EXITING
    assert [failure.rank for failure in logs.failed_too] == [10]


async def test_the_agent_can_be_asked_for_the_cause_in_a_log_file(logs):
    group = logs.start(raises("ValueError: boom"))
    await until(lambda: _ends_with(logs.log(0), "boom\n"))
    assert await group.report_raised()
    await logs.calls_back("failed")
    assert [(failure.rank, failure.error) for failure in logs.failures] == [(10, "ValueError: boom")]


def _let_raise(monkeypatch, ago_s: float) -> None:
    """Let the exceptions in the workers' pipes be read that long ago."""
    monkeypatch.setattr(workers.Worker, "marked_at", asyncio.get_running_loop().time() - ago_s)


TRACKER = (
    'i=0; while [ $((i += 1)) -le {number} ]; do echo "tracker: metric $i" >&2; done; echo over >&2; exec sleep 1000'
)


@pytest.mark.parametrize("have_one_pipe", [False, True])
@pytest.mark.parametrize("number", [5, 15, 50])
async def test_a_worker_whose_exit_handlers_write_many_lines_is_the_cause(crew, gate, number, have_one_pipe):
    crew.have_one_pipe = have_one_pipe
    group = crew.start(
        sh(f"read go < {gate.path}; {SUFFERS}"), raises("ValueError: boom", TRACKER.format(number=number))
    )
    await until(lambda: group.workers[1].stderr_tail[-1:] == ("over",))
    await gate.open()
    await crew.calls_back("failed")
    assert [(failure.rank, failure.error) for failure in crew.failures] == [(11, "ValueError: boom")]


@pytest.mark.parametrize("number", [15, 50])
@pytest.mark.parametrize("ago_s", [2.0, 60.0])
@pytest.mark.parametrize("has_progressed", [False, True])
async def test_many_lines_after_an_exception_show_that_the_script_continues_if_it_is_old(
    crew, monkeypatch, number, ago_s, has_progressed
):
    group = crew.start(raises("ValueError: boom", TRACKER.format(number=number)))
    await crew.complains(b"over")
    _let_raise(monkeypatch, ago_s)
    if has_progressed:
        crew.progress[0] = asyncio.get_running_loop().time() - ago_s + recorded_causes.LAST_SIGN_S + 0.1
    is_cause = ago_s < recorded_causes.CONTINUES_S and not has_progressed
    assert await group.report_raised() == is_cause
    group.stop(signal.SIGTERM, NEVER_S, seeks_cause=True)
    await crew.calls_back("stopped")
    assert not crew.raised


@pytest.mark.parametrize("into_files", [True, False])
@pytest.mark.parametrize("sign", ["output", "progress", ""])
async def test_a_worker_that_continues_after_its_childs_exception_has_not_failed(
    crew, tmp_path, monkeypatch, into_files, sign
):
    """Torch marks the exception of the child, too, which has the same stderr."""
    crew.log_folder = tmp_path if into_files else None
    (_, _, raised) = raises("ValueError: boom")
    steps = "for i in 1 2 3 4 5 6 7 8 9 10; do echo step >&2; done; " if sign == "output" else ""
    group = crew.start(sh(raised.replace("exec sleep", f"{steps}echo over >&2; exec sleep")))
    await (until(lambda: _ends_with(crew.log(0), "over\n")) if into_files else crew.complains(b"over"))
    if not into_files:
        _let_raise(monkeypatch, 60.0)
    if sign == "progress":
        crew.progress[0] = asyncio.get_running_loop().time() + recorded_causes.LAST_SIGN_S + 0.1
    assert await group.report_raised() == (not sign)
    if sign:
        if into_files:
            _let_pass_s(crew.log(0), 0.5)
        group.stop(signal.SIGTERM, NEVER_S, seeks_cause=True)
        await crew.calls_back("stopped")
        assert not crew.raised


async def test_workers_are_stopped_although_no_descriptor_is_left(logs, monkeypatch):
    def dup(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    group = logs.start(raises("ValueError: boom"))
    await until(lambda: _ends_with(logs.log(0), "boom\n"))
    monkeypatch.setattr(os, "dup", dup)
    group.stop(signal.SIGTERM, NEVER_S, seeks_cause=True)
    await logs.calls_back("stopped")
    assert not logs.raised


async def test_the_end_of_a_log_file_that_nobody_reads_keeps_no_descriptor(logs):
    group = logs.start(raises("ValueError: boom"))
    (worker,) = group._alive.values()
    await until(lambda: _open_files().count(logs.log(0)) == 1)  # a thread closes the worker's end
    tail = worker.unread_stderr
    assert _open_files().count(logs.log(0)) == 2
    del tail
    assert _open_files().count(logs.log(0)) == 1


@pytest.mark.parametrize("seeks_cause", [True, False])
@pytest.mark.parametrize("is_before", [True, False])
async def test_a_stop_reports_an_exception_in_a_log_file_only_if_it_was_there_before(logs, is_before, seeks_cause):
    """A signal may make a script raise an exception."""
    group = logs.start(raises("ValueError: boom"))
    await until(lambda: _ends_with(logs.log(0), "boom\n"))
    if is_before:
        _let_pass_s(logs.log(0), 0.5)
    group.stop(signal.SIGTERM, NEVER_S, seeks_cause=seeks_cause)
    if not is_before:
        os.utime(logs.log(0))
    await logs.calls_back("stopped")
    assert len(logs.raised) == (is_before and seeks_cause)


async def test_a_script_that_prints_a_traceback_and_continues_has_not_failed(crew):
    group = crew.start(
        sh("printf '%s\\n' 'Traceback (most recent call last):' '  File \"t.py\", line 7' KeyError >&2; exec sleep 99")
    )
    await crew.complains(b"KeyError")
    assert not await group.report_raised()
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert not crew.raised


async def test_the_agent_can_be_asked_for_the_cause(crew):
    group = crew.start(raises("ValueError: boom"))
    await crew.complains(b"ValueError")
    assert await group.report_raised()
    await crew.calls_back("failed")
    assert not await group.report_raised(), "it is reported once"


@pytest.mark.parametrize("end_of_the_other", ["exit 0", SUFFERS])
async def test_a_consequence_is_reported_at_once_if_no_other_worker_is_left(crew, gate, end_of_the_other, monkeypatch):
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    crew.start(sh(SUFFERS), sh(f"read go < {gate.path}; {end_of_the_other}"))
    await suffered(crew)
    await gate.open()
    await crew.calls_back("failed")
    assert [failure.rank for failure in crew.failures] == [10], "the first of them"


async def test_a_stop_takes_the_place_of_a_consequence(crew, monkeypatch):
    """Another node's failure stops this one, so nothing more is reported."""
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", 0.05)
    group = crew.start(sh(SUFFERS), sh("exec sleep 1000"))
    await suffered(crew)
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    await asyncio.sleep(2 * workers.CAUSE_TIMEOUT_S)
    assert crew.calls == ["stopped"]


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1"])
async def test_workers_that_get_the_agents_signal_before_the_agent_have_not_failed(crew, monkeypatch, name):
    """A scheduler signals every process of a node, in any order."""
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    group = crew.start(sh(f"kill -{name} $$"), (*WRAPPED, *sh(f"kill -{name} $$")))
    await crew.all_reaped(group)
    group.stop(signal.Signals[f"SIG{name}"], NEVER_S)
    await crew.calls_back("stopped")
    assert crew.calls == ["stopped"]


@pytest.mark.parametrize(("wrapper", "exit_code"), [((), -signal.SIGTERM), (WRAPPED, 128 + signal.SIGTERM)])
async def test_a_worker_that_gets_a_stop_signal_while_its_agent_does_not_soon_counts_as_failed(
    crew, wrapper, exit_code
):
    crew.start((*wrapper, *sh("kill -TERM $$")))
    await crew.calls_back("failed")
    assert crew.failures[0].exit_code == exit_code


HEEDS = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"
PYTHON_HEEDS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
signal.pause()
"""


PYTHON = (sys.executable, "-c", PYTHON_HEEDS)


@pytest.mark.parametrize("name", ["TERM", "USR1"])
@pytest.mark.parametrize("worker", [sh(HEEDS), PYTHON], ids=["shell", "Python"])
async def test_a_success_that_a_signal_may_have_caused_is_taken_back_when_the_agent_gets_the_signal(
    crew, monkeypatch, worker, name
):
    """Python restores the default handlers before it exits."""
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    group = crew.start(tuple(word.replace("TERM", name) for word in worker), sh("exit 0"))
    await crew.says(b"[0]:ready\n")
    (pid, *_) = group.pids
    os.kill(pid, signal.Signals[f"SIG{name}"])
    await crew.all_reaped(group)
    assert crew.calls == []
    group.stop(signal.Signals[f"SIG{name}"], NEVER_S)
    await crew.calls_back("stopped")
    assert crew.calls == ["stopped"]


@pytest.mark.parametrize("is_last", [True, False])
async def test_a_failure_that_a_signal_may_have_caused_is_held_only_if_no_restart_is_left(crew, monkeypatch, is_last):
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    crew.is_last = is_last
    group = crew.start(sh(HEEDS.replace("exit 0", "exit 3")))
    await crew.says(b"ready\n")
    os.kill(group.pids[0], signal.SIGTERM)
    await crew.all_reaped(group)
    assert crew.calls == ["failed"] * (not is_last)
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert crew.calls == [*["failed"] * (not is_last), "stopped"]


async def test_without_a_restart_left_the_failure_of_workers_without_signal_handlers_counts_at_once(crew, monkeypatch):
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    crew.is_last = True
    crew.start((sys.executable, "-c", "print('ready', flush=True); raise SystemExit(3)"), sh("exec sleep 1000"))
    await crew.calls_back("failed")


@pytest.mark.parametrize("wrappers", [1, 2])
async def test_a_shell_may_exit_0_because_of_the_signal_that_ended_its_program(crew, monkeypatch, wrappers):
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    group = crew.start((*WRAPPED * wrappers, *PYTHON))
    await crew.says(b"ready\n")
    (program,) = (pid for pid in family(group.pids) if not children(pid))
    os.kill(program, signal.SIGTERM)
    await crew.all_reaped(group)
    assert crew.calls == []


async def test_a_success_that_a_signal_may_have_caused_counts_soon(crew):
    group = crew.start(sh(HEEDS))
    await crew.says(b"ready\n")
    began = asyncio.get_running_loop().time()
    os.kill(group.pids[0], signal.SIGTERM)
    await crew.calls_back("succeeded")
    assert asyncio.get_running_loop().time() - began >= workers.CAUSE_TIMEOUT_S
    await asyncio.sleep(0)
    assert crew.calls == ["succeeded"]


@pytest.mark.parametrize("program", ["print('ready', flush=True)", "pass"], ids=["that writes", "that is silent"])
async def test_the_success_of_workers_without_signal_handlers_counts_at_once(crew, monkeypatch, program):
    """SIGINT proves nothing, because every Python program catches it."""
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    crew.start((sys.executable, "-c", program))
    await crew.calls_back("succeeded")


CATCHES_CTRL_C = """
import os, time
try:
    print("ready", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    pass
"""


@pytest.mark.parametrize(
    ("worker", "name"),
    [
        ((sys.executable, "-c", CATCHES_CTRL_C), "SIGINT"),
        ((sys.executable, "-c", "import os; os.read(0, 1)"), ""),
    ],
    ids=["a handler that every Python program has", "no handler"],
)
async def test_a_success_is_held_for_a_part_of_the_worker_s_age_even_if_no_handler_was_seen(
    crew, monkeypatch, worker, name
):
    """No look can exclude a handler: it may be newer than the last look."""
    monkeypatch.setattr(workers, "HELD_SHARE", NEVER_S * 1e3)
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    group = crew.start(worker)
    if name:
        await crew.says(b"ready\n")
        os.kill(group.pids[0], signal.Signals[name])
    await crew.all_reaped(group)
    assert not crew.calls
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert crew.calls == ["stopped"], "the signal came, so the workers have not succeeded"


async def test_a_success_is_not_held_for_longer_than_a_signal_takes_to_arrive(crew, monkeypatch):
    """An old worker's part of its age may be hours."""
    monkeypatch.setattr(workers, "HELD_SHARE", NEVER_S * 1e3)
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", 0.01)
    crew.start(sh("exit 0"))
    await crew.calls_back("succeeded")


HAS_CHILD = """
import os, subprocess, sys
with subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    print("ready", flush=True)
    open(os.environ["GATE"]).read()
    child.kill()
"""


@pytest.mark.parametrize(
    "worker",
    [
        (sys.executable, "-c", HAS_CHILD, PYTHON_HEEDS),
        (*WRAPPED, sys.executable, "-c", HAS_CHILD, PYTHON_HEEDS),
        sh("sleep 1000 & echo ready; read go < $GATE; kill $!; exit 0"),
    ],
    ids=["Python", "Python in a shell", "shell"],
)
async def test_children_that_are_no_wrapped_programs_do_not_hold_a_success(crew, gate, monkeypatch, worker):
    """The processes of a DataLoader handle SIGTERM. Shells let their background programs ignore SIGQUIT."""
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    group = crew.start(worker, GATE=str(gate.path))
    await crew.says(b"ready\n")
    group.workers[0].look()
    await gate.open()
    await crew.calls_back("succeeded")


async def test_a_silent_worker_is_looked_at_once_in_a_while(crew, monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    monkeypatch.setattr(workers, "CHECK_INTERVAL_S", 0.0)
    program = PYTHON_HEEDS.replace('print("ready", flush=True)', f'open({str(tmp_path / "ready")!r}, "w")')
    group = crew.start((sys.executable, "-c", program))
    await until((tmp_path / "ready").exists)
    group.look()
    os.kill(group.pids[0], signal.SIGTERM)
    await crew.all_reaped(group)
    assert crew.calls == []


async def test_a_silent_worker_is_looked_at_in_the_first_second_of_its_life(crew, monkeypatch):
    """An eviction may come before the agent's next poll, at which it looks again."""
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    monkeypatch.setattr(workers, "CHECK_INTERVAL_S", NEVER_S)
    begins = asyncio.get_running_loop().time()
    group = crew.start(sh("trap 'exit 0' TERM; while :; do sleep 0.02; done"))
    await until(lambda: group.workers[0].may_get_signal)
    assert asyncio.get_running_loop().time() - begins >= workers.LOOKS_S[0]
    os.kill(group.pids[0], signal.SIGTERM)
    await crew.all_reaped(group)
    assert crew.calls == []


BLOCKS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
print("blocks", flush=True)
open({gate!r}).read()
{then}
"""
RELEASES = 'signal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, 65)); print("released", flush=True); signal.pause()'


@pytest.mark.parametrize("is_for_a_moment", [True, False])
async def test_a_program_that_blocks_all_signals_for_a_moment_does_not_handle_them(
    crew, gate, monkeypatch, is_for_a_moment
):
    """Python's `subprocess` and shells do so when they start a program. Others wait for the signals in a thread."""
    monkeypatch.setattr(workers, "LOOKS_S", ())
    monkeypatch.setattr(workers.Worker, "_look_soon", lambda worker: None)
    program = BLOCKS.format(gate=str(gate.path), then=RELEASES if is_for_a_moment else "")
    group = crew.start((sys.executable, "-c", program))
    (worker,) = group.workers
    await crew.says(b"blocks\n")
    worker.look()
    assert not worker.may_get_signal
    if is_for_a_moment:
        await gate.open()
        await crew.says(b"released\n")
    worker.look()
    assert worker.may_get_signal != is_for_a_moment


async def test_a_copy_of_another_process_is_examined_when_it_certainly_has_its_own_handlers(crew, monkeypatch):
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    monkeypatch.setattr(workers.Worker, "executes_program", False)
    begins = asyncio.get_running_loop().time()
    group = crew.start(sh("trap 'exit 0' TERM; while :; do sleep 0.05; done"))
    await until(lambda: group.workers[0].may_get_signal)
    assert asyncio.get_running_loop().time() - begins >= workers.CHECK_INTERVAL_S
    os.kill(group.pids[0], signal.SIGTERM)
    await crew.all_reaped(group)
    assert crew.calls == []


async def test_looks_at_an_idle_agents_workers_become_rarer_and_end(crew):
    """Each age is twice the one before: a silent worker's handler is seen before the worker is twice as old."""
    assert all(after == 2 * before for before, after in itertools.pairwise(workers.LOOKS_S))
    assert workers.LOOKS_S[0] <= 0.125, "hardly any program of Python has a handler sooner"
    assert workers.LOOKS_S[-1] < HOLD_S, "then the polls come"


async def test_a_signal_that_the_agent_ignores_may_still_end_its_workers(crew, monkeypatch):
    """Under nohup all of them ignore SIGHUP."""
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        crew.start(sh("exit 0"))
        await crew.calls_back("succeeded")
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_workers_that_ended_long_ago_do_not_hold_a_success(crew, gate, monkeypatch):
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", 0.05)
    group = crew.start(sh(HEEDS), sh(f"read go < {gate.path}"))
    await crew.says(b"[0]:ready\n")
    os.kill(group.pids[0], signal.SIGTERM)
    await until(lambda: len(group.pids) == 1)
    await asyncio.sleep(workers.CAUSE_TIMEOUT_S)
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    await gate.open()
    await crew.calls_back("succeeded")


@pytest.mark.parametrize(("name", "is_told"), [("TERM", True), ("KILL", False)])
async def test_a_group_that_is_stopped_knows_how_long_the_agent_may_still_get_the_signal_of_a_worker(
    crew, monkeypatch, name, is_told
):
    monkeypatch.setattr(workers, "CAUSE_TIMEOUT_S", NEVER_S)
    group = crew.start(sh(f"kill -{name} $$"))
    await crew.all_reaped(group)
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped" if is_told else "failed")
    assert (group.signal_until > asyncio.get_running_loop().time()) is is_told


# How a round is stopped.


@pytest.mark.parametrize("name", ["TERM", "INT"])
async def test_workers_get_the_signal_that_the_agent_got(crew, name):
    group = crew.start(
        *[sh(f"trap '' TERM; trap 'echo bye; exit' {name}; echo ready; while :; do sleep 0.05; done")] * 2
    )
    await crew.says(b"[0]:ready\n")
    await crew.says(b"[1]:ready\n")
    group.stop(signal.Signals[f"SIG{name}"], NEVER_S)
    await crew.calls_back("stopped")
    assert crew.calls == ["stopped"], "their ends are no success"
    assert crew.console.text().count(b"bye\n") == 2


async def test_a_worker_that_does_not_end_is_killed_after_the_grace_period(crew):
    group = crew.start(stubborn())
    await crew.says(b"ready\n")
    group.stop(signal.SIGTERM, 0.1)
    await crew.calls_back("stopped")
    assert (crew.calls, crew.left) == (["stopped"], [])
    assert group.killed_late == KilledLate([10], "SIGTERM", pytest.approx(0.1))


async def test_only_workers_that_did_not_end_in_their_grace_count_as_killed_late(crew):
    group = crew.start(stubborn(), sh("trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done"), stubborn())
    for local_rank in range(3):
        await crew.says(f"[{local_rank}]:ready\n".encode())
    group.stop(signal.SIGTERM, 1.0)
    assert group.killed_late is None
    await crew.calls_back("stopped")
    assert group.killed_late == KilledLate([10, 12], "SIGTERM", pytest.approx(1.0))


async def test_a_worker_that_ends_at_the_same_time_as_its_grace_is_not_killed_late(crew, monkeypatch):
    monkeypatch.setattr(workers, "signal_group", lambda pid, signum: os.kill(pid, signal.SIGUSR1))
    group = crew.start(sh("trap '' TERM; trap 'exit 0' USR1; echo ready; while :; do sleep 0.02; done"))
    await crew.says(b"ready\n")
    group.stop(signal.SIGTERM, 0.1)
    await crew.calls_back("stopped")
    assert group.killed_late is None


async def test_a_shorter_grace_is_counted_from_the_first_signal(crew):
    group = crew.start(sh("trap '' TERM INT; echo ready; while :; do sleep 0.05; done"))
    await crew.says(b"ready\n")
    began = asyncio.get_running_loop().time()
    group.stop(signal.SIGTERM, NEVER_S)
    await asyncio.sleep(0.1)
    group.stop(signal.SIGINT, 0.1)
    await crew.calls_back("stopped")
    late = group.killed_late
    assert (late.ranks, late.signal_name) == ([10], "SIGTERM")
    assert 0.2 <= late.within_s <= round(asyncio.get_running_loop().time() - began + 0.01, 1)


async def test_a_worker_that_is_killed_without_a_grace_is_not_killed_late(crew):
    group = crew.start(stubborn())
    await crew.says(b"ready\n")
    group.stop(signal.SIGTERM, NEVER_S)
    group.stop(signal.SIGKILL, 0.0)
    await crew.calls_back("stopped")
    assert group.killed_late is None


async def test_stopping_workers_that_have_all_gone_is_soon_done(crew):
    group = crew.start(sh("exit 0"))
    await crew.calls_back("succeeded")
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert (crew.calls, crew.left) == (["succeeded", "stopped"], [])


# Processes that a worker leaves behind.


async def test_a_stopped_workers_children_get_its_signal(crew):
    group = crew.start(sh("(trap 'echo child gone; exit' TERM; echo ready; while :; do sleep 0.02; done) & wait; exit"))
    await crew.says(b"ready\n")
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")


STAYS = """
import os, signal
ready, is_ready = os.pipe()
worker_told, worker_is_told = os.pipe()
worker = os.getpid()
if os.fork() == 0:
    def told(*_):
        os.write(1, b"child told\\n")
        os.read(worker_told, 1)
        os.kill(worker, signal.SIGKILL)
        os._exit(0)
    signal.signal(signal.SIGTERM, told)
    os.write(is_ready, b".")
else:
    def told(*_):
        os.write(1, b"told\\n")
        os.write(worker_is_told, b".")
    os.read(ready, 1)
    signal.signal(signal.SIGTERM, told)
    print("ready", flush=True)
while True:
    signal.pause()
"""
"""Handles the signal and stays. Its child kills it when both are told to end."""


async def test_a_stopped_workers_children_get_the_signal_before_the_grace_ends(crew, monkeypatch):
    monkeypatch.setattr(workers, "remaining_signalled_after_s", lambda grace_s: 0.0)
    group = crew.start((sys.executable, "-c", STAYS))
    await crew.says(b"ready\n")
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert sorted(line for line in crew.console.text().splitlines() if b"told" in line) == [
        b"[0]:child told",
        b"[0]:told",
    ]


SAVES = """
import os, signal, sys
from functools import partial
ready, is_ready = os.pipe()

def save(who, *_):
    os.write(1, f"{who} saves\\n".encode())
    os._exit(0)

if os.fork() == 0:
    signal.signal(signal.SIGTERM, partial(save, "child"))
    os.write(is_ready, b".")
else:
    os.read(ready, 1)
    signal.signal(signal.SIGTERM, partial(save, "worker"))
    print("ready", flush=True)
    if "ends" in sys.argv:
        os._exit(0)
while True:
    signal.pause()
"""


async def test_the_unadopted_child_of_a_program_that_saves_is_signalled_after_it(crew):
    group = crew.start((sys.executable, "-c", SAVES))
    await crew.says(b"ready\n")
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert crew.console.text().splitlines()[1:] == [b"[0]:worker saves", b"[0]:child saves"]


async def test_the_unadopted_child_of_a_worker_that_ended_by_itself_is_signalled(crew, monkeypatch):
    monkeypatch.setattr(workers, "LEFT_S", NEVER_S)
    crew.start((sys.executable, "-c", SAVES, "ends"))
    await crew.calls_back("succeeded")
    assert crew.console.text().splitlines() == [b"[0]:ready", b"[0]:child saves"]


@pytest.fixture
def helper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own."""
    with subprocess.Popen(("sleep", "1000"), start_new_session=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("code", "is_last", "is_signalled"), [(0, False, True), (1, True, True), (1, False, False)],
    ids=["success", "no restart is left", "a restart may follow"],
)  # fmt: skip
async def test_a_restart_does_not_wait_for_processes_in_other_sessions(
    crew, helper, monkeypatch, code, is_last, is_signalled
):
    monkeypatch.setattr(workers, "LEFT_S", NEVER_S)
    crew.is_last, crew.leftovers = is_last, [helper.pid]
    group = crew.start(sh(f"exit {code}"))
    await crew.calls_back("failed" if code else "succeeded")
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert helper.poll() == (-signal.SIGTERM if is_signalled else None)


BURNS = "import os, time\nwhile time.process_time() < {}: pass"


@pytest.mark.parametrize(
    ("limit", "command", "is_used_up"),
    [
        ("1", "while :; do :; done", True),
        ("unlimited", "kill -KILL $$", False),
        ("1", f"exec python3 -c '{BURNS.format(0.5)}\nos.kill(os.getpid(), 9)'", False),
        ("1", f"for _ in 1 2; do python3 -c '{BURNS.format(0.4)}'; done; kill -KILL $$", False),
    ],
    ids=["used up", "no limit", "half of the limit", "its children's"],
)
async def test_a_worker_that_the_kernel_has_killed_for_its_processor_time_is_reported_so(
    crew, limit, command, is_used_up
):
    """If the soft limit equals the hard one, Linux sends SIGKILL instead of SIGXCPU."""
    crew.start(sh(f"ulimit -t {limit}; {command}"))
    await crew.calls_back("failed")
    (failure,) = crew.failures
    assert failure.exit_code == -signal.SIGKILL
    assert failure.cause.endswith(words.failures.CPU_TIME_USED_UP) == is_used_up
    assert (failure.hint == words.failures.SEE_ULIMIT_T) == is_used_up


HOARD = "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))"


@pytest.mark.parametrize("is_wrapped", [False, True])
async def test_a_kill_for_lack_of_memory_in_a_workers_own_cgroup_is_named(crew, gate, memory_cgroup, is_wrapped):
    """A job step, a container or `systemd-run` has moved the worker, or the program in it."""
    program = f"echo $$ > {memory_cgroup}/cgroup.procs; echo moved; read go < {gate.path}; exec $PYTHON -c '{HOARD}'"
    command = ("sh", "-c", '(eval "$0"); exit $?', program.replace("$$", "$(exec sh -c 'echo $PPID')"))
    group = crew.start(command if is_wrapped else sh(program), PYTHON=sys.executable)
    await crew.says(b"moved\n")
    group.look()
    await gate.open()
    await crew.calls_back("failed")
    (failure,) = crew.failures
    assert failure.exit_code == (128 + signal.SIGKILL if is_wrapped else -signal.SIGKILL)
    assert failure.cause.endswith(words.failures.out_of_memory("256 MiB"))
    assert (failure.hint, failure.blame) == (words.failures.MORE_MEMORY, "program")


async def test_the_kills_in_a_workers_own_cgroup_are_read_before_the_cgroup_is_removed(crew, monkeypatch, tmp_path):
    """It may be removed with its last process. The worker's error file is read in between."""
    machine = tmp_path / "machine"
    own, moved = "0::/agent", "0::/step"
    for path, text in {"proc/self/cgroup": own, "cgroup/agent/memory.events": "oom_kill 0"}.items():
        (machine / path).parent.mkdir(parents=True)
        (machine / path).write_text(text)
    watch = oom.OomWatch(str(machine / "cgroup"), str(machine / "proc"))
    monkeypatch.setattr(oom, "OomWatch", lambda: watch)
    step = machine / "cgroup" / "step"
    crew.error_file = str(tmp_path / "error.json")
    monkeypatch.setattr(diagnose, "look_at_disk", lambda *_: step.rename(machine / "removed") and None)
    group = crew.start(sh("exec sleep 1000"))
    (machine / f"proc/{group.pids[0]}").mkdir()
    (machine / f"proc/{group.pids[0]}/cgroup").write_text(moved)
    step.mkdir()
    (step / "memory.events").write_text("oom_kill 3")
    group.look()
    (step / "memory.events").write_text("oom_kill 4")
    os.kill(group.pids[0], signal.SIGKILL)
    await crew.calls_back("failed")
    assert not step.exists()
    assert crew.failures[0].cause.endswith(words.failures.out_of_memory(""))


async def test_no_zombie_and_no_file_descriptor_is_left(crew):
    before = len(os.listdir("/proc/self/fd"))
    pids = crew.start(*[sh("exit 0")] * 4).pids
    await crew.calls_back("succeeded")
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222


@pytest.mark.parametrize("command", [("sh", "-c", "sleep 1000"), ("/nowhere",)], ids=["runs", "cannot start"])
@pytest.mark.parametrize("function", ["pidfd_open", "add_reader"])
async def test_a_worker_that_cannot_be_watched_is_killed_and_reported(crew, monkeypatch, function, command):
    def fail(*args):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    here = process_module if function == "pidfd_open" else type(asyncio.get_running_loop())
    before, descriptors = children(), len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(here, function, fail)
        group = crew.start(command)
    await crew.calls_back("failed")
    assert (group.pids, crew.failures[0].exit_code) == ([], 127)
    why = os.strerror(errno.ENOENT if command == ("/nowhere",) else errno.EMFILE)
    assert crew.failures[0].cause == words.workers.cannot_start(command[0], why)
    assert not children() - before
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_the_first_worker_that_cannot_start_is_reported_and_the_others_run(crew):
    before = children()
    group = crew.start(stubborn(), ("/nowhere/b",), stubborn(), ("/nowhere/d",))
    await crew.calls_back("failed")
    assert list(group.by_local_rank) == [0, 2]
    assert children() - before == set(group.pids)
    assert [(failure.local_rank, failure.exit_code) for failure in crew.failures] == [(1, 127)]
    assert crew.failures[0].cause == words.workers.cannot_start("/nowhere/b", "No such file or directory")


async def test_forks_follow_each_other_without_slow_work_of_the_agent_in_between(crew, monkeypatch):
    done: list[str] = []
    loop = type(asyncio.get_running_loop())

    def recorded(name, call):
        def record(*args, **kwargs):
            done.append(name)
            return call(*args, **kwargs)

        return record

    with monkeypatch.context() as patch:
        for where, name in ((os, "fork"), (Relay, "__init__"), (Relay, "started"), (loop, "add_reader")):
            patch.setattr(where, name, recorded(name, getattr(where, name)))
        crew.start(*[sh("exit 0")] * SIDE_BY_SIDE)
    first = done.index("fork")
    assert done[first : first + SIDE_BY_SIDE] == ["fork"] * SIDE_BY_SIDE
    assert set(done[:first]) == {"__init__"}
    await crew.calls_back("succeeded")


async def test_without_a_stream_for_one_worker_all_workers_stay_unstarted_and_descriptors_are_closed(crew):
    before, descriptors = children(), len(os.listdir("/proc/self/fd"))
    specs = [command_spec(crew.console, rank, rank, stubborn(), dict(os.environ)) for rank in range(3)]

    def fail():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    failed = ProcessGroup()._start_workers([*specs[:2], replace(specs[2], open_streams=fail)])
    assert failed is not None
    assert (failed[0].rank, failed[1].errno) == (2, errno.EMFILE)
    assert not children() - before
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_workers_that_were_started_before_an_unexpected_error_can_be_stopped_at_once(crew):
    """A signal to the process group of a worker that is about to lead it would be lost."""
    group = ProcessGroup()
    spec = command_spec(crew.console, 0, 0, stubborn(), dict(os.environ))

    def fail(*streams):
        raise ValueError

    with pytest.raises(ValueError):
        group._start_workers([spec, replace(spec, local_rank=1, start=fail)])
    worker = next(iter(group._alive.values()))
    assert os.getpgid(worker.pid) == worker.pid
    os.kill(worker.pid, signal.SIGKILL)
    await until(lambda: not group._alive)
    worker.close()


@pytest.mark.parametrize(("script", "calls"), [("exit 3", 2), ("sleep 1000", 0)], ids=["fails", "is stopped"])
async def test_evidence_is_read_from_the_disk_only_if_the_workers_failure_counts(
    crew, monkeypatch, tmp_path, script, calls
):
    read: list[object] = []

    async def in_thread(call, within_s):
        read.append(call)
        return call()

    monkeypatch.setattr(workers, "in_thread", in_thread)
    crew.error_file = str(tmp_path / "error.json")
    group = crew.start(sh(script))
    if script == "exit 3":
        await crew.calls_back("failed")
    group.stop(signal.SIGTERM, NEVER_S)
    await crew.calls_back("stopped")
    assert len(read) == calls
