"""The warm pool with a real fork server: it refills after the end of any process, or reports that it cannot."""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node_agent.features.warm import pool as pool_module
from node_agent.features.warm import words
from node_agent.features.warm.pool import WarmPool, WarmProcess
from node_agent.kernel.core.command import Command
from node_agent.kernel.processes import process as process_module
from node_agent.kernel.processes.orphans import children, reap
from node_agent.kernel.processes.process import CommandProcess, Process, own_children
from tests.support.changes import PATIENCE_S
from tests.support.message_search import has_message
from tests.support.process_info import kill_unnoticed, subreaper, until

COMMAND = (sys.executable, "-c", "import sys; sys.exit(3)")
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


@pytest.fixture
def said() -> list[str]:
    return []


@asynccontextmanager
async def closing_pool(
    modules: Sequence[str],
    environment: Mapping[str, str],
    log: Callable[[str], None],
    command: tuple[str, ...] = COMMAND,
) -> AsyncIterator[WarmPool]:
    """Yield a pool of two processes, and end both."""
    before = children()

    def are_gone() -> bool:  # a process whose pid was never sent ends by itself
        reap()
        return not children() - before

    with subreaper():
        pool = WarmPool(modules, Command(command), environment, 2, log, IGNORED)
        yield pool
        pool.close()
        await until(are_gone)


@pytest.fixture
async def pool(said: list[str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WarmPool]:
    monkeypatch.setattr(pool_module, "NOTICE_S", 1000.0)
    async with closing_pool(["json"], dict(os.environ), said.append) as pool:
        yield pool


async def full(pool: WarmPool) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await pool.full()


def start(pool: WarmPool, kind: type[Process] = WarmProcess) -> int:
    """Return the exit code of a worker that was started warm, or as the other kind."""
    process = pool.start_worker(0, os.environ, (), 1, 2)
    assert type(process) is kind
    return process.reap()


async def test_a_process_that_has_not_reported_its_pid_yet_is_expected(
    pool: WarmPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await full(pool)
    monkeypatch.setattr(WarmPool, "_on_pid", lambda *_: None)
    before = children()
    start(pool)
    await until(lambda: children() - before)
    (adopted,) = children() - before
    assert pool.expects(adopted) and not pool.expects(os.getpid())
    pool.close()
    assert not pool.expects(adopted), "it ends by itself"


async def test_the_warm_pool_refills_after_a_start(pool: WarmPool) -> None:
    await full(pool)
    assert [start(pool), start(pool)] == [3, 3]
    await full(pool)
    assert [start(pool), start(pool)] == [3, 3]


async def test_a_slow_import_is_logged(said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The import takes until the test writes into a pipe, which it does after the message."""
    monkeypatch.setattr(pool_module, "NOTICE_S", 0.0)
    os.mkfifo(tmp_path / "go")
    (tmp_path / "slow_module.py").write_text(f"open({str(tmp_path / 'go')!r}).read()")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}

    async with closing_pool(["slow_module"], environment, said.append) as pool:
        filling = asyncio.create_task(full(pool))
        await until(lambda: said)
        (tmp_path / "go").write_text("")
        await filling
    assert said[0] == words.waiting_for_import("slow_module")
    assert has_message(said[1], words.start_warm, modules="slow_module")


async def test_the_pool_survives_signals_to_every_process_of_the_node(pool: WarmPool, said: list[str]) -> None:
    await full(pool)
    for pid in own_children & children():
        for signum in IGNORED:
            os.kill(pid, signum)
    assert [start(pool), start(pool)] == [3, 3]
    await full(pool)
    assert said == [said[0]] and has_message(said[0], words.start_warm, modules="json")


async def test_a_fork_server_that_dies_before_it_has_read_its_request_is_replaced(
    pool: WarmPool, said: list[str]
) -> None:
    await full(pool)
    assert pool._server
    os.kill(pool._server.pid, signal.SIGSTOP)
    assert start(pool) == 3
    filling = asyncio.create_task(full(pool))
    await asyncio.sleep(0)  # it has been asked now
    os.kill(pool._server.pid, signal.SIGKILL)
    await filling
    assert said[1:] == [words.import_died("json")]


async def test_a_process_that_dies_with_an_unread_message_before_it_reports_its_pid_is_replaced(pool: WarmPool) -> None:
    """Then its socket is reset, and does not just end."""
    await full(pool)
    ours, theirs = socket.socketpair()
    ours.send(b"work")
    theirs.close()
    pool._asked.add(ours)
    pool._on_pid(ours)
    assert ours.fileno() == -1
    await full(pool)
    assert [start(pool), start(pool)] == [3, 3]


async def test_processes_that_cannot_be_watched_are_ended_and_workers_start_cold(
    pool: WarmPool, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(process_module, "pidfd_open", fail)
    await full(pool)
    assert said[1:] == [words.start_cold("Too many open files")]
    monkeypatch.undo()
    assert start(pool, CommandProcess) == 3


async def test_a_process_that_dies_as_it_is_given_work_is_passed_over(pool: WarmPool, said: list[str]) -> None:
    await full(pool)
    kill_unnoticed(pool._waiting[0].pid)
    assert start(pool) == 3
    await full(pool)


async def test_an_interpreter_may_be_a_script_that_runs_python(said: list[str], tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    async with closing_pool(["json"], os.environ, said.append, (str(wrapper), *COMMAND[1:])) as pool:
        await full(pool)
        assert start(pool) == 3


async def test_processes_that_all_die_are_given_up_and_workers_start_cold(said: list[str], tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text("import os\nos.register_at_fork(after_in_child=lambda: os._exit(0))\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    async with closing_pool(["deadly"], environment, said.append) as pool:
        await full(pool)
        assert said[-1] == words.start_cold(words.END_BEFORE_START)
        assert start(pool, CommandProcess) == 3


async def test_an_interpreter_that_cannot_start_is_logged_and_workers_start_cold(said: list[str]) -> None:
    pool = WarmPool(["json"], Command(("/nowhere/python", "train.py")), {}, 2, said.append, IGNORED)
    await full(pool)
    assert said == [words.start_cold(words.import_not_started("json", "No such file or directory"))]
    with pytest.raises(FileNotFoundError):
        pool.start_worker(0, {}, (), 1, 2)


async def test_without_sockets_left_workers_start_cold(
    pool: WarmPool, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", none_left)
    await full(pool)
    assert said[-1] == words.start_cold("Too many open files")
