"""The guardian ends all processes of its agent, and only those, even while some end and others start."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from node_agent.kernel.processes import orphans_helper
from node_agent.kernel.processes.orphans_helper import (
    Process,
    Roster,
    began,
    command_line,
    end,
    end_all,
    environment,
    is_marked,
    look_at,
    processes,
    read_roster,
    related,
    write_roster,
)
from tests.support import leaderless

MARK = f"NODE_AGENT_ID=unit-{os.getpid()}"
NONE = Roster({}, {})


def sleeping(number: int, env: dict[str, str] | None = None) -> AbstractContextManager[list[subprocess.Popen[bytes]]]:
    return started(number, ("sleep", "1000"), env)


@contextmanager
def started(
    number: int, command: tuple[str, ...], env: dict[str, str] | None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start children in separate sessions."""
    children = [subprocess.Popen(command, env=env, start_new_session=True) for _ in range(number)]
    try:
        yield children
    finally:
        for each in children:
            each.kill()
            each.wait()


def marked(number: int) -> AbstractContextManager[list[subprocess.Popen[bytes]]]:
    return sleeping(number, {"NODE_AGENT_ID": MARK.partition("=")[2]})


def test_the_remaining_processes_are_killed_if_some_end_between_the_search_and_the_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are 180 daemons. Before every sixth one, a child ends just after it was seen."""
    with marked(210) as started, sleeping(1) as others:
        ending = {each.pid: each for each in started[::7]}
        is_marked = orphans_helper.is_marked

        def seen(pid: int, mark: bytes, **how: bool) -> bool:
            found = is_marked(pid, mark, **how)
            if found and pid in ending:
                ending[pid].kill()
                ending[pid].wait()
            return found

        monkeypatch.setattr(orphans_helper, "is_marked", seen)
        assert end_all(MARK.encode(), NONE) == 0
        assert all(each.wait(10.0) for each in started)
        assert others[0].poll() is None


def test_processes_started_during_a_kill_are_found_by_a_later_look(monkeypatch: pytest.MonkeyPatch) -> None:
    kill, late = orphans_helper.end, list[subprocess.Popen[bytes]]()

    def ended(victims: dict[int, int], within_s: float) -> set[int]:
        if not late:
            late.append(subprocess.Popen(("sleep", "1000"), env={"NODE_AGENT_ID": MARK.partition("=")[2]}))
        return kill(victims, within_s)

    monkeypatch.setattr(orphans_helper, "end", ended)
    with marked(1) as started:
        end_all(MARK.encode(), NONE)
        assert all(each.wait(10.0) for each in [*started, *late])


def test_processes_without_the_mark_are_known_by_the_roster_and_by_their_worker_s_session() -> None:
    with sleeping(3) as (worker, daemon, other):
        roster = Roster({worker.pid: began(worker.pid)}, {daemon.pid: began(daemon.pid)})
        assert end_all(b"no=mark", roster) == 0
        assert worker.wait(10.0) and daemon.wait(10.0) and other.poll() is None


def test_a_process_that_reuses_a_known_pid_is_not_signalled() -> None:
    with sleeping(1) as (other,):
        before = began(other.pid) - 1
        assert end({other.pid: before}, 1.0) == set()
        assert end_all(b"no=mark", Roster({other.pid: before}, {other.pid: before})) == 0
        assert other.poll() is None


FOUND = {
    1: Process(parent=0, group=1, session=1, began=0),
    50: Process(parent=1, group=50, session=50, began=100),  # another program, and its child
    51: Process(parent=50, group=50, session=50, began=101),
    60: Process(parent=1, group=60, session=60, began=110),  # a known process of ours, its child and its grandchild
    61: Process(parent=60, group=61, session=61, began=111),
    62: Process(parent=61, group=62, session=62, began=112),
    71: Process(parent=1, group=70, session=70, began=121),  # in the session of an ended worker, 70
    72: Process(parent=71, group=72, session=72, began=122),
}


@pytest.mark.parametrize(
    ("roster", "ours"),
    [
        (NONE, set()),
        (Roster({}, {60: 110}), {60, 61, 62}),
        (Roster({}, {60: 109}), set()),
        (Roster({70: 120}, {}), {71, 72}),
        (Roster({}, {70: 120}), set()),
        (Roster({50: 100}, {}), {50, 51}),
        (Roster({50: 99}, {}), set()),
    ],
    ids=["nothing", "descendants", "another's pid", "session", "session of no worker", "living", "reused session"],
)  # fmt: skip
def test_kin_are_the_known_processes_their_workers_sessions_and_all_descendants(roster: Roster, ours: set[int]) -> None:
    assert related(FOUND, roster) == ours


def test_a_process_has_its_mark_and_its_command_also_while_it_executes_another_program(tmp_path: Path) -> None:
    """/proc shows neither for a moment. Who takes a guardian for a process without a mark ends it."""
    program = tmp_path / "again"
    program.write_text('#!/bin/sh\nexec "$0"\n')
    program.chmod(0o700)
    with started(1, (str(program),), {"NODE_AGENT_ID": MARK.partition("=")[2]}) as (process,):
        looks = [(is_marked(process.pid, MARK.encode()), bool(command_line(process.pid))) for _ in range(2_000)]
    assert set(looks) == {(True, True)}


def test_a_process_may_have_no_environment() -> None:
    with started(1, ("sleep", "1000"), {}) as (process,):
        assert environment(process.pid) == []
        assert command_line(process.pid) == [b"sleep", b"1000", b""]


@contextmanager
def without_main_thread(env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process whose main thread ends, and wait until it has."""
    with started(1, leaderless.COMMAND, env) as (process,):
        leaderless.until_leaderless(process.pid)
        yield process


def test_a_process_has_ended_with_its_last_thread_and_not_with_its_main_thread() -> None:
    name, _, value = MARK.partition("=")
    with without_main_thread({name: value}) as process:
        found = look_at(process.pid)
        expected = Process(os.getpid(), process.pid, process.pid, began(process.pid), is_leaderless=True)
        assert found and vars(found) == vars(expected)
        assert found.began > 0 and vars(processes()[process.pid]) == vars(found)
        assert is_marked(process.pid, MARK.encode(), is_leaderless=True)
        assert not is_marked(process.pid, b"no=mark", is_leaderless=True)
        assert MARK.encode() in environment(process.pid)
        assert end({process.pid: found.began}, 10.0) == set()
        assert look_at(process.pid) is None and began(process.pid) == -1  # not reaped yet
        assert process.pid not in processes()
        assert not is_marked(process.pid, MARK.encode())


def test_a_process_without_a_main_thread_may_have_no_environment() -> None:
    with without_main_thread({}) as process:
        assert b"NODE_AGENT_ID" not in b"".join(environment(process.pid))


def test_processes_without_a_main_thread_are_known_by_their_mark_by_the_roster_and_by_their_worker_s_session() -> None:
    name, _, value = MARK.partition("=")
    with (
        without_main_thread({name: value}) as marked,
        without_main_thread({}) as worker,
        without_main_thread({}) as daemon,
        without_main_thread({}) as other,
    ):
        roster = Roster({worker.pid: began(worker.pid)}, {daemon.pid: began(daemon.pid)})
        assert end_all(MARK.encode(), roster) == 0
        assert marked.wait(10.0) and worker.wait(10.0) and daemon.wait(10.0)
        assert look_at(other.pid) and other.poll() is None


def test_the_wait_for_a_killed_process_whose_last_thread_cannot_end_is_limited() -> None:
    with without_main_thread({}) as process:
        when, held = began(process.pid), leaderless.HeldThread(process.pid)
        assert end({process.pid: when}, 0.1) == {process.pid}
        assert began(process.pid) == when
        held.release()
        assert process.wait(10.0) == -signal.SIGKILL
        assert look_at(process.pid) is None


def test_a_roster_is_read_as_it_was_written() -> None:
    file = os.memfd_create("roster")
    for roster in (Roster({1: 10, 2: 20}, {3: 30}), Roster({}, {4: 40}), NONE):
        write_roster(file, roster)
        assert vars(read_roster(file)) == vars(roster)
    os.pwrite(file, b"cut", 0)
    assert vars(read_roster(file)) == vars(NONE)
    os.close(file)
